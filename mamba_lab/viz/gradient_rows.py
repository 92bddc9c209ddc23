"""A recurrence and its gradients: states run to the right, gradients to the left, and both stop at a wall."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from mamba_lab.viz.colours import CARD, INK, LEAK, MUTED, document_colour, document_name
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, style

MOST_TOKENS = 12
_LABEL = 1.3  # inches, left of the cells
_HIGH, _PITCH = 0.34, 0.52  # inches, a cell and a line
_WIDEST = 0.78  # inches, a cell and the arrow beside it
_CELL = 0.72  # of a column
_LEGEND = 0.34  # inches

Rows = tuple[list[float], list[float], list[float]]


def states_and_gradients(lengths: Sequence[int], b: Sequence[float], decay: float = 0.5) -> Rows:
    """h, g and da of h[t] = a h[t - 1] + b[t], where a is ``decay`` and the loss is the sum of all states.

    g is the loss's slope in each state, da its slope in each token's own a. Each sequence begins with h = 0 before it.
    """
    h, g, da = ([0.0] * len(b) for _ in range(3))
    end = 0
    for n in lengths:
        start, end = end, end + n
        for t in range(start, end):
            h[t] = b[t] + (decay * h[t - 1] if t > start else 0.0)
        for t in reversed(range(start, end)):
            g[t] = 1.0 + (decay * g[t + 1] if t + 1 < end else 0.0)
            da[t] = g[t] * h[t - 1] if t > start else 0.0
    return h, g, da


def gradient_rows(
    lengths: Sequence[int],
    b: Sequence[float],
    *,
    words: Sequence[Sequence[str]] | None = None,
    decay: float = 0.5,
    token: int | None = None,
) -> Figure:
    """One column a token; lines for what comes in, the state, the state's gradient, and the gradient of the decay.

    Arrows say what a state or a gradient takes from its neighbour. A red cross stands where a sequence's edge stops it.

    Args:
        lengths: tokens of each sequence, at most 12 in all.
        b: what each token adds to the state.
        words: one list of words a sequence; letter and position, "A0", without them or where one is too wide.
        decay: a of every token.
        token: frame this token's da and the two numbers that it is the product of.

    Raises:
        ValueError: no token or more than 12, as many numbers or words as tokens missing, no such token.
    """
    T = sum(lengths)
    if not 1 <= T <= MOST_TOKENS or min(lengths) < 0:
        raise ValueError(f"lengths are {list(lengths)}: expected 1 to {MOST_TOKENS} tokens in all, to be readable")
    if len(b) != T:
        raise ValueError(f"b has {len(b)} numbers, expected {T}, one for each token")
    if words is not None and [len(w) for w in words] != list(lengths):
        raise ValueError(f"words has lists of {[len(w) for w in words]} words, expected {list(lengths)}")
    if token is not None and not 0 <= token < T:
        raise ValueError(f"token is {token}: expected 0 to {T - 1}")
    h, g, da = states_and_gradients(lengths, b, decay)
    owner = [s for s, n in enumerate(lengths) for _ in range(n)]
    place = [p for n in lengths for p in range(n)]
    pitch = min(_WIDEST, (WIDTH - _LABEL - 0.1) / T)
    named = [f"{document_name(s)}{p}" for s, p in zip(owner, place, strict=True)]
    if words is not None:
        given = [word for sequence in words for word in sequence]
        if max(text_width(word, SMALL) for word in given) <= pitch * 72 - 4:
            named = given
    lines = [("adds b", [float(v) for v in b]), ("state h", h), ("gradient g", g), ("da", da)]
    tall = 0.36 + len(lines) * _PITCH + _LEGEND
    with style():
        fig = Figure(figsize=(WIDTH, tall))
        ax = fig.add_axes((_LABEL / WIDTH, 0, pitch * T / WIDTH, 1))
        ax.set_xlim(0, T)
        ax.set_ylim(tall, 0)
        ax.axis("off")
        _name(ax, "word" if named[0] != "A0" else "token", 0.2)
        for t in range(T):
            ax.text(t + 0.5, 0.2, named[t], ha="center", va="center_baseline", fontsize=SMALL, parse_math=False)
        for i, (name, values) in enumerate(lines):
            y = 0.38 + i * _PITCH
            _name(ax, name, y + _HIGH / 2)
            for t, value in enumerate(values):
                _cell(ax, t, y, value, document_colour(owner[t]) if i in (0, 1) else CARD)
            for t in range(T - 1):
                if name in ("state h", "gradient g"):
                    _between(ax, t, y, right=name == "state h", stopped=owner[t] != owner[t + 1])
        for start in list(accumulate(lengths))[:-1]:
            if 0 < start < T:
                ax.plot([start, start], [0.06, tall - _LEGEND], color=INK, linewidth=1.8, linestyle="-", zorder=1)
        if token is not None:
            framed = [(token, 2), (token, 3)] + ([(token - 1, 1)] if place[token] else [])
            for t, i in framed:
                _frame(ax, t, 0.38 + i * _PITCH)
        legend = (
            (f"→ ← times a = {decay:g}", INK, 0.02),
            ("× stopped at a start", LEAK, 0.27),
        )
        for text, colour, x in legend:
            fig.text(x, 0.17 / tall, text, color=colour, fontsize=SMALL, va="center")
        if token is not None and place[token]:
            fig.text(0.52, 0.17 / tall, "framed: da is g times the h before it", color=INK, fontsize=SMALL, va="center")
    return fig


def _cell(ax: Axes, t: int, y: float, value: float, colour: str) -> None:
    side = (1 - _CELL) / 2
    ax.add_patch(
        Rectangle((t + side, y), _CELL, _HIGH, facecolor=colour, edgecolor=MUTED, linewidth=0.8, gid="cell", zorder=2)
    )
    ax.text(t + 0.5, y + _HIGH / 2, f"{value:.3g}", ha="center", va="center_baseline", fontsize=TEXT, color=INK,
            zorder=4)  # fmt: skip


def _between(ax: Axes, t: int, y: float, *, right: bool, stopped: bool) -> None:
    """From cell t to t + 1 or back."""
    middle = y + _HIGH / 2
    if stopped:
        ax.text(t + 1, middle, "×", ha="center", va="center", color=LEAK, fontsize=13, weight="bold", zorder=5,
                gid="stopped", bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0.4})  # fmt: skip
        return
    ends = (t + (1 + _CELL) / 2, t + 1 + (1 - _CELL) / 2)
    arrow = FancyArrowPatch(
        (ends[0 if right else 1], middle), (ends[1 if right else 0], middle), arrowstyle="-|>", mutation_scale=10,
        shrinkA=0, shrinkB=0, gid="right" if right else "left",
    )  # fmt: skip
    arrow.set(color=INK, linewidth=1.4, linestyle="-", zorder=3)
    ax.add_patch(arrow)


def _frame(ax: Axes, t: int, y: float) -> None:
    side = (1 - _CELL) / 2
    ax.add_patch(
        Rectangle((t + side, y), _CELL, _HIGH, fill=False, edgecolor=INK, linewidth=2.6, zorder=6, gid="framed")
    )


def _name(ax: Axes, name: str, y: float) -> None:
    ax.annotate(name, (0, y), xytext=(-6, 0), textcoords="offset points", ha="right", va="center_baseline",
                fontsize=TEXT, color=INK, annotation_clip=False)  # fmt: skip
