"""What packing costs: padding against the buffer, and how far and in which order documents move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from mamba_lab.viz.colours import INK, MUTED, SERIES
from mamba_lab.viz.style import DASHES, SMALL, new_figure, style

Values = Sequence[float] | np.ndarray
_MOST_POINTS = 4000


def padding_by_buffer(
    buffers: Sequence[int], rates: Mapping[str, Values], *, reference: tuple[str, float] | None = None
) -> Figure:
    """Padding rates against the buffer, a line for each data set, both axes logarithmic.

    Args:
        buffers: [n] documents in a buffer.
        rates: [n] padding rates between 0 and 1 by name; none of them 0.
        reference: name and rate of a dashed line across.
    """
    wrong = [name for name, y in rates.items() if len(y) != len(buffers) or not (np.asarray(y) > 0).all()]
    if not rates or wrong:
        raise ValueError(f"rates{wrong or ''}: expected {len(buffers)} rates above 0 by name, one for each buffer")
    with style():
        fig = new_figure(3.1)
        ax = fig.subplots()
        for i, (name, y) in enumerate(rates.items()):
            look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": DASHES[i % len(DASHES)]}
            ax.plot(buffers, y, label=name, marker="o", markersize=4, **look)
        ax.set_xscale("log")
        ax.set_yscale("log")
        if reference is not None:
            ax.axhline(reference[1], color=INK, linestyle="--", linewidth=1.3, label=reference[0])
        ax.set_xticks(list(buffers), [f"{value:,}" for value in buffers], fontsize=SMALL)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        ax.minorticks_off()
        ax.grid(axis="y")
        ax.set_xlabel("documents in the buffer (logarithmic)")
        ax.set_ylabel("padding rate (logarithmic)")
        fig.legend(loc="outside upper left", ncols=min(4, len(rates) + 1), handlelength=3)
    return fig


def how_far(moves: Mapping[str, Values]) -> Figure:
    """The share of documents that moved at most so many places, a line for each packing.

    ``moves`` maps names to how many places each document moved, 0 or more.
    """
    values = {name: np.sort(np.asarray(v, dtype=np.float64)) for name, v in moves.items()}
    wrong = [name for name, v in values.items() if not v.size or v[0] < 0 or not np.isfinite(v).all()]
    if not values or wrong:
        raise ValueError(f"moves{wrong or ''}: expected numbers of places by name, none negative")
    with style():
        fig = new_figure(2.9)
        ax = fig.subplots()
        for i, (name, v) in enumerate(values.items()):
            look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": DASHES[i % len(DASHES)]}
            shown = np.unique(np.linspace(0, v.size - 1, min(v.size, _MOST_POINTS)).astype(int))
            ax.plot(np.maximum(v[shown], 1), (shown + 1) / v.size, label=name, **look)
        ax.set_xscale("log")
        ax.set_xlim(1, None)
        ax.set_ylim(0, 1.03)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))
        ax.grid(axis="y")
        ax.set_xlabel("places moved, at most (logarithmic)")
        ax.set_ylabel("share of documents")
        fig.legend(loc="outside upper left", ncols=min(4, len(values)), handlelength=3)
    return fig


def places(orders: Mapping[str, Values], *, most: int = _MOST_POINTS) -> Figure:
    """Where each document of the data stands in training, a panel for each packing; unmoved is the diagonal.

    Args:
        orders: for each name the documents in training order, as places in the data, each once.
        most: at most so many points a panel, evenly chosen.
    """
    found = {name: np.asarray(order) for name, order in orders.items()}
    wrong = [name for name, order in found.items() if not np.array_equal(np.sort(order), np.arange(len(order)))]
    if not found or wrong or not all(map(len, found.values())):
        raise ValueError(f"orders{wrong or ''}: expected every place 0, 1, ... once, by name")
    with style():
        fig = new_figure(0.75 + 7.0 / max(3, len(found)))
        axes = fig.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for ax, (name, order) in zip(axes, found.items(), strict=True):
            n = len(order)
            at = np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))
            ax.plot([0, n], [0, n], color=MUTED, linewidth=1, linestyle="--")
            ax.plot(order[at], at, linestyle="", marker=".", markersize=2, color=SERIES[0], rasterized=True)
            ax.set_title(name)
            ax.set_aspect("equal")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(MaxNLocator(3))
                axis.set_major_formatter(FuncFormatter(_thousands))
            ax.set_xlabel("place in the data")
        axes[0].set_ylabel("place in training")
    return fig


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
