"""The row painter: rows of a plan or a batch as coloured cells, with padding, cuts, walls and leaks.

A cell is one token. Padding is hatched. A torn edge marks where a document was cut. A wall with "reset" stands where a
sequence starts and the state is cleared. A dashed red arrow marks a place where state crosses from one document into
another. Rows of more than 64 positions are drawn as bars, one bar a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from mamba_lab.viz.colours import CARD, INK, LEAK, MUTED, PADDING, PADDING_HATCH, document_colour, document_name
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.layout import Piece, Row, Rows, known_lengths, rows_of
from mamba_lab.viz.style import SMALL, TEXT, TITLE, WIDTH, style

Words: TypeAlias = "Sequence[Sequence[str]] | Callable[[int], str]"

_PITCH, _PITCH_WITH_MARKS = 1.16, 1.66
"""Rows stand this many cell heights apart; the second leaves room for a "reset" or a leak arrow above each row."""
_GROUP_GAP = 0.45
_MARGIN = 0.12
_MOST_CELLS = 64
_CELL = 0.4  # inches, where the page has room


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
    max_rows: int | None = None,
) -> Axes:
    """Draw the rows of a plan or a batch as cells; the figure is ``ax.figure``.

    Args:
        rows: a PackingPlan, a Batch, or a list of them (drawn in groups, as buckets are).
        words: one list of words for each document, or a function from token id to text (batches only). None, or words
            too long for a cell: each cell has its document's letter and its position, "A0".
        lengths: length of each document. It shows cuts whose other half lies in no row.
        ax: the axes to draw on; None makes a figure of page width and the height the rows need.
        boundaries: the model resets at each sequence's start: draws the walls.
        leaks: draws the arrows where state crosses into another document. None: exactly where there are no boundaries.
        names: names of the documents; A, B, C, ... by default.
        title: above the first row.
        columns: how many cells wide the drawing is; the longest row by default. Give it to draw two pictures to one
            scale.
        max_rows: draws the first rows only; say so beside the picture.

    Raises:
        ValueError: rows is no plan, batch or list of them; words is a function and there are no token ids.
    """
    groups = rows_of(rows)
    lengths_known = known_lengths(groups, lengths)
    if max_rows is not None:
        groups = _first_rows(groups, max_rows)
    leaks = not boundaries if leaks is None else leaks
    if ax is None:
        ax = _own_axes(groups, boundaries, leaks, columns, bool(title), words)
    columns = columns or _longest(groups)
    Painter(ax, columns, words, names, lengths_known).paint(groups, boundaries, leaks)
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


def _first_rows(groups: list[list[Row]], n: int) -> list[list[Row]]:
    kept = []
    for group in groups:
        kept.append(group[:n])
        n -= len(kept[-1])
    return [group for group in kept if group]


def _longest(groups: list[list[Row]]) -> int:
    return max((row.length for group in groups for row in group), default=1)


def _pitch(groups: list[list[Row]], boundaries: bool, leaks: bool) -> float:
    rows = [row for group in groups for row in group]
    marked = any((boundaries and len(row.pieces) > 1) or (leaks and row.leaks()) for row in rows)
    return _PITCH_WITH_MARKS if marked else _PITCH


def _own_axes(
    groups: list[list[Row]], boundaries: bool, leaks: bool, columns: int | None, title: bool, words: Words | None
) -> Axes:
    width, height = size_in_cells(groups, boundaries=boundaries, leaks=leaks, columns=columns)
    wanted = _CELL
    if words is not None and not callable(words):  # cells as wide as the words, as far as the page goes
        wanted = max(_CELL, *(text_width(word, TEXT) / 72 + 0.1 for document in words for word in document))
    cell = min(wanted, (WIDTH - 0.2) / width)
    tall = min(_CELL, max(cell, 0.28)) * height  # many narrow cells stay high enough to see
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
        self.bars = columns > _MOST_CELLS
        page = ax.get_figure(root=True)
        assert page is not None
        # A cell's width in points: what text and marks are measured by.
        self.points = ax.get_position().width * page.get_figwidth() * 72 / (columns + 2 * _MARGIN)
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
        """

        Ords where the longest fits into a cell at 9 pt or more, else letter and position, else the letter,
        else nothing.
        """
        if self.bars:
            return
        width = self.points - 3
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
                "words is a function of token ids, and rows is a plan, which has none: "
                "give one list of words for each document"
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
        if self.bars and used < row.length:
            self.cell(used, y, PADDING, hatch="////", width=row.length - used)
        for column in range(used, 0 if self.bars else row.length):
            self.cell(column, y, PADDING, hatch="////")
        for piece in row.pieces:
            self._cuts(piece, y)
            if boundaries and piece.column:  # each row starts with a clear state anyway
                self.wall(piece.column, y, "" if self.bars else "reset")
        if leaks:
            for _, after in row.leaks():
                self.leak(after.column, y)

    def _piece(self, piece: Piece, y: float) -> None:
        if self.bars:
            width = piece.stop - piece.start
            self.cell(piece.column, y, document_colour(piece.document), width=width)
            name = self._name(piece.document)
            if text_width(name, SMALL) < width * self.points - 3:
                self._text(piece.column + width / 2, y, name, SMALL)
            return
        texts = self.texts(piece) if self.font else []
        for i in range(piece.stop - piece.start):
            self.cell(piece.column + i, y, document_colour(piece.document))
            if texts:
                self._text(piece.column + i + 0.5, y, texts[i], self.font)

    def _text(self, x: float, y: float, text: str, size: float) -> None:
        look: dict[str, Any] = {
            "ha": "center",
            "va": "center_baseline",
            "fontsize": size,
            "color": INK,
            "parse_math": False,
        }
        self.ax.text(x, y + 0.5, text, **look)

    def cell(self, column: float, y: float, colour: str, hatch: str | None = None, width: float = 1) -> None:
        edge = PADDING_HATCH if hatch else INK
        patch = Rectangle(
            (column, y), width, 1, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0.7, clip_on=False
        )
        self.ax.add_patch(patch)

    def _cuts(self, piece: Piece, y: float) -> None:
        """A torn edge: a zigzag in the ground's colour over the edge where the document goes on elsewhere."""
        if piece.start > 0:
            self.tear(piece.column, y, 1)
        if piece.stop < self.lengths.get(piece.document, piece.stop):
            self.tear(piece.end, y, -1)

    def tear(self, x: float, y: float, side: int) -> None:
        inch = 72 / self.points
        depth, teeth = 0.045 * inch * side, 4
        ys = [y - 0.04 + 1.08 * i / (2 * teeth) for i in range(2 * teeth + 1)]
        xs = [x + (depth if i % 2 else 0.0) for i in range(2 * teeth + 1)]
        self.ax.fill(
            [x - 0.03 * inch * side, *xs, x - 0.03 * inch * side],
            [ys[0], *ys, ys[-1]],
            color=CARD,
            linewidth=0,
            linestyle="-",  # a line of no width with dashes is an error in matplotlib 3.10
            zorder=3,
        )
        self.ax.plot(xs, ys, color=INK, linewidth=1.1, linestyle="-", zorder=4, clip_on=False)

    def wall(self, x: float, y: float, text: str = "reset") -> None:
        self.ax.plot(
            [x, x], [y - 0.2, y + 1.06], color=INK, linewidth=3.2, linestyle="-", solid_capstyle="butt", zorder=5
        )
        self.ax.text(x, y - 0.24, text, ha="center", va="bottom", fontsize=SMALL, color=MUTED)

    def leak(self, x: float, y: float) -> None:
        reach = min(0.62, (0.22 if self.bars else 0.28) * 72 / self.points)  # as high as the room above a row
        arrow = FancyArrowPatch(
            (max(x - reach, 0), y - 0.03),
            (min(x + reach, self.columns), y - 0.03),
            connectionstyle=f"arc3,rad={-0.55 if not self.bars else -0.35}",
            arrowstyle="-|>",
            mutation_scale=11,
            shrinkA=0,
            shrinkB=0,
        )
        arrow.set(color=LEAK, linewidth=1.7, linestyle=(0, (3, 1.4)), zorder=6, gid="leak")
        self.ax.add_patch(arrow)
        self.ax.plot([x, x], [y - 0.02, y + 1.02], color=LEAK, linewidth=2.4, linestyle=(0, (2, 1)), zorder=5)
