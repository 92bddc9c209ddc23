"""Which states a backward pass keeps and which it makes again, and how many it holds at once for each distance K."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from mamba_lab.viz.colours import CARD, GRID, INK, PADDING_HATCH, SERIES, document_colour
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, new_figure, style

MOST_TOKENS = 16
_LABEL, _COUNTS = 1.35, 1.9  # inches, left and right of the cells
_HIGH, _PITCH = 0.34, 0.56  # inches


def costs(T: int, K: int) -> tuple[int, int]:
    """The most states held at once, and the steps of both passes that make states, of a checkpointed scan.

    The state before each K-th token is kept. A tile of K tokens holds its K states, one of which is its checkpoint,
    and makes K - 1 of them again. K = 1 keeps all; K = 0 keeps none and begins anew for each token.
    """
    if K == 0:
        return 1, T + T * (T - 1) // 2
    tiles = -(-T // K)
    most = max(i + min(K, T - i * K) for i in range(tiles))
    return most, T + T - tiles


def checkpoint_rows(T: int, K: int) -> Figure:
    """Keep all, keep every K-th, keep none: the states held while the gradient is at the last token.

    A full cell is kept from the forward pass, a hatched one is made again; beside them stand :func:`costs`.

    Args:
        T: tokens, 2 to 16.
        K: tokens from one kept state to the next, 2 to T.

    Raises:
        ValueError: a T or K outside these.
    """
    if not 2 <= T <= MOST_TOKENS:
        raise ValueError(f"T is {T}: expected 2 to {MOST_TOKENS} tokens, to be readable")
    if not 2 <= K <= T:
        raise ValueError(f"K is {K}: expected 2 to {T}")
    last_tile = (T - 1) // K * K
    kept = ("kept", "again", "")
    plans = (
        ("all", 1, [kept[0]] * T),
        (f"every {K}th", K, [kept[0] if t % K == 0 else kept[1] if t > last_tile else kept[2] for t in range(T)]),
        ("none", 0, [kept[2]] * (T - 1) + [kept[1]]),
    )
    tall = 0.32 + len(plans) * _PITCH + 0.3
    with style():
        fig = Figure(figsize=(WIDTH, tall))
        width = WIDTH - _LABEL - _COUNTS
        ax = fig.add_axes((_LABEL / WIDTH, 0, width / WIDTH, 1))
        ax.set_xlim(0, T)
        ax.set_ylim(tall, 0)
        ax.axis("off")
        _beside(ax, T, 0.18, "held at once", "steps")
        for t in range(T):
            ax.text(t + 0.5, 0.18, str(t), ha="center", va="center_baseline", fontsize=SMALL)
        ax.annotate("token", (0, 0.18), xytext=(-8, 0), textcoords="offset points", ha="right", va="center_baseline",
                    fontsize=TEXT, annotation_clip=False)  # fmt: skip
        for i, (name, distance, cells) in enumerate(plans):
            y = 0.36 + i * _PITCH
            ax.annotate(f"keep {name}", (0, y + _HIGH / 2), xytext=(-8, 0), textcoords="offset points", ha="right",
                        va="center_baseline", fontsize=TEXT, annotation_clip=False)  # fmt: skip
            for t, what in enumerate(cells):
                _cell(ax, t, y, what)
            held, steps = costs(T, distance)
            _beside(ax, T, y + _HIGH / 2, str(held), str(steps))
        _key(fig, tall)
    return fig


def held_by_distance(distances: Sequence[int], held: Sequence[int], *, total: int) -> Figure:
    """States held at once against K, measured, both axes logarithmic; the lowest is marked.

    Args:
        distances: each K, at least 1, ascending.
        held: the states held at once for each.
        total: T, drawn as the line "all T states".

    Raises:
        ValueError: no K, or lists of different lengths.
    """
    if len(distances) != len(held) or not distances:
        raise ValueError(f"held has {len(held)} numbers, expected {len(distances)}, one for each K and at least one")
    best = min(range(len(held)), key=lambda i: held[i])
    with style():
        fig = new_figure(3.1)
        ax = fig.subplots()
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.axhline(total, color=SERIES[5], linestyle=":", linewidth=1.5)
        ax.annotate(f"all {total:,} states", (distances[0], total), xytext=(0, 4), textcoords="offset points",
                    fontsize=SMALL)  # fmt: skip
        ax.plot(distances, held, color=SERIES[0], marker="o", markersize=5, linestyle="-")
        ax.plot([distances[best]], [held[best]], color=SERIES[1], marker="D", markersize=8, linestyle="none")
        ax.annotate(f"fewest: {held[best]} at K = {distances[best]}", (distances[best], held[best]), xytext=(0, -16),
                    textcoords="offset points", fontsize=SMALL, ha="center", va="top")  # fmt: skip
        ax.set_ylim(min(held) / 2.2, total * 1.7)
        ax.set_xticks(list(distances), [f"{k:,}" for k in distances])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_formatter(NullFormatter())
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.set_xlabel("K, tokens from one kept state to the next")
        ax.set_ylabel("states held at once")
        ax.grid(axis="y")
    return fig


def _beside(ax: Axes, T: int, y: float, held: str, steps: str) -> None:
    for text, points in ((held, 62), (steps, 118)):
        ax.annotate(text, (T, y), xytext=(points - 10, 0), textcoords="offset points", ha="center",
                    va="center_baseline", fontsize=TEXT, annotation_clip=False)  # fmt: skip


def _cell(ax: Axes, t: int, y: float, what: str) -> None:
    fill = document_colour(0) if what == "kept" else CARD
    box = Rectangle((t + 0.06, y), 0.88, _HIGH, facecolor=fill, edgecolor=INK if what else GRID, linewidth=0.9,
                    gid=what or "empty")  # fmt: skip
    ax.add_patch(box)
    if what == "again":
        ax.add_patch(Rectangle((t + 0.06, y), 0.88, _HIGH, fill=False, hatch="////", edgecolor=PADDING_HATCH,
                               linewidth=0))  # fmt: skip
        ax.add_patch(Rectangle((t + 0.06, y), 0.88, _HIGH, fill=False, edgecolor=INK, linewidth=0.9))


def _key(fig: Figure, tall: float) -> None:
    ax = fig.add_axes((0, 0, 1, 0.3 / tall))
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(0.3, 0)
    ax.axis("off")
    for what, text, x in (("kept", "kept from the forward pass", 1.35), ("again", "made again", 3.7)):
        fill = document_colour(0) if what == "kept" else CARD
        ax.add_patch(Rectangle((x, 0.05), 0.26, 0.17, facecolor=fill, edgecolor=INK, linewidth=0.9,
                               hatch="////" if what == "again" else None))  # fmt: skip
        ax.text(x + 0.36, 0.14, text, fontsize=SMALL, va="center_baseline")
