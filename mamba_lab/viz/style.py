"""One style for all pictures:

Sizes, fonts and lines, applied inside a context so that a reader's own settings stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from mamba_lab.viz.colours import CARD, GRID, INK, MUTED, SERIES

PAGE_WIDTH = 760
"""CSS pixels a picture takes on a page."""
WIDTH = 7.6
"""Inches that fill the page, so that one inch is 100 CSS pixels and 9 pt of text are 12.5 CSS pixels high."""
DPI = 125
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
HATCHES = ("", "///", "...", "xxx")

SMALL, TEXT, TITLE = 9.0, 10.0, 11.0

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": TITLE,
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelsize": TEXT,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": CARD,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=SERIES[:4]) + cycler(linestyle=DASHES),
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.7,
    "figure.facecolor": CARD,
    "figure.dpi": DPI,
    "savefig.facecolor": CARD,
    "savefig.dpi": "figure",
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw inside this context and your own picture looks like the course's: ``with style():

    Fig = new_figure(2.4)``.
    """
    with matplotlib.rc_context(_RC):
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, ``width`` by ``height`` inches (one inch is 100 CSS pixels).

    It isn't registered with pyplot, so a notebook never shows it a second time. Call it inside :func:`style`.
    """
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
