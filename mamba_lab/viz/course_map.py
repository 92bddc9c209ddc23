"""The map of the course: which notebook builds on which, and the minutes each takes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from mamba_lab.course.curriculum import CURRICULUM, Entry
from mamba_lab.viz.colours import CARD, INK, MUTED
from mamba_lab.viz.style import SMALL, WIDTH, style

# Column and row of each box: columns follow what a notebook needs, rows keep arrows short.
_PLACES = {
    "00": (0, 1), "02": (1, 0), "01": (1, 2), "03": (2, 0), "05": (2, 1), "04": (2, 2), "06": (3, 0), "07": (3, 1),
    "08": (4, 0), "09": (4, 1), "11": (4, 2), "12": (5, 3), "10": (5, 1), "13": (6, 0), "14": (6, 2), "15": (6, 3),
}  # fmt: skip
_WIDE, _HIGH, _COLUMN, _ROW = 0.84, 0.62, 1.06, 0.98
_FILL = "#DCEBF5"


def course_map(entries: Sequence[Entry] = CURRICULUM) -> Figure:
    """A box a notebook, an arrow from what it needs; boxes of notebooks that are not written yet are dashed."""
    with style():
        fig = Figure(figsize=(WIDTH, 4.1))
        ax = fig.add_axes((0.01, 0.01, 0.98, 0.98))
        for entry in entries:
            x, y = _corner(entry.number)
            for needed in entry.needs:
                _arrow(ax, needed, entry.number)
            ax.add_patch(
                FancyBboxPatch(
                    (x, y), _WIDE, _HIGH, boxstyle="round,pad=0,rounding_size=0.06", linewidth=1.2, zorder=2,
                    facecolor=_FILL if entry.written else CARD, edgecolor=INK if entry.written else MUTED,
                    linestyle="-" if entry.written else (0, (3, 2)),
                )
            )  # fmt: skip
            ax.text(x + 0.06, y + 0.17, entry.number, fontsize=SMALL, weight="bold", va="center")
            ax.text(
                x + _WIDE - 0.06,
                y + 0.17,
                f"{entry.minutes}'",
                fontsize=SMALL - 1,
                va="center",
                ha="right",
                color=MUTED,
            )
            ax.text(x + _WIDE / 2, y + 0.43, _two_lines(entry.title), fontsize=SMALL - 1.6, va="center", ha="center")
        ax.set_xlim(-0.05, 6 * _COLUMN + _WIDE + 0.05)
        ax.set_ylim(3 * _ROW + _HIGH + 0.08, -0.08)
        ax.axis("off")
    return fig


def _corner(number: str) -> tuple[float, float]:
    column, row = _PLACES[number]
    return column * _COLUMN, row * _ROW


def _arrow(ax: Axes, start: str, end: str) -> None:
    (x0, y0), (x1, y1) = _corner(start), _corner(end)
    if x0 == x1:
        down = y1 > y0
        tail, head = (x0 + _WIDE / 2, y0 + _HIGH * down), (x1 + _WIDE / 2, y1 + _HIGH * (not down))
    else:
        tail, head = (x0 + _WIDE, y0 + _HIGH / 2), (x1, y1 + _HIGH / 2)
    ax.add_patch(
        FancyArrowPatch(
            tail, head, arrowstyle="-|>", mutation_scale=9, color=MUTED, linewidth=1.1, shrinkA=1, shrinkB=1, zorder=1
        )
    )


def _two_lines(title: str) -> str:
    words = title.replace("pack_", "pack_ ").split()
    if len(title) <= 11 or len(words) == 1:
        return title
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(" ".join(words[i:]))))
    return " ".join(words[:cut]) + "\n" + " ".join(words[cut:])
