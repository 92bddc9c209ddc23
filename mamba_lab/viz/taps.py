"""A causal convolution as a table: the token that each tap reads, and the readings that a sequence's edge cuts off."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from mamba_lab.viz.colours import CARD, GRID, INK, LEAK, document_colour, document_name
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, style

_LINE = 0.31  # inches, the height of a cell
_WIDEST = 0.66  # inches
_LABEL = 0.95  # inches, left of the cells
_GAP = 0.35  # cells below the tokens, and above the counts
_SKY = 1.25  # cells above the tokens, for the arrows
MOST_TOKENS = 24


def tap_table(
    lengths: Sequence[int],
    width: int,
    *,
    words: Sequence[Sequence[str]] | None = None,
    ahead: bool = False,
    token: int | None = None,
) -> Figure:
    """One column a token of a pack, one line a tap, and below them how many taps reach.

    A cell has the word that its tap reads, in its document's colour. A word of another sequence stands in a red frame
    and is struck out in red below its letters; beyond the row there is nothing.

    Args:
        lengths: tokens of each sequence, at most 24 in all; an empty sequence has no column.
        width: the convolution's taps W.
        words: one list of words a sequence; letter and position, "A0", without them or where one is too wide.
        ahead: the backward pass. A line then has the outputs that read the column's token, up to W - 1 tokens ahead.
        token: arrows above the row show what this token takes, from inputs or (``ahead``) from gradients.

    Raises:
        ValueError: no token or more than 24, a width below 1, words of other lengths, no such token.
    """
    T = sum(lengths)
    if not 1 <= T <= MOST_TOKENS or min(lengths) < 0:
        raise ValueError(f"lengths are {list(lengths)}: expected 1 to {MOST_TOKENS} tokens in all, to be readable")
    if width < 1:
        raise ValueError(f"width is {width}: a convolution has at least one tap")
    if words is not None and [len(w) for w in words] != list(lengths):
        raise ValueError(f"words has lists of {[len(w) for w in words]} words, expected {list(lengths)}")
    if token is not None and not 0 <= token < T:
        raise ValueError(f"token is {token}: expected 0 to {T - 1}")
    owner = [s for s, n in enumerate(lengths) for _ in range(n)]
    place = [p for n in lengths for p in range(n)]
    cell = min(_WIDEST, (WIDTH - _LABEL - 0.1) / T)
    named = [f"{document_name(s)}{p}" for s, p in zip(owner, place, strict=True)]
    if words is not None:
        given = [word for sequence in words for word in sequence]
        if max(text_width(word, SMALL) for word in given) <= cell * 72 - 5:
            named = given
    sky = _SKY if token is not None else 0.1
    tall = sky + 1 + _GAP + width + _GAP + 1 + 0.1
    step, side = (1, "ahead") if ahead else (-1, "back")
    with style():
        fig = Figure(figsize=(WIDTH, tall * _LINE))
        ax = fig.add_axes((_LABEL / WIDTH, 0, cell * T / WIDTH, 1))
        ax.set_xlim(0, T)
        ax.set_ylim(tall, 0)
        ax.axis("off")
        _name(ax, "token", sky + 0.5)
        for t in range(T):
            _cell(ax, t, sky, named[t], document_colour(owner[t]))
        for k in range(width):
            y = sky + 1 + _GAP + k
            _name(ax, "itself" if k == 0 else f"{k} {side}", y + 0.5)
            for t in range(T):
                source = t + step * k
                if 0 <= source < T:
                    own = owner[source] == owner[t]
                    _cell(ax, t, y, named[source], document_colour(owner[source]) if own else CARD, cut=not own)
        y = sky + 1 + _GAP + width + _GAP
        _name(ax, "tokens left" if ahead else "position", y + 0.5)
        for t in range(T):
            count = lengths[owner[t]] - 1 - place[t] if ahead else place[t]
            ax.text(t + 0.5, y + 0.5, str(count), ha="center", va="center_baseline", fontsize=TEXT, color=INK)
        for start in list(accumulate(lengths))[:-1]:
            ax.plot([start, start], [sky - 0.08, y + 1], color=INK, linewidth=2.2, linestyle="-", zorder=5)
        if token is not None:
            for k in range(1, width):
                source = token + step * k
                if 0 <= source < T:
                    _arrow(ax, source, token, sky, k, cut=owner[source] != owner[token])
    return fig


def _name(ax: Axes, name: str, y: float) -> None:
    ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center_baseline",
                fontsize=TEXT, color=INK, annotation_clip=False)  # fmt: skip


def _cell(ax: Axes, t: int, y: float, text: str, colour: str, cut: bool = False) -> None:
    box = Rectangle((t + 0.03, y + 0.04), 0.94, 0.92, facecolor=colour, edgecolor=LEAK if cut else GRID,
                    linewidth=1.4 if cut else 0.8, gid="cut" if cut else None)  # fmt: skip
    ax.add_patch(box)
    ax.text(t + 0.5, y + 0.5, text, ha="center", va="center_baseline", fontsize=SMALL, color=INK, parse_math=False,
            zorder=4)  # fmt: skip
    if cut:
        # Below the letters and pale, so that the word can still be read.
        ax.plot([t + 0.06, t + 0.94], [y + 0.9, y + 0.1], color=LEAK, linewidth=1.6, linestyle="-", alpha=0.5, zorder=3)


def _arrow(ax: Axes, source: int, token: int, y: float, k: int, cut: bool) -> None:
    bend = (-1 if source < token else 1) * (0.5 - 0.06 * k)
    arrow = FancyArrowPatch(
        (source + 0.5, y), (token + 0.5 + (0.09 if source > token else -0.09) * (4 - k), y), arrowstyle="-|>",
        mutation_scale=9, shrinkA=1, shrinkB=1, connectionstyle=f"arc3,rad={bend}", gid="cut" if cut else None,
    )  # fmt: skip
    arrow.set(color=LEAK if cut else INK, linewidth=1.5, linestyle=(0, (3, 2)) if cut else "-", clip_on=False)
    ax.add_patch(arrow)
