"""Drawings of notebook 01: the recurrence on a few numbers, and the Mamba block with its three kinds of parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from mamba_lab.viz.colours import GRID, INK, MUTED
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, new_figure, style

_KINDS: dict[str, tuple[str, Any, float, str]] = {
    "element-wise": ("#E4E4E1", (0, (1.5, 1.2)), 1.2, "each number alone"),
    "token-wise": ("#BFE0F7", "-", 1.0, "each token alone"),
    "sequence-wise": ("#F6C88A", "-", 2.6, "looks back at earlier tokens"),
}
"""Fill, border and its width: the border says the same as the colour."""
_KEPT, _ADDED = MUTED, "#0072B2"
_HIGH = 7.0  # of a box
_LANE = 0.2  # the arrow of what is kept runs this far above that of what is added


def recurrence(a: float | Sequence[float], b: float | Sequence[float], x: Sequence[float]) -> Figure:
    """h = a·h + b·x, step by step: each input, what is added, what is kept, and the state on a number line.

    Args:
        a: what is kept of the state, one number or one a step (0 resets).
        b: how much of an input is added, one number or one a step.
        x: the inputs; five or so.
    """
    if not len(x):
        raise ValueError("x is empty: expected a few numbers")
    keeps, takes = _each("a", a, len(x)), _each("b", b, len(x))
    states, h = [], 0.0
    for keep, take, value in zip(keeps, takes, x, strict=True):
        states.append((h, keep * h, h := keep * h + take * float(value)))
    low, high = min(0.0, *(min(s) for s in states)), max(0.0, *(max(s) for s in states))
    room = (high - low or 1.0) * 0.08
    with style():
        fig = new_figure(1.0 + 0.52 * len(x))
        ax = fig.subplots()
        for t, (before, kept, after) in enumerate(states):
            lane = t - _LANE
            ax.plot([low - room, high + room], [t, t], color=GRID, linewidth=1, linestyle="-", zorder=1)
            if t:
                ax.plot([before, before], [t - 1, lane], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
                ax.plot([kept, kept], [lane, t], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
                _step(ax, before, kept, lane, _KEPT)
            _step(ax, kept, after, t, _ADDED)
            ax.plot([after], [t], "o", color=INK, markersize=7, zorder=4)
            factors = [_number(value) for value in (keeps[t], before, takes[t], float(x[t]))]
            term = "{} · {} + {} · {} = ".format(*factors) + _number(after, alone=True)
            ax.text(1.01, t, term, transform=ax.get_yaxis_transform(), va="center", fontsize=SMALL)
        ax.set_yticks(range(len(x)), [f"x = {_number(float(v), alone=True)}" for v in x])
        ax.set_ylim(len(x) - 0.4, -0.6)
        ax.set_xlim(low - room, high + room)
        ax.set_xlabel("state h (upper grey arrow: what is kept; lower blue arrow: what is added)")
        ax.set_ylabel("time, downwards")
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    return fig


def _each(name: str, value: float | Sequence[float], n: int) -> list[float]:
    """One number a step."""
    values = [float(value)] * n if isinstance(value, (int, float)) else [float(v) for v in value]
    if len(values) != n:
        raise ValueError(f"{name} has {len(values)} numbers, expected one for each of the {n} inputs")
    return values


def _number(value: float, alone: bool = False) -> str:
    """At most four digits; a negative factor stands in brackets."""
    text = f"{abs(value):.4g}"
    return text if value >= 0 else f"−{text}" if alone else f"(−{text})"


def _step(ax: Axes, start: float, end: float, y: float, colour: str) -> None:
    if start != end:
        _arrow(ax, (start, y), (end, y), colour, 2.0)


def block_diagram() -> Figure:
    """The Mamba block. Element-wise and token-wise parts need no boundaries;

    Only the two sequence-wise parts look back.
    """
    with style():
        fig = Figure(figsize=(WIDTH, 3.7))
        ax = fig.add_axes((0.01, 0.01, 0.98, 0.98))
        ax.set_xlim(0, 100)
        ax.set_ylim(0, 52)
        ax.axis("off")
        middle, top, low = 27.0, 37.0, 14.0
        _text(ax, 3.6, middle, "tokens")
        norm = _box(ax, 14, middle, "RMSNorm", "token-wise", 10.5)
        into = _box(ax, 26.5, middle, "linear in", "token-wise", 9.5)
        conv = _box(ax, 41, top, "conv1d", "sequence-wise", 10)
        silu = _box(ax, 52, top, "SiLU", "element-wise", 7)
        scan = _box(ax, 71.5, top, "selective scan", "sequence-wise", 15.5)
        proj = _box(ax, 62, middle - 1.5, "linear: Δ, B, C", "token-wise", 15.5)
        gate = _box(ax, 52, low, "SiLU", "element-wise", 7)
        mult = _box(ax, 82.8, middle, "×", "element-wise", 3.4)
        out = _box(ax, 90.8, middle, "linear out", "token-wise", 9.6)
        plus = _box(ax, 98.2, middle, "+", "element-wise", 3)
        split, silu_out = 33.5, silu[1] + 2.0
        for start, end in ((norm, into), (conv, silu), (silu, scan), (mult, out), (out, plus)):
            _arrow(ax, (start[1], start[2]), (end[0], end[2]))
        _arrow(ax, (7, middle), (norm[0], middle))
        _elbow(ax, [(into[1], middle), (split, middle), (split, top), (conv[0], top)])
        _elbow(ax, [(split, middle), (split, low), (gate[0], low)])
        _arrow(ax, (silu_out, top), (silu_out, proj[3]))
        _elbow(ax, [(proj[1], proj[2]), (71.5, proj[2]), (71.5, top - _HIGH / 2)])
        _elbow(ax, [(scan[1], top), (82.8, top), (82.8, mult[3])])
        _elbow(ax, [(gate[1], low), (82.8, low), (82.8, middle - _HIGH / 2)])
        _elbow(ax, [(3.6, middle + 1.6), (3.6, 48.5), (98.2, 48.5), (98.2, plus[3])])
        _elbow(ax, [(98.2, middle - _HIGH / 2), (98.2, 19)])
        ax.text(99.8, 17.3, "next block", ha="right", va="center", fontsize=SMALL)
        ax.text(split - 0.8, top, "x", ha="right", va="center", fontsize=TEXT, fontstyle="italic")
        ax.text(split - 0.8, low, "z", ha="right", va="center", fontsize=TEXT, fontstyle="italic")
        ax.text(50, 49, "residual", ha="center", va="bottom", fontsize=SMALL, color=MUTED)
        for part in (conv, scan):
            ax.text(
                (part[0] + part[1]) / 2, part[3] + 0.8, "needs boundaries", ha="center", va="bottom", fontsize=SMALL
            )
        for i, (kind, (colour, dash, width, meaning)) in enumerate(_KINDS.items()):
            x = 3 + 31 * i
            ax.add_patch(Rectangle((x, 2.2), 4, 4, facecolor=colour, edgecolor=INK, linewidth=width, linestyle=dash))
            ax.text(x + 5.2, 5.6, kind, fontsize=TEXT, fontweight="bold", va="center")
            ax.text(x + 5.2, 2.6, meaning, fontsize=SMALL, va="center", color=MUTED)
    return fig


def _box(ax: Axes, x: float, y: float, text: str, kind: str, width: float) -> tuple[float, float, float, float]:
    """A part of the block; gives its left, right, middle and top."""
    colour, dash, line, _ = _KINDS[kind]
    box = FancyBboxPatch((x - width / 2, y - _HIGH / 2), width, _HIGH, boxstyle="round,pad=0,rounding_size=0.8")
    box.set(facecolor=colour, edgecolor=INK, linewidth=line, linestyle=dash)
    ax.add_patch(box)
    _text(ax, x, y, text)
    return x - width / 2, x + width / 2, y, y + _HIGH / 2


def _text(ax: Axes, x: float, y: float, text: str) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=SMALL)


def _arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, width: float = 1.2
) -> None:
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0)
    arrow.set(color=colour, linewidth=width, linestyle="-", zorder=3)
    ax.add_patch(arrow)


def _elbow(ax: Axes, points: Sequence[tuple[float, float]]) -> None:
    for start, end in pairwise(points[:-1]):
        ax.plot(*zip(start, end, strict=True), color=INK, linewidth=1.2, linestyle="-", solid_capstyle="projecting")
    _arrow(ax, points[-2], points[-1])
