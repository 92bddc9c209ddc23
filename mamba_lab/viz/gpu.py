"""A GPU in pictures: its memory spaces, the lanes of a warp, and times beside the floor that no kernel can pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from mamba_lab.viz.colours import CARD, INK, MUTED, SERIES, document_colour, document_name
from mamba_lab.viz.style import HATCHES, SMALL, TEXT, WIDTH, new_figure, style

_SPACES = (
    ("global memory", "of the GPU", "141 GB · 4.2 TB/s copied", "u, delta, z, B, C, y"),
    ("L2 cache", "of the GPU", "60 MB", "what several blocks read"),
    ("shared memory", "of a block", "up to 227 KB of a multiprocessor", "a tile: dt, dt u, B, C"),
    ("registers", "of a thread", "256 KB of a multiprocessor, at most 255 numbers a thread", "the states h"),
)


def memory_spaces() -> Figure:
    """Where a kernel's numbers can lie on an H200, from far and large to near and small; what the scan keeps there."""
    with style():
        fig = new_figure(2.75)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set_xlim(0, 100)
        ax.set_ylim(0, 36)
        ax.axis("off")
        for depth, (name, owner, size, holds) in enumerate(_SPACES):
            left, right, top = 1.5 + 4 * depth, 98.5 - depth, 34.8 - 8.2 * depth
            box = FancyBboxPatch(
                (left, 1.2 + 0.5 * depth),
                right - left,
                top - 1.2 - 0.5 * depth,
                boxstyle="round,pad=0,rounding_size=0.8",
            )
            box.set(facecolor=CARD, edgecolor=SERIES[depth], linewidth=1.8)
            ax.add_patch(box)
            ax.text(left + 1.5, top - 2.6, name, fontsize=TEXT, fontweight="bold", color=INK, va="center")
            ax.text(left + 1.5, top - 5.6, f"{owner}: {size}", fontsize=SMALL, color=MUTED, va="center")
            ax.text(right - 1.5, top - 2.6, holds, fontsize=SMALL, color=INK, ha="right", va="center")
    return fig


def warp_lanes(lanes_of_channel: int, *, states: int = 16, warp: int = 32) -> Figure:
    """The lanes of a warp as cells in a row: its channel's colour and letter, and the states that it holds below.

    Args:
        lanes_of_channel: how many lanes share a channel; it divides ``states`` and ``warp``.
    """
    if lanes_of_channel < 1 or states % lanes_of_channel or warp % lanes_of_channel:
        raise ValueError(f"lanes_of_channel is {lanes_of_channel}, expected a divisor of {states} and of {warp}")
    each = states // lanes_of_channel
    per_row = 16
    rows = -(-warp // per_row)
    with style():
        fig = new_figure(0.62 * rows + 0.1)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set_xlim(-0.2, per_row + 0.2)
        ax.set_ylim(rows, -0.05)
        ax.axis("off")
        for lane in range(warp):
            x, y = lane % per_row, lane // per_row
            channel, part = divmod(lane, lanes_of_channel)
            ax.add_patch(
                Rectangle((x + 0.04, y + 0.06), 0.92, 0.86, facecolor=document_colour(channel), edgecolor=CARD)
            )
            last = part * each + each - 1
            held = f"h{part * each}–{last}" if each > 1 else f"h{last}"
            ax.text(x + 0.5, y + 0.33, f"{lane}: {document_name(channel)}", ha="center", va="center", fontsize=SMALL)
            ax.text(x + 0.5, y + 0.68, held, ha="center", va="center", fontsize=SMALL - 1)
    return fig


@dataclass(frozen=True)
class Timed:
    """A kernel's ``milliseconds``, and the ``floor`` below which none can be (the same unit)."""

    name: str
    milliseconds: float
    floor: float


def times_and_floors(groups: Mapping[str, Sequence[Timed]]) -> Figure:
    """Bars of milliseconds, a panel for each group; a thick line in each bar marks its floor."""
    if not groups or not all(groups.values()):
        raise ValueError("groups: expected at least one kernel in each")
    most = max(len(kernels) for kernels in groups.values())
    with style():
        fig = new_figure(0.85 + 0.36 * most, WIDTH)
        axes = fig.subplots(1, len(groups), squeeze=False)[0]
        for ax, (title, kernels) in zip(axes, groups.items(), strict=True):
            top = max(kernel.milliseconds for kernel in kernels)
            for y, kernel in enumerate(kernels):
                ax.barh(y, kernel.milliseconds, 0.62, color=SERIES[y % len(SERIES)], hatch=HATCHES[y % len(HATCHES)],
                        edgecolor=CARD)  # fmt: skip
                ax.plot([kernel.floor, kernel.floor], [y - 0.36, y + 0.36], color=INK, linewidth=2.6, linestyle="-")
                ax.annotate(f"{kernel.milliseconds:.3g}", (kernel.milliseconds, y), xytext=(4, 0),
                            textcoords="offset points", va="center", fontsize=SMALL)  # fmt: skip
            ax.set_yticks(range(len(kernels)), [kernel.name for kernel in kernels])
            ax.tick_params(axis="y", length=0)
            ax.set_ylim(len(kernels) - 0.5, -0.5)
            ax.set_xlim(0, top * 1.22)
            ax.set_title(title)
            ax.set_xlabel("ms (line: floor)")
    return fig
