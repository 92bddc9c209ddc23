"""A quantity against another one, a line for each data set or model, and how a quantity is spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from mamba_lab.viz.colours import CARD, INK, SERIES
from mamba_lab.viz.style import DASHES, SMALL, new_figure, style

Values = Sequence[float] | np.ndarray


def curves(
    x: Values,
    lines: Mapping[str, Values],
    *,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    percent: bool = False,
    bands: Mapping[str, tuple[Values, Values]] | None = None,
) -> Figure:
    """``lines`` over ``x``, named above.

    Args:
        x: [n], shared by all lines.
        lines: [n] values by name.
        xlabel, ylabel: what the axes show, with units.
        log: a logarithmic x axis, labelled at each x.
        percent: y between 0 and 1 is drawn as a percentage.
        bands: [n] lower and [n] upper values by the name of a line, drawn pale behind it: how its values are spread.
    """
    fig = panels(x, {"": lines}, xlabel=xlabel, ylabel=ylabel, log=log, percent=percent)
    drawn = {line.get_label(): line for line in fig.axes[0].lines}
    for name, (lower, upper) in (bands or {}).items():
        if name not in drawn or not len(lower) == len(upper) == len(x):
            raise ValueError(f"bands[{name!r}]: expected {len(x)} lower and upper values of one of {[*lines]}")
        fig.axes[0].fill_between(x, lower, upper, color=drawn[name].get_color(), alpha=0.2, linewidth=0)
    return fig


def panels(
    x: Values,
    parts: Mapping[str, Mapping[str, Values]],
    *,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    percent: bool = False,
) -> Figure:
    """Several :func:`curves` side by side with one y axis; ``parts`` maps titles to lines by name."""
    if not parts or not all(parts.values()):
        raise ValueError("parts: expected at least one line, got none")
    wrong = [(name, len(y)) for lines in parts.values() for name, y in lines.items() if len(y) != len(x)]
    if wrong:
        raise ValueError(f"lines[{wrong[0][0]!r}] has {wrong[0][1]} values, expected {len(x)}, one for each x")
    with style():
        fig = new_figure(3.0)
        axes = fig.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for ax, (title, lines) in zip(axes, parts.items(), strict=True):
            for i, (name, y) in enumerate(lines.items()):
                look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": DASHES[i % len(DASHES)]}
                ax.plot(x, y, label=name, marker="o", markersize=4, **look)
            ax.set_title(title)
            ax.set_xlabel(xlabel)
            ax.grid(axis="y")
            _scales(ax, x, log, percent)
        axes[0].set_ylabel(ylabel)
        if len(first := next(iter(parts.values()))) > 1:
            fig.legend(
                *axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=min(4, len(first)), handlelength=3
            )
    return fig


def spread(
    values: Values, *, xlabel: str, ylabel: str, mark: float, mark_name: str, prediction: float | None = None
) -> Figure:
    """How positive ``values`` are spread, on a logarithmic axis; one value is marked, the reader's guess dashed."""
    v = np.asarray(values, dtype=np.float64)
    if v.size == 0 or not np.isfinite(v).all() or (v <= 0).any():
        raise ValueError("values: expected finite numbers above 0, at least one")
    if prediction is not None and not (np.isfinite(prediction) and prediction > 0):
        raise ValueError(f"prediction is {prediction}: expected a number above 0, or None")
    with style():
        fig = new_figure(2.7)
        ax = fig.subplots()
        ax.set_xscale("log")
        ax.hist(
            v, bins=np.geomspace(v.min(), v.max() * 1.0001, 50).tolist(), color=SERIES[0], edgecolor=CARD, linewidth=0.4
        )
        top = ax.get_ylim()[1] * 1.25
        ax.set_ylim(0, top)
        marks = [(mark, f"{mark_name} {mark:,.3g}", "-", SERIES[1])]
        if prediction is not None:
            marks.append((prediction, f"your prediction {prediction:,.3g}", "--", INK))
        for height, (value, text, dash, colour) in zip((0.96, 0.84), marks, strict=False):
            ax.axvline(value, color=colour, linestyle=dash, linewidth=1.8)
            ax.annotate(
                text, (value, top * height), xytext=(5, 0), textcoords="offset points", fontsize=SMALL, va="top"
            )
        ax.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:,g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:,.0f}"))
        ax.set_xlabel(xlabel)
        ax.set_ylabel(ylabel)
    return fig


def _scales(ax: Axes, x: Values, log: bool, percent: bool) -> None:
    if log:
        ax.set_xscale("log")
        ax.set_xticks(list(x), [f"{value:,g}" for value in x], rotation=45, fontsize=SMALL)
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.minorticks_off()
    if percent:
        ax.set_ylim(0, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
