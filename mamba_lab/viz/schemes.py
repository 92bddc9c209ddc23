"""The schemes that pictures and the batch painter compare, and the one picture: four documents under four schemes.

Each scheme is an entry of SCHEMES. Its rows come from the package's own plans, so a picture shows what the batches do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from mamba_lab.batching import (
    PackingPlan,
    bucket_by_length,
    chunk_fixed,
    pack_best_fit,
    pack_greedy,
    pack_sequential,
)
from mamba_lab.viz.colours import INK, LEAK, MUTED, PADDING, document_colour
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.layout import Row, rows_of, valid_ratio
from mamba_lab.viz.rows import Painter, Words, draw_rows, size_in_cells
from mamba_lab.viz.style import SMALL, TEXT, TITLE, WIDTH, style

Plans = list[PackingPlan]


@dataclass(frozen=True)
class Scheme:
    """How documents become rows.

    ``plans(lengths, capacity, buffer)`` gives the plans, one for each group of rows of one length. ``boundaries`` says
    whether the model learns where sequences start. ``capacity`` and ``buffer`` name what the two numbers mean here;
    None: not used.
    """

    plans: Callable[[Sequence[int], int, int], Plans]
    boundaries: bool = True
    capacity: str | None = "capacity"
    buffer: str | None = None


def padded(lengths: Sequence[int], capacity: int = 0, buffer: int = 0) -> Plans:
    """Each document in a row of its own, padded to the longest."""
    return [_one_per_row(range(len(lengths)), lengths)] if len(lengths) else []


def bucketed(lengths: Sequence[int], capacity: int = 0, buffer: int = 2) -> Plans:
    """Documents of like length together in ``buffer`` buckets; each bucket is padded to its longest."""
    if not len(lengths):
        return []
    buckets = bucket_by_length(np.asarray(lengths, dtype=np.int64), n_buckets=buffer)
    groups = [[int(i) for i in buckets.indices(b)] for b in range(buckets.n_buckets)]
    return [_one_per_row(group, lengths) for group in groups if group]


def fixed_per_document(lengths: Sequence[int], capacity: int, buffer: int = 0) -> Plans:
    """Each document cut into chunks of ``capacity``, its last chunk padded."""
    return [chunk_fixed(np.asarray(lengths, dtype=np.int64), capacity)]


def joined_stream(lengths: Sequence[int], capacity: int, buffer: int = 0) -> Plans:
    """All documents joined to one stream, cut every ``capacity`` tokens."""
    return [chunk_fixed(np.asarray(lengths, dtype=np.int64), capacity, across=True)]


def packed_in_order(lengths: Sequence[int], capacity: int, buffer: int = 0) -> Plans:
    """Whole documents in their order; one that does not fit closes the row. Longer ones than a row are split."""
    return [pack_sequential(np.asarray(lengths, dtype=np.int64), capacity, overflow="split")]


def packed_from_buffer(lengths: Sequence[int], capacity: int, buffer: int = 2) -> Plans:
    """``buffer`` documents at a time, longest first, each where the least room is left; longer ones are split."""
    return [pack_greedy(np.asarray(lengths, dtype=np.int64), capacity, buffer_size=buffer, overflow="split")]


def best_fit(lengths: Sequence[int], capacity: int, buffer: int = 0) -> Plans:
    """All documents at once, longest first, each where the least room is left; longer ones are split."""
    return [pack_best_fit(np.asarray(lengths, dtype=np.int64), capacity, overflow="split")]


def one_pack(lengths: Sequence[int], capacity: int = 0, buffer: int = 0) -> Plans:
    """All documents whole in one row."""
    bins = [list(range(len(lengths)))]
    return [PackingPlan.from_bins(bins, np.asarray(lengths, dtype=np.int64), int(sum(lengths)))]


SCHEMES: dict[str, Scheme] = {
    "padded": Scheme(padded, capacity=None),
    "bucketed": Scheme(bucketed, capacity=None, buffer="buckets"),
    "fixed chunks": Scheme(fixed_per_document),
    "joined stream": Scheme(joined_stream, boundaries=False),
    "packed in order": Scheme(packed_in_order),
    "packed from a buffer": Scheme(packed_from_buffer, buffer="buffer"),
    "best fit": Scheme(best_fit),
}
"""Schemes of the batch painter, in the order of the course. A new one is one more entry."""


_GAP = 0.95  # cells between two panels
_FLAT = 0.8  # height of a cell / its width
_KEY_WIDE = 1.4


@dataclass(frozen=True)
class Panel:
    """One scheme of the picture: its heading, its plans and what it costs."""

    heading: str
    plans: Plans
    boundaries: bool

    @property
    def rows(self) -> list[Row]:
        return [row for group in rows_of(self.plans) for row in group]

    @property
    def n_tokens(self) -> int:
        return sum(row.n_tokens for row in self.rows)

    @property
    def n_positions(self) -> int:
        return sum(row.length for row in self.rows)

    @property
    def n_leaks(self) -> int:
        return 0 if self.boundaries else sum(len(row.leaks()) for row in self.rows)

    @property
    def n_cut(self) -> int:
        """Documents that lie in more than one piece."""
        pieces = Counter(piece.document for row in self.rows for piece in row.pieces)
        return sum(n > 1 for n in pieces.values())

    @property
    def note(self) -> str:
        """What the scheme costs: "12 positions of padding", "3 leaks, 1 document cut", ..."""
        padding = self.n_positions - self.n_tokens
        costs = [
            f"{padding} position{'s' * (padding != 1)} of padding" if padding else "",
            f"{self.n_leaks} leak{'s' * (self.n_leaks != 1)}" if self.n_leaks else "",
            f"{self.n_cut} document{'s' * (self.n_cut != 1)} cut" if self.n_cut else "",
        ]
        return ", ".join(filter(None, costs)) or "no padding, no leak, nothing cut"

    @property
    def percent(self) -> str:
        return f"{100 * valid_ratio(self.plans):.0f}%"


def four_panels(lengths: Sequence[int] | None = None) -> tuple[Panel, Panel, Panel, Panel]:
    """The running example under padding, buckets, one joined stream and one pack."""
    lengths = _example_lengths() if lengths is None else lengths
    capacity = -(-int(sum(lengths)) // 2)
    return (
        Panel("1  Padding", padded(lengths), True),
        Panel("2  Buckets", bucketed(lengths, buffer=2), True),
        Panel("3  One stream", joined_stream(lengths, capacity), False),
        Panel("4  One pack with boundaries", one_pack(lengths), True),
    )


def four_schemes(*, words: Words | None = None, wide: bool = False, panels: tuple[Panel, ...] | None = None) -> Figure:
    """The one picture: the four documents of the running example under four schemes, with their valid ratios.

    ``wide`` arranges it for 1,000 pixels (README), otherwise for a notebook's page. ``words`` is as in
    :func:`mamba_lab.viz.rows.draw_rows`; None takes the example's words.
    """
    panels = four_panels() if panels is None else panels
    lines = ((0, 1, 2), (3,)) if wide else ((0, 1), (2,), (3,))
    # The key stands in the room that the pack (wide) or the stream leaves free.
    return draw_panels(panels, lines, words=words, width=10.0 if wide else WIDTH, key=1)


def draw_panels(
    panels: Sequence[Panel],
    lines: Sequence[Sequence[int]],
    *,
    words: Words | None = None,
    width: float = WIDTH,
    key: int | None = None,
) -> Figure:
    """Panels at one scale, line by line; ``key`` is the line whose free right end explains the marks."""
    words = _example_words() if words is None else words
    sizes = [size_in_cells(rows_of(p.plans), boundaries=p.boundaries, leaks=not p.boundaries) for p in panels]
    unit = (width - 0.2) / max(sum(sizes[i][0] for i in line) + _GAP * (len(line) - 1) for line in lines)
    heading, below = 0.4, 0.3
    heights = [max(sizes[i][1] for i in line) * unit * _FLAT + heading + below for line in lines]
    with style():
        fig = Figure(figsize=(width, sum(heights) + 0.05))
        top = fig.get_figheight()
        for number, (line, height) in enumerate(zip(lines, heights, strict=True)):
            x = 0.1
            # Headings may be wider than their rows: then the panels stand closer.
            free = width - 0.2 - sum(_ratio_and_width(panels[i], sizes[i][0] * unit)[1] for i in line)
            gap = min(_GAP * unit, max(free, 0.0) / (len(line) - 1)) if len(line) > 1 else _GAP * unit
            for i in line:
                w, h = sizes[i][0] * unit, sizes[i][1] * unit * _FLAT
                x += _draw_panel(fig, panels[i], words, x, top - heading, w, h) + gap
            top -= height
            if number == key:
                _draw_key(fig, x, top + 0.1, width - x, height - 0.1)
    return fig


def _draw_panel(fig: Figure, panel: Panel, words: Words, x: float, top: float, width: float, height: float) -> float:
    """Rows with a heading, the valid ratio and the costs; gives the width that all of it takes, in inches."""
    wide, tall = fig.get_size_inches()
    ax = fig.add_axes((x / wide, (top - height) / tall, width / wide, height / tall))
    draw_rows(panel.plans, words=words, ax=ax, boundaries=panel.boundaries)
    left, base = (x + 0.03) / wide, (top + 0.08) / tall
    fig.text(left, base, panel.heading, fontsize=TITLE, fontweight="bold", va="baseline")
    ratio, taken = _ratio_and_width(panel, width)
    fig.text((x + taken - 0.03) / wide, base, ratio, fontsize=TITLE, va="baseline", ha="right")
    colour = LEAK if panel.n_leaks else MUTED
    fig.text(left, (top - height - 0.16) / tall, panel.note, fontsize=TEXT, color=colour, va="baseline")
    return max(taken, text_width(panel.note, TEXT) / 72)


def _ratio_and_width(panel: Panel, width: float) -> tuple[str, float]:
    """The valid ratio beside the heading, as long as ``width`` inches allow, and the inches that both take."""
    head = text_width(panel.heading, TITLE, bold=True) / 72 + 0.2
    ratio = f"{panel.n_tokens}/{panel.n_positions} = {panel.percent} valid"
    if head + text_width(ratio, TITLE) / 72 > width:
        ratio = f"{panel.percent} valid"
    return ratio, max(width, head + text_width(ratio, TITLE) / 72 + 0.03)


def _draw_key(fig: Figure, x: float, y: float, width: float, height: float) -> None:
    """What the four marks mean, one line each."""
    wide, tall = fig.get_size_inches()
    ax = fig.add_axes((x / wide, y / tall, width / wide, height / tall))
    lines = ("padding", "cut: goes on in another row", "leak: state crosses over", "reset: state cleared")
    line = 1.75
    total = line * len(lines) + 0.2
    columns = width / (height / total) / _KEY_WIDE
    painter = Painter(ax, round(columns), None, None, {})
    for number, text in enumerate(lines):
        y = 0.7 + line * number
        if number == 0:
            painter.cell(1, y, PADDING, hatch="////")
        else:
            painter.cell(1, y, document_colour(2))
        if number == 1:
            painter.tear(2, y, -1)
        if number > 1:
            painter.cell(0, y, document_colour(1))
        if number == 2:
            painter.leak(1, y)
        if number == 3:
            painter.wall(1, y, "")
        ax.text(2.4, y + 0.5, text, fontsize=SMALL, va="center", color=LEAK if number == 2 else INK)
    ax.set_ylim(total, 0)
    ax.set_xlim(-0.1, columns)
    ax.axis("off")


def alt_text(panels: tuple[Panel, ...] | None = None) -> str:
    """What :func:`four_schemes` shows, in words; its numbers come from the same plans as the picture's."""
    padded_, buckets, stream, pack = four_panels() if panels is None else panels
    return (
        f"Four documents A, B, C and D under four schemes. Padding: {padded_.n_tokens} of {padded_.n_positions} "
        f"positions are valid, {padded_.percent}. Buckets by length: {buckets.n_tokens} of {buckets.n_positions}, "
        f"{buckets.percent}. One joined stream cut into rows: {stream.percent}, but {stream.n_cut} document is cut "
        f"in two and {stream.n_leaks} red dashed arrows show state leaking from one document into the next. "
        f"One pack with boundaries: {pack.percent}, a wall marked reset at each start, {pack.n_leaks} leaks."
    )


def _one_per_row(documents: Sequence[int] | range, lengths: Sequence[int]) -> PackingPlan:
    longest = max(int(lengths[i]) for i in documents)
    return PackingPlan.from_bins([[i] for i in documents], np.asarray(lengths, dtype=np.int64), longest)


def _example_lengths() -> Sequence[int]:
    from mamba_lab.example import LENGTHS

    return LENGTHS


def _example_words() -> Sequence[Sequence[str]]:
    from mamba_lab.example import WORDS

    return WORDS
