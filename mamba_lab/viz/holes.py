"""Packs drawn to scale with the holes they leave, and one later document that would have filled such a hole."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import FuncFormatter

from mamba_lab.batching import PackingPlan
from mamba_lab.viz.colours import CARD, INK, PADDING, PADDING_HATCH, document_colour
from mamba_lab.viz.layout import rows_of
from mamba_lab.viz.style import SMALL, new_figure, style

_SOONEST = 2  # rows between a hole and its filler: in the next row it could have been taken by waiting


def holes(plan: PackingPlan, rows: int = 10) -> Figure:
    """The first ``rows`` packs as bars; an arrow leads from the longest later document that fits a hole to that hole.

    The title counts the tokens and positions of these rows. Without a document that fits a hole there is no arrow.

    Raises:
        ValueError: the plan has no bins, or ``rows`` is below 1.
    """
    if plan.n_bins == 0 or rows < 1:
        raise ValueError(f"rows is {rows} and the plan has {plan.n_bins} bins: expected at least one of each")
    drawn = rows_of(plan)[0][:rows]
    with style():
        fig = new_figure(0.85 + 0.24 * len(drawn))
        ax = fig.subplots()
        for y, row in enumerate(drawn):
            for piece in row.pieces:
                look: dict[str, Any] = {"facecolor": document_colour(piece.document), "edgecolor": CARD}
                ax.add_patch(Rectangle((piece.column, y + 0.1), piece.stop - piece.start, 0.8, linewidth=0.8, **look))
            look = {"facecolor": PADDING, "edgecolor": PADDING_HATCH, "hatch": "////"}
            ax.add_patch(Rectangle((row.n_tokens, y + 0.1), row.length - row.n_tokens, 0.8, linewidth=0.4, **look))
        if (found := _filler(plan, len(drawn))) is not None:
            hole, there, number = found
            piece = drawn[there].pieces[number]
            size = piece.stop - piece.start
            places = (drawn[hole].n_tokens, hole), (piece.column, there)
            for dash, (x, y) in zip(((0, (3, 1.5)), "-"), places, strict=True):
                ax.add_patch(
                    Rectangle((x, y + 0.1), size, 0.8, fill=False, edgecolor=INK, linewidth=2, linestyle=dash, zorder=4)
                )
            start, end = (places[1][0] + size / 2, there + 0.1), (places[0][0] + size / 2, hole + 0.9)
            arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, shrinkA=0, shrinkB=0)
            arrow.set(color=INK, linewidth=1.8, zorder=5, gid="fits")
            ax.add_patch(arrow)
            ax.annotate(
                f"{size:,} tokens would fit here", (end[0], hole + 0.5), ha="center", va="center_baseline",
                fontsize=SMALL, zorder=6, bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        tokens, positions = sum(row.n_tokens for row in drawn), sum(row.length for row in drawn)
        ax.set_title(f"{tokens:,} tokens in {positions:,} positions: {1 - tokens / positions:.0%} padding")
        ax.set_xlim(0, plan.capacity)
        ax.set_ylim(len(drawn), 0)
        ax.set_yticks([])
        ax.set_ylabel("rows")
        ax.set_xlabel("position in the row (tokens)")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    return fig


def _filler(plan: PackingPlan, rows: int) -> tuple[int, int, int] | None:
    """Row of a hole, row of a later piece, and that piece's place in its row: the longest piece that fits a hole."""
    room = plan.capacity - plan.bin_tokens[:rows]
    best: tuple[float, int, int, int] | None = None
    for hole in range(rows):
        for there in range(hole + _SOONEST, rows):
            first, last = plan.offsets[there], plan.offsets[there + 1]
            sizes = (plan.stop - plan.start)[first:last]
            for number in np.flatnonzero(sizes <= room[hole]).tolist():
                # The longest, so a small hole filled exactly does not win over a large one filled nearly.
                candidate = (-float(sizes[number]), hole, there, number)
                best = candidate if best is None else min(best, candidate)
    return None if best is None else best[1:]
