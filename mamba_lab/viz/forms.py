"""One row and, cell by cell below it, what is said of its tokens: targets, positions, sequence numbers, edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from mamba_lab.viz.colours import CARD, GRID, INK, LEAK, MUTED
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.layout import Rows, rows_of
from mamba_lab.viz.rows import Words, draw_rows, size_in_cells
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, style

_LINE = 0.33  # inches, the height of a cell
_WIDEST = 0.62  # inches, where the page has room
_GAP = 0.25  # cells between two lines
_SKY = 0.9  # cells above the row, for arrows


def row_with_forms(
    row: Rows,
    below: Mapping[str, Sequence[object]],
    *,
    edges: Mapping[str, Sequence[int]] | None = None,
    crossed: Mapping[str, Collection[int]] | None = None,
    words: Words | None = None,
    boundaries: bool = True,
    arrows: Sequence[tuple[int, int]] = (),
) -> Figure:
    """A row's tokens and one line a form below them.

    Args:
        row: a plan with one bin, or a batch with one row, of L positions.
        below: [L] values by name, one a token; each stands in the cell below its token.
        edges: places 0..L by name, such as ``cu_seqlens``; each stands below the edge that it counts. Equal ones share
            a place.
        crossed: places of ``below`` that are wrong, by name: red and struck out.
        words: as in :func:`mamba_lab.viz.rows.draw_rows`.
        boundaries: draws a wall at each sequence's start.
        arrows: (from, to) tokens of leaks, drawn above the row in place of those that cross each start.

    Raises:
        ValueError: more or fewer rows than one; a line of another length; an edge or an arrow outside the row.
    """
    groups = rows_of(row)
    rows = [one for group in groups for one in group]
    if len(rows) != 1:
        raise ValueError(f"row holds {len(rows)} rows: expected one, such as pack_collate(..., rows=[0])")
    length, edges, crossed = rows[0].length, edges or {}, crossed or {}
    for name, values in below.items():
        if len(values) != length:
            raise ValueError(f"below[{name!r}] has {len(values)} values, expected {length}, one for each position")
    for name, places in edges.items():
        if any(not 0 <= place <= length for place in places):
            raise ValueError(f"edges[{name!r}] is {list(places)}: expected places from 0 to {length}")
    for ends in arrows:
        if any(not 0 <= place < length for place in ends):
            raise ValueError(f"arrows has {ends}: expected tokens from 0 to {length - 1}")
    leaks = not boundaries and not arrows
    sky = _SKY if arrows else 0.0
    columns, height = size_in_cells(groups, boundaries=boundaries, leaks=leaks)
    tall = height + (1 + _GAP) * (len(below) + len(edges))
    named = max(text_width(name, TEXT) for name in ("token", *below, *edges)) / 72 + 0.25
    cell = min(_WIDEST, (WIDTH - named - 0.16) / columns)
    with style():
        fig = Figure(figsize=(WIDTH, _LINE * (tall + sky) + 0.14))
        whole = fig.get_figheight()
        ax = fig.add_axes((named / WIDTH, 0.07 / whole, cell * columns / WIDTH, _LINE * (tall + sky) / whole))
        draw_rows(row, words=words, ax=ax, boundaries=boundaries, leaks=leaks)
        y = ax.get_ylim()[0]
        margin = -ax.get_xlim()[0]
        _name(ax, "token", y - margin - 0.5)
        filled = rows[0].pieces[-1].end if rows[0].pieces else 0
        if boundaries and 0 < filled < length:
            _wall(ax, filled, y - margin - 1)
        # Padding is a sequence too, so a wall stands before it.
        starts = [piece.end for piece in rows[0].pieces if piece.end < length] if boundaries else []
        for name, values in below.items():
            _name(ax, name, y + 0.5)
            _cells(ax, y, values, crossed.get(name, ()), cell * 72 - 3)
            ax.vlines(starts, y, y + 1, color=INK, linewidth=1.6, linestyle="-", zorder=3)
            y += 1 + _GAP
        for name, places in edges.items():
            _name(ax, name, y + 0.6)
            _edges(ax, y, places)
            y += 1 + _GAP
        top = height - margin - 1  # of the row's cells
        for start, stop in arrows:
            _arrow(ax, start, stop, top - 0.04)
        ax.set_ylim(tall, -sky)
    return fig


def _arrow(ax: Axes, start: int, stop: int, y: float) -> None:
    """An arc of one height, however far it goes, so that several from one token stay apart by where they end."""
    bend = -min(0.5, 0.75 / max(1, abs(stop - start))) if start < stop else min(0.5, 0.75 / max(1, abs(stop - start)))
    arrow = FancyArrowPatch((start + 0.5, y), (stop + 0.5, y), arrowstyle="-|>", mutation_scale=11, shrinkA=0,
                            shrinkB=0, connectionstyle=f"arc3,rad={bend}", gid="arrow", clip_on=False)  # fmt: skip
    arrow.set(color=LEAK, linewidth=1.7, linestyle=(0, (3, 1.4)), zorder=6)
    ax.add_patch(arrow)


def _name(ax: Axes, name: str, y: float) -> None:
    ax.text(-0.3, y, name, ha="right", va="center_baseline", fontsize=TEXT, color=INK, parse_math=False)


def _wall(ax: Axes, x: float, y: float) -> None:
    """What stands before a sequence, here before padding: it is one, too."""
    ax.plot([x, x], [y - 0.2, y + 1.06], color=INK, linewidth=3.2, linestyle="-", solid_capstyle="butt", zorder=5)
    ax.text(x, y - 0.24, "reset", ha="center", va="bottom", fontsize=SMALL, color=MUTED)


def _cells(ax: Axes, y: float, values: Sequence[object], crossed: Collection[int], room: float) -> None:
    longest = max((text_width(str(value), TEXT) for value in values), default=0.0)
    size = TEXT if longest <= room else SMALL
    for place, value in enumerate(values):
        wrong = place in crossed
        ax.add_patch(
            Rectangle(
                (place, y), 1, 1, facecolor=CARD, edgecolor=LEAK if wrong else GRID, linewidth=1.6 if wrong else 0.8,
                zorder=4 if wrong else 2, clip_on=False, gid="crossed" if wrong else None,
            )
        )  # fmt: skip
        ax.text(
            place + 0.5, y + 0.5, str(value), ha="center", va="center_baseline", fontsize=size, zorder=5,
            color=LEAK if wrong else MUTED if value == -100 else INK, parse_math=False,
        )  # fmt: skip
        if wrong:
            ax.plot([place, place + 1], [y + 1, y], color=LEAK, linewidth=1.2, linestyle="-", alpha=0.5, zorder=4)


def _edges(ax: Axes, y: float, places: Sequence[int]) -> None:
    """Each number below its edge; equal ones beside each other, as many as there are."""
    for place in dict.fromkeys(places):
        ax.plot([place, place], [y - _GAP, y + 0.22], color=INK, linewidth=1.2, linestyle="-", clip_on=False)
        text = ", ".join([str(place)] * list(places).count(place))
        ax.text(place, y + 0.65, text, ha="center", va="center_baseline", fontsize=TEXT, color=INK)
