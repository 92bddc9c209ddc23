"""A padded batch drawn to scale: one bar a row, real tokens filled and padding hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mamba_lab.viz.colours import CARD, PADDING, PADDING_HATCH, SERIES
from mamba_lab.viz.style import new_figure, style


def padded_rows(lengths: Sequence[int] | np.ndarray) -> Figure:
    """Rows of these lengths, padded to the longest; the title counts real tokens and positions."""
    n = np.asarray(lengths, dtype=np.int64)
    if n.ndim != 1 or not len(n) or n.min() < 0 or not n.max():
        raise ValueError("lengths: expected at least one row and a longest above 0")
    longest = int(n.max())
    with style():
        fig = new_figure(0.85 + 0.13 * len(n))
        ax = fig.subplots()
        rows = np.arange(len(n))
        ax.barh(rows, n, 0.8, color=SERIES[0], edgecolor=CARD, linewidth=0.4, label="real")
        empty: dict[str, Any] = {"color": PADDING, "edgecolor": PADDING_HATCH, "hatch": "////", "linewidth": 0.4}
        ax.barh(rows, longest - n, 0.8, left=n, label="padding", **empty)
        positions = len(n) * longest
        ax.set_title(f"{n.sum():,} real tokens in {positions:,} positions: {n.sum() / positions:.0%} valid")
        ax.set_ylim(len(n) - 0.4, -0.6)
        ax.set_xlim(0, longest)
        ax.set_yticks([])
        ax.set_ylabel("rows")
        ax.set_xlabel("position in the row (tokens)")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        fig.legend(loc="outside lower right", ncols=2)
    return fig
