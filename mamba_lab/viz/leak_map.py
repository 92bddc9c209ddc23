"""The leak map: how strongly each output of a pack depends on each input, a square for each part or model.

A row is an output, a column an input. Inside a document a cell has the document's colour, pale where the dependence is
weak. A red cell with a cross is a leak: the two tokens belong to different documents. An empty cell is an exact zero.
Shades are relative to the strongest cell of their own square, on a logarithmic scale, which a line below them says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mamba_lab.viz.colours import CARD, GRID, INK, LEAK, document_colour, document_name
from mamba_lab.viz.style import SMALL, TITLE, WIDTH, style

_ACROSS = 2  # squares side by side, where there are more than one
_SQUARE, _SINGLE = 2.95, 4.2  # inches, of one of several squares, and of one alone
_DECADES = 4  # the palest cell is this many powers of ten below the strongest
_PALEST = 0.35
_LEGEND = "shade: logarithmic, from the strongest cell of each map (full) to 1/10,000 of it or less (palest)"
_FOOT = 0.2  # inches, for the legend
_MOST_CROSSES = 40  # tokens; above it a cell is too small for a cross


def forbidden(lengths: Sequence[int]) -> np.ndarray:
    """Which (output, input) pairs would be leaks: the input comes before the output, in another document.

    Args:
        lengths: tokens of each document.

    Returns:
        bool [T, T], outputs down, inputs across.
    """
    number = np.repeat(np.arange(len(lengths)), lengths)
    return np.asarray(number[:, None] > number[None, :])


def count_leaks(sizes: np.ndarray, lengths: Sequence[int]) -> tuple[int, int]:
    """How many pairs leak, and how many could: (non-zero forbidden pairs of ``sizes`` [T, T], forbidden pairs)."""
    where = forbidden(lengths)
    return int((np.asarray(sizes)[where] != 0).sum()), int(where.sum())


def leak_maps(maps: Mapping[str, object], lengths: Sequence[int], *, picked: int | None = None) -> Figure:
    """One square a map, named, with its leaks counted.

    Args:
        maps: by name, [T, T] sizes of d output / d input (any array or tensor), or booleans; 0 is "does not depend".
        lengths: tokens of each document; they add up to T.
        picked: an output to frame, or None.

    Raises:
        ValueError: no map; a map of another shape, or with NaN or a negative size; an output outside the pack.
    """
    if not maps:
        raise ValueError("maps is empty: expected at least one map [T, T] by name")
    n = sum(lengths)
    values = {name: np.asarray(sizes, dtype=np.float64) for name, sizes in maps.items()}
    for name, sizes in values.items():
        if sizes.shape != (n, n):
            raise ValueError(f"maps[{name!r}] has shape {list(sizes.shape)}, expected [{n}, {n}], the sum of lengths")
        if not (sizes >= 0).all():  # NaN is no size either
            raise ValueError(f"maps[{name!r}] has a negative size or NaN: expected sizes of at least 0")
    if picked is not None and not 0 <= picked < n:
        raise ValueError(f"picked is {picked}: expected an output from 0 to {n - 1}")
    across = min(_ACROSS, len(values))
    down = -(-len(values) // across)
    with style():
        side, margin = (_SINGLE, 1.6) if len(values) == 1 else (_SQUARE, 0.6)
        height = down * (side + 0.85) + 0.1 + _FOOT
        fig = Figure(figsize=(WIDTH, height))
        step = side + (WIDTH - across * side - 0.75) / across
        for i, (name, sizes) in enumerate(values.items()):
            left = margin + (i % across) * step
            bottom = height - (i // across + 1) * (side + 0.85) + 0.4
            ax = fig.add_axes((left / WIDTH, bottom / height, side / WIDTH, side / height))
            _square(ax, sizes, lengths, picked)
            leaks, possible = count_leaks(sizes, lengths)
            ax.set_title(f"{name}: {leaks} of {possible} leak", fontsize=TITLE, pad=6)
        fig.text(0.6 / WIDTH, 0.1 / height, _LEGEND, fontsize=SMALL, color=INK)
    return fig


def _square(ax: Axes, sizes: np.ndarray, lengths: Sequence[int], picked: int | None) -> None:
    n, ends = len(sizes), [0, *accumulate(lengths)]
    wrong, number = forbidden(lengths), np.repeat(np.arange(len(lengths)), lengths)
    strongest = sizes.max(initial=0.0)
    for t, s in zip(*np.nonzero(sizes), strict=True):
        strength = max(_PALEST, 1 + (1 - _PALEST) * math.log10(sizes[t, s] / strongest) / _DECADES)
        own = number[t] == number[s]
        colour = document_colour(int(number[t])) if own else LEAK
        ax.add_patch(Rectangle((s, t), 1, 1, facecolor=_mixed(colour, strength), edgecolor=CARD, linewidth=0.4))
    if n <= _MOST_CROSSES:
        for t, s in zip(*np.nonzero((sizes != 0) & wrong), strict=True):
            ax.text(s + 0.5, t + 0.52, "×", ha="center", va="center_baseline", fontsize=SMALL, color=INK)
    for a, b in pairwise(ends):
        ax.plot([0, n], [b, b], color=GRID, linewidth=0.8, linestyle="-", zorder=0)
        ax.plot([b, b], [0, n], color=GRID, linewidth=0.8, linestyle="-", zorder=0)
        ax.add_patch(Rectangle((a, a), b - a, b - a, fill=False, edgecolor=INK, linewidth=1.4, zorder=4))
    if picked is not None:
        ax.add_patch(Rectangle((0, picked), n, 1, fill=False, edgecolor=INK, linewidth=2.2, zorder=5, clip_on=False))
    ax.set_xlim(0, n)
    ax.set_ylim(n, 0)
    named = {(a + b) / 2: document_name(i) for i, (a, b) in enumerate(pairwise(ends)) if a < b}
    ax.set_xticks(list(named), list(named.values()))
    ax.set_yticks(list(named), list(named.values()))
    ax.tick_params(length=0)
    ax.spines[:].set_color(GRID)
    ax.spines[:].set_visible(True)
    ax.set_xlabel("input", labelpad=2)
    ax.set_ylabel("output", labelpad=2)


def _mixed(colour: str, strength: float) -> tuple[float, ...]:
    """``colour`` on the card's ground: 1 is the colour itself."""
    return tuple(strength * c + (1 - strength) * ground for c, ground in zip(to_rgb(colour), to_rgb(CARD), strict=True))
