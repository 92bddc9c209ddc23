"""One quantity against another, a dot for each measured thing, several kinds of things in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mamba_lab.viz.colours import CARD, SERIES
from mamba_lab.viz.style import new_figure, style

MARKERS = ("o", "s", "^", "D", "v", "P")
Values = Sequence[float] | np.ndarray


def dots(kinds: Mapping[str, tuple[Values, Values]], *, xlabel: str, ylabel: str) -> Figure:
    """A dot for each pair of values, the kinds told apart by colour and shape.

    Args:
        kinds: [n] x and [n] y values by name; n may differ from kind to kind.
        xlabel, ylabel: what the axes show, with units.

    Raises:
        ValueError: no kind, or one without values or with x and y of different lengths.
    """
    if not kinds:
        raise ValueError("kinds is empty: expected at least one kind with its x and y values")
    for name, (x, y) in kinds.items():
        if not len(x) == len(y) > 0:
            raise ValueError(f"kinds[{name!r}] has {len(x)} x and {len(y)} y values, expected as many, at least one")
    with style():
        fig = new_figure(3.0)
        ax = fig.subplots()
        for i, (name, (x, y)) in enumerate(kinds.items()):
            marker, colour = MARKERS[i % len(MARKERS)], SERIES[i % len(SERIES)]
            ax.scatter(x, y, s=34, marker=marker, color=colour, edgecolor=CARD, linewidth=0.6, label=name)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.set_xlabel(xlabel)
        ax.set_ylabel(ylabel)
        ax.grid(axis="y")
        if len(kinds) > 1:
            fig.legend(loc="outside upper left", ncols=min(4, len(kinds)))
    return fig
