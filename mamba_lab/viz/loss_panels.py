"""Loss curves side by side, one panel a mistake, each beside the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mamba_lab.viz.colours import SERIES
from mamba_lab.viz.style import DASHES, SMALL, new_figure, style


def loss_panels(
    parts: Mapping[str, Mapping[str, Sequence[float]]], *, what: str = "loss per target (nats)", columns: int = 2
) -> Figure:
    """Loss against step. ``parts`` maps a panel's title to its runs by name; all panels share both axes."""
    if not parts or not all(runs and all(len(run) for run in runs.values()) for runs in parts.values()):
        raise ValueError("parts: expected panels that each hold at least one run with at least one loss")
    rows = -(-len(parts) // columns)
    top = max(float(np.nanmax(run)) for runs in parts.values() for run in runs.values())
    with style():
        fig = new_figure(0.5 + 2.0 * rows)
        axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax in axes.flat[len(parts) :]:
            ax.axis("off")
        for ax, (title, runs) in zip(axes.flat, parts.items(), strict=False):
            for i, (name, losses) in enumerate(runs.items()):
                look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": DASHES[i % len(DASHES)]}
                ax.plot(np.arange(1, len(losses) + 1), losses, label=name, linewidth=1.6, **look)
            ax.set_title(title)
            ax.grid(axis="y")
            ax.set_ylim(-0.05, top * 1.35)  # room for the legend above the curves
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            ax.legend(loc="upper right", fontsize=SMALL, handlelength=2.6)
        fig.supxlabel("step", fontsize=10)
        fig.supylabel(what, fontsize=10)
    return fig
