"""Who has how much of a step: one bar a mean, one piece a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mamba_lab.viz.colours import CARD, INK, document_colour
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import SMALL, new_figure, style

_POINTS_OF_A_BAR = 430.0


def share_rows(
    shares: Mapping[str, Sequence[float]], *, names: Sequence[str], what: str = "share of the step"
) -> Figure:
    """Stacked bars: ``shares`` maps a bar's name to what each sequence puts in; each bar is scaled to 100%.

    Args:
        shares: [n] numbers that are not negative, by the bar's name.
        names: [n], written into the pieces where they fit, with their percentage where that fits too.

    Raises:
        ValueError: no bar, a bar of another length than ``names``, a negative share, or a bar without any.
    """
    if not shares:
        raise ValueError("shares is empty: expected at least one bar")
    for bar, values in shares.items():
        if len(values) != len(names):
            raise ValueError(
                f"shares[{bar!r}] has {len(values)} entries and names {len(names)}: one for each is needed"
            )
        if min(values, default=0.0) < 0 or not sum(values) > 0:
            raise ValueError(f"shares[{bar!r}] is {list(values)}: expected numbers from 0 on, not all 0")
    with style():
        fig = new_figure(0.75 + 0.62 * len(shares))
        ax = fig.subplots()
        for y, values in enumerate(shares.values()):
            left, total = 0.0, sum(values)
            for i, value in enumerate(values):
                width = value / total
                ax.barh(y, width, 0.72, left=left, color=document_colour(i), edgecolor=CARD, linewidth=1.5)
                ax.text(
                    left + width / 2, y, _label(names[i], width), ha="center", va="center", color=INK, fontsize=SMALL
                )
                left += width
        ax.set_yticks(range(len(shares)), list(shares))
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(shares) - 0.5, -0.5)
        ax.set_xlim(0, 1)
        ax.set_xlabel(what)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return fig


def _label(name: str, width: float) -> str:
    room = width * _POINTS_OF_A_BAR - 4
    for label in (f"{name} {width:.0%}", f"{name}\n{width:.0%}", name):
        if max(text_width(line, SMALL) for line in label.split("\n")) <= room:
            return label
    return ""
