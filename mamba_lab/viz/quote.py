"""Text that a model wrote, as a picture: what is written may differ between machines, a picture is not compared."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from matplotlib.figure import Figure

from mamba_lab.viz.colours import DOCUMENT_COLOURS, INK, MUTED
from mamba_lab.viz.style import SMALL, WIDTH, new_figure, style

_LINE = 0.175  # inches
_COLUMNS = 84  # characters of the fixed-width font that fit the page
_MOST_LINES = 14


def quotes(texts: Mapping[str, str]) -> Figure:
    """A block for each text in a fixed-width font, its name above: prompts and what follows them, for example.

    Long lines are folded, and after 14 lines a block ends with an ellipsis.
    """
    if not texts:
        raise ValueError("texts is empty: expected at least one text by its name")
    blocks = {name: _lines(text) for name, text in texts.items()}
    height = sum(0.34 + _LINE * len(lines) + 0.16 for lines in blocks.values())
    with style():
        fig = new_figure(height)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(height, 0)
        ax.axis("off")
        y = 0.0
        for name, lines in blocks.items():
            ax.text(0.12, y + 0.18, name, fontsize=SMALL, color=MUTED, va="center", parse_math=False)
            y += 0.34
            bottom = y + _LINE * len(lines)
            ax.plot([0.14, 0.14], [y, bottom], color=DOCUMENT_COLOURS["A"], linewidth=3, linestyle="-")
            for number, line in enumerate(lines):
                ax.text(
                    0.26, y + _LINE * (number + 0.5), line, fontsize=SMALL, family="DejaVu Sans Mono", color=INK,
                    va="center", parse_math=False,
                )  # fmt: skip
            y = bottom + 0.16
    return fig


def _lines(text: str) -> list[str]:
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text.expandtabs(4)).strip("\n")
    lines = [
        part for line in printable.split("\n") for part in textwrap.wrap(line, _COLUMNS, drop_whitespace=False) or [""]
    ]
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "…"]
