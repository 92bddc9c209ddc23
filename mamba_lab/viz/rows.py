"""The row painter: rows of a plan or a batch as coloured cells, with padding, cuts, walls and leaks.

A cell is one token. Padding is hatched. A torn edge marks where a document was cut. A wall with "reset" stands where a sequence
starts and the state is cleared. A dashed red arrow marks a place where state crosses from one document into another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from mamba_lab.viz.colours import CARD, INK, LEAK, MUTED, PADDING, PADDING_HATCH, document_colour, document_name
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import SMALL, TEXT, TITLE, WIDTH, style

if TYPE_CHECKING:
    from mamba_lab.batching import Batch, PackingPlan

    Rows = Union[PackingPlan, Batch, Sequence[Union[PackingPlan, Batch]]]

Words = Union[Sequence[Sequence[str]], Callable[[int], str]]

_PITCH, _PITCH_WITH_MARKS = 1.16, 1.66
"""Rows stand this many cell heights apart; the second leaves room for a "reset" or a leak arrow above each row."""
_GROUP_GAP = 0.45
_MARGIN = 0.12


@dataclass(frozen=True)
class Piece:
    """Tokens ``start:stop`` of document ``document``, at ``column`` of a row; ``ids`` are its token ids where known."""

    document: int
    start: int
    stop: int
    column: int
    ids: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.column + self.stop - self.start


@dataclass(frozen=True)
class Row:
    """One row: its pieces in order and how many positions it has. What the pieces leave free is padding."""

    pieces: tuple[Piece, ...]
    length: int

    @property
    def n_tokens(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)

    def leaks(self) -> list[tuple[Piece, Piece]]:
        """Neighbours where a model without boundaries carries state from one document (or passage) into another."""
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return [(a, b) for a, b in pairs if (b.document, b.start) != (a.document, a.stop)]


def rows_of(rows: Rows) -> list[list[Row]]:
    """Groups of rows: one group for a plan or a batch, several for a sequence of them (buckets have rows of several lengths)."""
    if isinstance(rows, (list, tuple)):
        return [group for part in rows for group in rows_of(part)]
    if hasattr(rows, "capacity"):
        return [_plan_rows(rows)]
    if hasattr(rows, "input_ids"):
        return [_batch_rows(rows)]
    raise ValueError(f"rows is a {type(rows).__name__}: expected a PackingPlan, a Batch, or a list of them")


def valid_ratio(rows: Rows) -> float:
    """Valid tokens / all positions, over all rows; 1.0 for no position."""
    every = [row for group in rows_of(rows) for row in group]
    positions = sum(row.length for row in every)
    return sum(row.n_tokens for row in every) / positions if positions else 1.0


def draw_rows(
    rows: Rows,
    *,
    words: Words | None = None,
    lengths: Sequence[int] | None = None,
    ax: Axes | None = None,
    boundaries: bool = True,
    leaks: bool | None = None,
    names: Sequence[str] | None = None,
    title: str | None = None,
    columns: int | None = None,
) -> Axes:
    """Draw the rows of a plan or a batch as cells; the figure is ``ax.figure``.

    Args:
        rows: a PackingPlan, a Batch, or a list of them (drawn in groups, as buckets are).
        words: one list of words for each document, or a function from token id to text (batches only). None, or words too long
            for a cell: each cell has its document's letter and its position, "A0".
        lengths: length of each document. It shows cuts whose other half lies in no row.
        ax: the axes to draw on; None makes a figure of page width and the height the rows need.
        boundaries: the model resets at each sequence's start: draws the walls.
        leaks: draws the arrows where state crosses into another document. None: exactly where there are no boundaries.
        names: names of the documents; A, B, C, ... by default.
        title: above the first row.
        columns: how many cells wide the drawing is; the longest row by default. Give it to compare pictures at one scale.
    """
    groups = rows_of(rows)
    leaks = not boundaries if leaks is None else leaks
    if ax is None:
        ax = _own_axes(groups, boundaries, leaks, columns, bool(title))
    columns = columns or _longest(groups)
    Painter(ax, columns, words, names, _known_lengths(groups, lengths)).paint(groups, boundaries, leaks)
    if title:
        with style():
            ax.set_title(title, fontsize=TITLE, loc="left", pad=6)
    return ax


def size_in_cells(
    groups: list[list[Row]], *, boundaries: bool = True, leaks: bool = False, columns: int | None = None
) -> tuple[float, float]:
    """Width and height of the drawing, where a cell is 1 by 1."""
    pitch = _pitch(groups, boundaries, leaks)
    height = pitch * max(1, sum(map(len, groups))) + _GROUP_GAP * max(0, len(groups) - 1)
    return (columns or _longest(groups)) + 2 * _MARGIN, height + _MARGIN


def _longest(groups: list[list[Row]]) -> int:
    return max((row.length for group in groups for row in group), default=1)


def _pitch(groups: list[list[Row]], boundaries: bool, leaks: bool) -> float:
    rows = [row for group in groups for row in group]
    marked = any((boundaries and len(row.pieces) > 1) or (leaks and row.leaks()) for row in rows)
    return _PITCH_WITH_MARKS if marked else _PITCH


def _own_axes(groups: list[list[Row]], boundaries: bool, leaks: bool, columns: int | None, title: bool) -> Axes:
    width, height = size_in_cells(groups, boundaries=boundaries, leaks=leaks, columns=columns)
    cell = min(0.42, (WIDTH - 0.2) / width)
    tall = max(cell, 0.28) * height  # many narrow cells stay high enough to see
    top = 0.36 if title else 0.06
    with style():
        fig = Figure(figsize=(WIDTH, tall + top + 0.06))
    rect = (0.1 / WIDTH, 0.06 / fig.get_figheight(), cell * width / WIDTH, tall / fig.get_figheight())
    return fig.add_axes(rect)


class Painter:
    """Draws cells and marks on axes whose units are cells, y downwards."""

    def __init__(
        self, ax: Axes, columns: int, words: Words | None, names: Sequence[str] | None, lengths: dict[int, int]
    ) -> None:
        self.ax, self.columns, self.lengths = ax, columns, lengths
        self.words, self.names = words, names
        self.texts, self.font = self._letters, 0.0  # no size: the cells are too narrow for text

    def paint(self, groups: list[list[Row]], boundaries: bool, leaks: bool) -> None:
        with style():
            self._choose_text(groups)
            pitch = _pitch(groups, boundaries, leaks)
            y = 0.0
            for number, group in enumerate(groups):
                y += _GROUP_GAP if number else 0.0
                for row in group:
                    self.row(row, y + pitch - 1, boundaries, leaks)
                    y += pitch
            self.frame(max(y, pitch) + _MARGIN)

    def frame(self, height: float) -> None:
        self.ax.set_xlim(-_MARGIN, self.columns + _MARGIN)
        self.ax.set_ylim(height, 0.0)
        self.ax.axis("off")

    def _choose_text(self, groups: list[list[Row]]) -> None:
        """Words where the longest fits into a cell at 9 pt or more, else letter and position, else the letter, else nothing."""
        width = self.ax.get_position().width * self.ax.figure.get_figwidth() * 72 / (self.columns + 2 * _MARGIN) - 3
        pieces = [piece for group in groups for row in group for piece in row.pieces]
        for texts in (self._words, self._positions, self._letters):
            longest = [text for piece in pieces for text in texts(piece)]
            for size in (TEXT, SMALL):
                if longest and max(text_width(text, size) for text in set(longest)) <= width:
                    self.texts, self.font = texts, size
                    return

    def _words(self, piece: Piece) -> list[str]:
        if self.words is None:
            return []
        if not callable(self.words):
            return [str(word) for word in self.words[piece.document][piece.start : piece.stop]]
        if not piece.ids:
            raise ValueError(
                "words is a function of token ids, and rows is a plan, which has none: give one list of words for each document"
            )
        return [self.words(i) for i in piece.ids]

    def _positions(self, piece: Piece) -> list[str]:
        return [f"{self._name(piece.document)}{i}" for i in range(piece.start, piece.stop)]

    def _letters(self, piece: Piece) -> list[str]:
        return [self._name(piece.document)] * (piece.stop - piece.start)

    def _name(self, document: int) -> str:
        return self.names[document] if self.names is not None else document_name(document)

    def row(self, row: Row, y: float, boundaries: bool, leaks: bool) -> None:
        for piece in row.pieces:
            self._piece(piece, y)
        used = row.pieces[-1].end if row.pieces else 0
        for column in range(used, row.length):
            self.cell(column, y, PADDING, hatch="////")
        for piece in row.pieces:
            self._cuts(piece, y)
        if boundaries:
            for piece in row.pieces:
                if piece.column:  # each row starts with a clear state anyway
                    self.wall(piece.column, y)
        if leaks:
            for _, after in row.leaks():
                self.leak(after.column, y)

    def _piece(self, piece: Piece, y: float) -> None:
        texts = self.texts(piece)
        for i in range(piece.stop - piece.start):
            self.cell(piece.column + i, y, document_colour(piece.document))
            if self.font:
                self.ax.text(
                    piece.column + i + 0.5, y + 0.5, texts[i], ha="center", va="center_baseline", fontsize=self.font, color=INK,
                    parse_math=False,
                )  # fmt: skip

    def cell(self, column: float, y: float, colour: str, hatch: str | None = None) -> None:
        edge = PADDING_HATCH if hatch else INK
        self.ax.add_patch(Rectangle((column, y), 1, 1, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0.7))

    def _cuts(self, piece: Piece, y: float) -> None:
        """A torn edge: a zigzag in the ground's colour over the edge where the document goes on elsewhere."""
        if piece.start > 0:
            self.tear(piece.column, y, 1)
        if piece.stop < self.lengths.get(piece.document, piece.stop):
            self.tear(piece.end, y, -1)

    def tear(self, x: float, y: float, side: int) -> None:
        depth, teeth = 0.09 * side, 4
        ys = [y - 0.04 + 1.08 * i / (2 * teeth) for i in range(2 * teeth + 1)]
        xs = [x + (depth if i % 2 else 0.0) for i in range(2 * teeth + 1)]
        self.ax.fill([x - 0.06 * side, *xs, x - 0.06 * side], [ys[0], *ys, ys[-1]], color=CARD, linewidth=0, zorder=3)
        self.ax.plot(xs, ys, color=INK, linewidth=1.1, linestyle="-", zorder=4)

    def wall(self, x: float, y: float, text: str = "reset") -> None:
        self.ax.plot(
            [x, x], [y - 0.2, y + 1.06], color=INK, linewidth=3.2, linestyle="-", solid_capstyle="butt", zorder=5
        )
        self.ax.text(x, y - 0.24, text, ha="center", va="bottom", fontsize=SMALL, color=MUTED)

    def leak(self, x: float, y: float) -> None:
        arrow = FancyArrowPatch(
            (x - 0.62, y - 0.03), (x + 0.62, y - 0.03), connectionstyle="arc3,rad=-0.55", arrowstyle="-|>", mutation_scale=11,
            color=LEAK, linewidth=1.7, linestyle=(0, (3, 1.4)), zorder=6, shrinkA=0, shrinkB=0,
        )  # fmt: skip
        self.ax.add_patch(arrow)
        self.ax.plot([x, x], [y - 0.02, y + 1.02], color=LEAK, linewidth=2.4, linestyle=(0, (2, 1)), zorder=5)
        arrow.set_gid("leak")


