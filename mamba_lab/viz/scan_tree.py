"""A parallel scan over one pack, round by round: each piece's pair (a, b), and where a reset stops what is handed on.

In round k, blocks of 2^k tokens are put together from two halves: every pair of the right half takes in the last pair
of the left half. That is the scan of notebook 09 by halves, seen from its innermost call to its outermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mamba_lab.viz.colours import CARD, GRID, INK, LEAK, MUTED, document_colour, document_name
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, style

Pair = tuple[float, float]

MOST_TOKENS = 16
_LABEL = 0.82  # inches, left of the cells
_WIDEST = 0.62  # inches
_HIGH, _GAP = 0.44, 0.36  # inches, a cell and the room for arrows above it
_NAMES, _LEGEND = 0.3, 0.36  # inches, above and below the cells
_PALE = 0.3


def pairs_of(lengths: Sequence[int], x: Sequence[float], decay: float = 0.5) -> list[Pair]:
    """(a, b) of each token of a pack: a is ``decay``, and 0 at a sequence's start; b is its number in ``x``."""
    starts = {end - n for n, end in zip(lengths, accumulate(lengths), strict=True) if n}
    return [(0.0 if t in starts else decay, float(value)) for t, value in enumerate(x)]


def scan_rounds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The pairs before the first round and after each: ceil(log2 T) rounds for T pairs. The last b are the states."""
    rounds, width = [list(pairs)], 1
    while width < len(pairs):
        before = rounds[-1]
        rounds.append(
            [_combine(before[_left(t, width)], p) if _is_right(t, width) else p for t, p in enumerate(before)]
        )
        width *= 2
    return rounds


def scan_tree(
    lengths: Sequence[int], x: Sequence[float], *, rounds: int | None = None, token: int | None = None
) -> Figure:
    """One line for the tokens and one a round; each cell is the piece that ends there, as "b" above "×a".

    An arrow hands a left half's last pair to a cell of the right half. It is red, dashed and crossed out where that
    cell has met a start already: times 0, nothing of it arrives. Such a cell is finished and has its full colour.

    Args:
        lengths: tokens of each document of the pack, at most 16 in all.
        x: what each token adds to the state.
        rounds: draw the values after so many rounds only; the others stay empty. None: all.
        token: frame this token's cell in the last line that is drawn, and the cell that it takes in.

    Raises:
        ValueError: no token or more than 16, as many numbers in ``x`` as tokens missing, no such round or token.
    """
    T = sum(lengths)
    if not 1 <= T <= MOST_TOKENS or min(lengths) < 0:
        raise ValueError(f"lengths are {list(lengths)}: expected 1 to {MOST_TOKENS} tokens in all, to be readable")
    if len(x) != T:
        raise ValueError(f"x has {len(x)} numbers, expected {T}, one for each token")
    levels = scan_rounds(pairs_of(lengths, x))
    last = len(levels) - 1 if rounds is None else rounds
    if not 0 <= last < len(levels):
        raise ValueError(f"rounds is {rounds}: expected 0 to {len(levels) - 1}")
    if token is not None and not 0 <= token < T:
        raise ValueError(f"token is {token}: expected 0 to {T - 1}")
    owner = [s for s, n in enumerate(lengths) for _ in range(n)]
    place = [p for n in lengths for p in range(n)]
    cell = min(_WIDEST, (WIDTH - _LABEL - 0.1) / T)
    tall = _NAMES + len(levels) * _HIGH + (len(levels) - 1) * _GAP + _LEGEND
    with style():
        fig = Figure(figsize=(WIDTH, tall))
        ax = fig.add_axes((_LABEL / WIDTH, 0, cell * T / WIDTH, 1))
        ax.set_xlim(0, T)
        ax.set_ylim(tall, 0)
        ax.axis("off")
        for t in range(T):
            name = f"{document_name(owner[t])}{place[t]}"
            ax.text(t + 0.5, _NAMES / 2 + 0.02, name, ha="center", va="center_baseline", fontsize=SMALL)
        for k, level in enumerate(levels):
            y = _NAMES + k * (_HIGH + _GAP)
            _name(ax, "tokens" if k == 0 else f"round {k}", y + _HIGH / 2)
            for t, pair in enumerate(level):
                _cell(ax, t, y, pair if k <= last else None, document_colour(owner[t]))
            if 0 < k <= last:
                _hand_on(ax, y, levels[k - 1], 2 ** (k - 1))
        for start in list(accumulate(lengths))[:-1]:
            if 0 < start < T:
                ax.plot([start, start], [0.06, tall - _LEGEND], color=INK, linewidth=1.8, linestyle="-", zorder=6)
        if token is not None:
            _frame(ax, token, _NAMES + last * (_HIGH + _GAP))
            width = 2 ** (last - 1) if last else 0
            if last and _is_right(token, width):
                _frame(ax, _left(token, width), _NAMES + (last - 1) * (_HIGH + _GAP))
        _legend(fig, tall)
    return fig


def number(value: float) -> str:
    """At most three digits: 4, 7.5, 10.4."""
    return f"{value:.3g}"


def fraction(a: float) -> str:
    """0, 1/2, 1/16; with three digits what is no sum of such halves."""
    exact = Fraction(a)
    return str(exact) if exact.denominator <= 2**MOST_TOKENS else number(a)


def _combine(left: Pair, right: Pair) -> Pair:
    (a1, b1), (a2, b2) = left, right
    return a2 * a1, a2 * b1 + b2


def _is_right(t: int, width: int) -> bool:
    """Whether token t is in the right half of its block of 2 ``width`` tokens."""
    return t // width % 2 == 1


def _left(t: int, width: int) -> int:
    """The last token of the left half, for a token in the right one."""
    return t // width * width - 1


def _cell(ax: Axes, t: int, y: float, pair: Pair | None, colour: str) -> None:
    strength = 0.0 if pair is None else 1.0 if pair[0] == 0 else _PALE
    mixed = [strength * c + (1 - strength) * g for c, g in zip(to_rgb(colour), to_rgb(CARD), strict=True)]
    gid = "empty" if pair is None else "finished" if pair[0] == 0 else "open"
    ax.add_patch(
        Rectangle((t + 0.03, y), 0.94, _HIGH, facecolor=mixed, edgecolor=GRID if pair is None else MUTED,
                  linewidth=0.8, gid=gid, zorder=2)
    )  # fmt: skip
    if pair is not None:
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": INK, "zorder": 5}
        ax.text(t + 0.5, y + 0.12, number(pair[1]), fontsize=TEXT, **look)
        ax.text(t + 0.5, y + 0.33, f"×{fraction(pair[0])}", fontsize=SMALL, **look)


def _hand_on(ax: Axes, y: float, before: Sequence[Pair], width: int) -> None:
    """The arrows into one line of cells, whose top is ``y``: from each left half's last cell along a rail."""
    top, rail = y - _GAP, y - _GAP + 0.11
    for first in range(width, len(before), 2 * width):
        source, into = first - 1, range(first, min(first + width, len(before)))
        # The rail is red from where on nothing is carried: a start stops it for all that follow.
        carried = [t for t in into if before[t][0] != 0]
        reach = carried[-1] + 0.5 if carried else source + 0.5
        ax.plot([source + 0.5, source + 0.5], [top, rail], color=INK if carried else LEAK, linewidth=1.3,
                linestyle="-" if carried else (0, (3, 2)), zorder=3)  # fmt: skip
        ax.plot([source + 0.5, reach], [rail, rail], color=INK, linewidth=1.3, linestyle="-", zorder=4)
        ax.plot([reach, into[-1] + 0.5], [rail, rail], color=LEAK, linewidth=1.2, linestyle=(0, (3, 2)), zorder=3)
        for t in into:
            stopped = before[t][0] == 0
            ax.annotate(
                "", (t + 0.5, y - (0.09 if stopped else 0)), (t + 0.5, rail), zorder=4,
                gid="stopped" if stopped else "carried",
                arrowprops={"arrowstyle": "-" if stopped else "-|>", "color": LEAK if stopped else INK,
                            "linewidth": 1.2, "linestyle": (0, (3, 2)) if stopped else "-", "shrinkA": 0,
                            "shrinkB": 0, "mutation_scale": 9},
            )  # fmt: skip
            if stopped:
                ax.text(t + 0.5, y - 0.08, "×", ha="center", va="center", color=LEAK, fontsize=TEXT, zorder=5)


def _frame(ax: Axes, t: int, y: float) -> None:
    ax.add_patch(
        Rectangle((t + 0.01, y - 0.015), 0.98, _HIGH + 0.03, fill=False, edgecolor=INK, linewidth=2.4, zorder=7,
                  gid="framed")
    )  # fmt: skip


def _name(ax: Axes, name: str, y: float) -> None:
    ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center_baseline",
                fontsize=TEXT, color=INK, annotation_clip=False)  # fmt: skip


def _legend(fig: Figure, tall: float) -> None:
    y = 0.17 / tall
    parts = (
        ("→ handed on", INK, 0.11),
        ("× meets a start: times 0, nothing arrives", LEAK, 0.27),
        ("full colour: ×0, finished", INK, 0.71),
    )
    for text, colour, x in parts:
        fig.text(x, y, text, color=colour, fontsize=SMALL, va="center")
