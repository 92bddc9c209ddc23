"""Who hears whom: which tokens of a row notice a change of one of them, a row for each part of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mamba_lab.viz.colours import CARD, GRID, INK, LEAK, SERIES
from mamba_lab.viz.style import SMALL, new_figure, style


def reach_grid(heard: Mapping[str, Sequence[bool]], changed: int, *, start: int | None = None) -> Figure:
    """A grid of tokens: filled where a part's output noticed the change of token ``changed``.

    Args:
        heard: one row of booleans [T] a part, in the order of drawing. Parts whose name ends in "reset" are drawn
            with the wall that they know of.
        changed: the token that was changed; it has a dot.
        start: where a second sequence starts, or None. Noticed tokens behind it are a leak, red and crossed.
    """
    sizes = {len(row) for row in heard.values()}
    if len(sizes) != 1 or not 0 <= changed < next(iter(sizes)):
        raise ValueError(f"heard: expected rows of one length that have token {changed}, got lengths {sorted(sizes)}")
    n = sizes.pop()
    with style():
        fig = new_figure(0.75 + 0.36 * len(heard))
        ax = fig.subplots()
        for y, (name, row) in enumerate(heard.items()):
            for t, noticed in enumerate(row):
                leak = bool(noticed) and start is not None and t >= start and changed < start
                fill = (LEAK if leak else SERIES[0]) if noticed else CARD
                ax.add_patch(Rectangle((t + 0.06, y + 0.1), 0.88, 0.8, facecolor=fill, edgecolor=GRID))
                if leak:
                    ax.text(t + 0.5, y + 0.5, "×", color=CARD, ha="center", va="center_baseline", fontsize=12)
            ax.plot(changed + 0.5, y + 0.5, "o", color=CARD if row[changed] else INK, markersize=6)
            if start is not None and name.endswith("reset"):
                ax.plot([start, start], [y, y + 1], color=INK, linewidth=3.2, linestyle="-")
        ax.set_xlim(0, n)
        ax.set_ylim(len(heard), 0)
        ax.set_yticks([y + 0.5 for y in range(len(heard))], list(heard))
        ax.set_xticks([t + 0.5 for t in range(n)], [str(t) for t in range(n)], fontsize=SMALL)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel("token")
        ax.set_ylabel("part")
    return fig
