"""What the blocks of a kernel load: one line a tile, its own tokens, its halo, and zeros before a sequence's start."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mamba_lab.viz.colours import CARD, GRID, INK, MUTED, document_colour, document_name
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, style

_LINE = 0.3  # inches, the height of a cell
_CELL = 0.44  # inches, where the page has room
_LABEL = 0.95  # inches, left of the cells
_PITCH, _APART = 1.4, 0.45  # cells between two lines, and between two sequences of a tile


def tile_loads(cu_seqlens: Sequence[int], tile: int, width: int) -> Figure:
    """For each tile of a pack the rows that it loads to convolve its tokens.

    Filled cells with a dark edge are the tile's own tokens. Hatched ones are its halo, tokens of the tile before. "0"
    stands where the taps reach beyond a sequence's start.

    Args:
        cu_seqlens: where sequences start and end.
        tile: tokens a tile.
        width: the convolution's taps W.

    Raises:
        ValueError: ``tile`` or ``width`` below 1.
    """
    if tile < 1 or width < 1:
        raise ValueError(f"tile is {tile} and width is {width}: expected at least 1")
    lines: list[list[tuple[int, int, int, int]]] = []  # of each tile: (sequence, its start, first token, end)
    for begin in range(0, cu_seqlens[-1], tile):
        spans = enumerate(pairwise(cu_seqlens))
        here = [(s, start, max(start, begin), min(stop, begin + tile)) for s, (start, stop) in spans]
        lines.append([part for part in here if part[2] < part[3]])
    sizes = [sum(b - a + width - 1 for _, _, a, b in line) + _APART * (len(line) - 1) for line in lines]
    cell = min(_CELL, (WIDTH - _LABEL - 0.1) / max(sizes))
    tall = _PITCH * len(lines)
    with style():
        fig = Figure(figsize=(WIDTH, tall * _LINE + 0.1))
        ax = fig.add_axes((_LABEL / WIDTH, 0, cell * max(sizes) / WIDTH, 1))
        ax.set_xlim(0, max(sizes))
        ax.set_ylim(tall - 0.2, -0.2)
        ax.axis("off")
        for number, line in enumerate(lines):
            y, x = number * _PITCH, 0.0
            ax.annotate(f"tile {number}", (0, y + 0.5), xytext=(-8, 0), textcoords="offset points", ha="right",
                        va="center_baseline", fontsize=TEXT, annotation_clip=False)  # fmt: skip
            for s, start, a, b in line:
                for t in range(a - (width - 1), b):
                    kind = "own" if t >= a else "halo" if t >= start else "zero"
                    ax.add_patch(
                        Rectangle(
                            (x + 0.04, y + 0.05), 0.92, 0.9, gid=kind, linewidth=1.6 if kind == "own" else 0.8,
                            facecolor=CARD if kind == "zero" else document_colour(s),
                            edgecolor=INK if kind == "own" else GRID if kind == "zero" else CARD,
                            hatch="////" if kind == "halo" else None,
                        )
                    )  # fmt: skip
                    text = "0" if kind == "zero" else f"{document_name(s)}{t - start}"
                    label = ax.text(x + 0.5, y + 0.5, text, ha="center", va="center_baseline", fontsize=SMALL,
                                    color=MUTED if kind == "zero" else INK)  # fmt: skip
                    if kind == "halo":  # a clear ground between letters and hatches
                        label.set_bbox({"facecolor": document_colour(s), "edgecolor": "none", "pad": 0.6})
                    x += 1
                x += _APART
    return fig
