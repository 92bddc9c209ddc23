"""The four numbers of training, step by step: a row of small panels for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from mamba_lab.viz.colours import LEAK, SERIES
from mamba_lab.viz.style import SMALL, new_figure, style

NUMBERS = ("loss", "valid ratio", "longest", "gradient norm")

Row = tuple[float, float, float, float]


def four_numbers(runs: Mapping[str, Sequence[Row]]) -> Figure:
    """Loss, valid ratio, longest sequence and gradient norm against the step; ``runs`` maps a name to its steps' rows.

    The valid ratio's panel has a line at 80%, under which one should stop and look. A number that is none has a cross
    at the panel's foot.
    """
    if not runs or not all(len(rows) for rows in runs.values()):
        raise ValueError("runs: expected at least one run with at least one step")
    with style():
        fig = new_figure(0.4 + 1.45 * len(runs))
        axes = fig.subplots(len(runs), len(NUMBERS), squeeze=False, sharex=True)
        for line, (name, rows) in zip(axes, runs.items(), strict=True):
            table = np.asarray(rows, dtype=np.float64)
            if table.ndim != 2 or table.shape[1] != len(NUMBERS):
                raise ValueError(f"runs[{name!r}]: expected rows of {len(NUMBERS)} numbers, got shape {table.shape}")
            for column, (ax, number) in enumerate(zip(line, NUMBERS, strict=True)):
                _panel(ax, table[:, column], number, SERIES[column])
            line[0].set_title(name)
        for ax in axes[-1]:
            ax.set_xlabel("step")
    return fig


def _panel(ax: Axes, values: np.ndarray[Any, Any], number: str, colour: str) -> None:
    steps = np.arange(1, len(values) + 1)
    finite = np.isfinite(values)
    ax.plot(steps, np.where(finite, values, np.nan), color=colour, linestyle="-", linewidth=1.5)
    top = float(values[finite].max(initial=1e-9))
    if number == "gradient norm" and finite.any() and top > 20 * float(np.median(values[finite])) > 0:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    else:
        ax.set_ylim(0, 1.08 if number == "valid ratio" else top * 1.15)
        ax.yaxis.set_major_locator(MaxNLocator(3))
    if number == "valid ratio":
        ax.axhline(0.8, color=LEAK, linestyle="--", linewidth=0.9)
        ax.set_yticks([0, 0.5, 1])
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif number == "longest":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    if not finite.all():
        ax.scatter(
            steps[~finite], np.full((~finite).sum(), ax.get_ylim()[0]), marker="x", color=LEAK, s=14, clip_on=False
        )
    ax.set_ylabel(number, fontsize=SMALL)
    ax.grid(axis="y")
    ax.tick_params(labelsize=SMALL - 1)
    ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
