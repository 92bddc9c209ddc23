"""A GPU in pictures: its memory spaces, the lanes of a warp, and kernels beside the limits that none can pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

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


@dataclass(frozen=True)
class Kernel:
    """What a kernel reached: operations for each byte that it must move (``per_byte``), and operations a second.

    ``part`` says which part of the work it is ("forward"); kernels of one name share a colour, of one part a mark.
    """

    name: str
    part: str
    per_byte: float
    per_second: float


def roofline(
    kernels: Sequence[Kernel],
    *,
    bytes_per_second: float,
    operations_per_second: float,
    operation: str = "exponentials",
) -> Figure:
    """Kernels below the two limits of a chip (Williams, Waterman and Patterson 2009): a slope, and a flat roof.

    A kernel with few operations for each byte is under the slope, where memory limits; another is under the flat part.
    Each is labelled with what it reached, in percent of the roof over it. Both axes are logarithmic.

    Args:
        bytes_per_second: what memory moves.
        operations_per_second: what the chip computes where memory plays no part.
        operation: what is counted, in the plural.
    """
    if not kernels or not all(kernel.per_byte > 0 and kernel.per_second > 0 for kernel in kernels):
        raise ValueError("kernels: expected at least one, with per_byte and per_second above 0")
    if not (bytes_per_second > 0 and operations_per_second > 0):
        raise ValueError(
            f"bytes_per_second is {bytes_per_second} and operations_per_second {operations_per_second}, expected more "
            "than 0"
        )
    ridge = operations_per_second / bytes_per_second
    places = [kernel.per_byte for kernel in kernels]
    left, right = min(ridge, *places) / 8, max(ridge, *places) * 6
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    parts = list(dict.fromkeys(kernel.part for kernel in kernels))
    with style():
        fig = new_figure(3.5)
        ax = fig.subplots()
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.grid(True)
        roof = [left * bytes_per_second, operations_per_second, operations_per_second]
        ax.plot([left, ridge, right], roof, color=INK, linewidth=2.2, linestyle="-")
        words: dict[str, Any] = {
            "textcoords": "offset points",
            "fontsize": SMALL,
            "color": INK,
            "annotation_clip": False,
            "bbox": {"facecolor": CARD, "edgecolor": "none", "pad": 1},
        }
        ax.annotate(f"{operation}: {operations_per_second / 1e12:.2f} · 10¹² a second",
                    (right, operations_per_second), xytext=(0, 7), ha="right", **words)  # fmt: skip
        middle = left**0.3 * ridge**0.7
        ax.annotate(f"memory: {bytes_per_second / 1e12:.2f} TB a second",
                    (middle, middle * bytes_per_second), xytext=(-3, 8), ha="right", **words)  # fmt: skip
        for kernel in kernels:
            limit = min(operations_per_second, kernel.per_byte * bytes_per_second)
            ax.plot(
                kernel.per_byte,
                kernel.per_second,
                "os^D"[parts.index(kernel.part) % 4],
                color=SERIES[names.index(kernel.name) % len(SERIES)],
                markersize=9,
                markeredgecolor=CARD,
            )
            far = kernel.per_byte == max(places)
            ax.annotate(f"{kernel.name}, {kernel.part}: {kernel.per_second / limit:.0%}",
                        (kernel.per_byte, kernel.per_second), xytext=(9 if far else -9, 0), va="center",
                        ha="left" if far else "right", **words)  # fmt: skip
        ax.set_xlim(left, right)
        ax.set_ylim(min(min(kernel.per_second for kernel in kernels), roof[0]) / 1.6, operations_per_second * 2)
        ax.xaxis.set_major_locator(LogLocator(base=2))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y / 1e12:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xlabel(f"{operation} for each byte that must move")
        ax.set_ylabel(f"10¹² {operation} a second")
    return fig
