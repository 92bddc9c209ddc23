"""The picture of `mamba-lab pack`: how long the documents are, and what each scheme wastes on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from mamba_lab.viz.colours import CARD, LEAK, SERIES
from mamba_lab.viz.style import SMALL, new_figure, style

_BINS = 40


def pack_report(lengths: Sequence[int] | np.ndarray, padding: Mapping[str, float], capacity: int) -> Figure:
    """A histogram of lengths with the capacity, above the padding rate of each scheme.

    Args:
        lengths: tokens of each document; at least one above 0.
        padding: padding rates between 0 and 1 by scheme.
        capacity: the tokens of a row, drawn as a dashed line.
    """
    n = np.asarray(lengths, dtype=np.int64)
    n = n[n > 0]
    if not n.size or not padding:
        raise ValueError("lengths and padding: expected at least one length above 0 and one scheme")
    with style():
        fig = new_figure(3.1 + 0.28 * len(padding))
        top, bottom = fig.subplots(2, 1, height_ratios=(2.2, 0.6 + 0.28 * len(padding)))
        edges = np.geomspace(n.min(), max(n.max(), capacity) + 1, _BINS + 1)
        top.hist(n, bins=edges.tolist(), color=SERIES[0], edgecolor=CARD, linewidth=0.4)
        top.set_xscale("log")
        top.axvline(capacity, color=LEAK, linestyle="--", linewidth=1.5)
        top.annotate(
            f"capacity {capacity:,} ", (capacity, 1), xycoords=("data", "axes fraction"), ha="right", va="top",
            fontsize=SMALL, color=LEAK,
        )  # fmt: skip
        top.set_title(f"{n.size:,} documents, {n.sum():,} tokens")
        top.set_xlabel("length of a document (tokens, logarithmic)")
        top.set_ylabel("documents")
        top.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        top.xaxis.set_minor_formatter(NullFormatter())
        rates = list(padding.values())
        bars = bottom.barh(range(len(rates)), rates, 0.7, color=SERIES[1])
        bottom.bar_label(bars, [f"{rate:.1%}" for rate in rates], padding=4, fontsize=SMALL)
        bottom.set_yticks(range(len(rates)), list(padding))
        bottom.tick_params(axis="y", length=0)
        bottom.invert_yaxis()
        bottom.set_xlim(0, 1.08)
        bottom.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0%}"))
        bottom.set_xlabel("padding rate")
    return fig