def _plan_rows(plan: Any) -> list[Row]:
    offsets, sequence, start, stop = (
        [int(v) for v in getattr(plan, k)] for k in ("offsets", "sequence", "start", "stop")
    )
    rows = []
    for first, last in zip(offsets, offsets[1:], strict=False):
        pieces, column = [], 0
        for i in range(first, last):
            pieces.append(Piece(sequence[i], start[i], stop[i], column))
            column += stop[i] - start[i]
        rows.append(Row(tuple(pieces), int(plan.capacity)))
    return rows


def _batch_rows(batch: Any) -> list[Row]:
    """A batch doesn't say at which token a piece begins: pieces of one document are taken to follow one another."""
    n_rows, length = batch.input_ids.shape
    ids = batch.input_ids.reshape(-1).tolist()
    cuts = [int(v) for v in batch.boundaries.cu_seqlens]
    documents = [int(v) for v in batch.sequence]
    reached: dict[int, int] = {}
    pieces: list[list[Piece]] = [[] for _ in range(n_rows)]
    for document, first, last in zip(documents, cuts, cuts[1:], strict=False):
        if document < 0 or first == last:
            continue
        start = reached.get(document, 0)
        reached[document] = start + last - first
        row, column = divmod(first, length)
        pieces[row].append(Piece(document, start, start + last - first, column, tuple(ids[first:last])))
    return [Row(tuple(p), length) for p in pieces]


def _known_lengths(groups: list[list[Row]], lengths: Sequence[int] | None) -> dict[int, int]:
    if lengths is not None:
        return {i: int(n) for i, n in enumerate(lengths)}
    ends: dict[int, int] = {}
    for group in groups:
        for row in group:
            for piece in row.pieces:
                ends[piece.document] = max(ends.get(piece.document, 0), piece.stop)
    return ends
