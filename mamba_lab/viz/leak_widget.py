"""The leak map as a widget: choose which part resets, see who hears whom. Only the widget needs ipywidgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.models import TinyMambaBlock
from mamba_lab.viz.colours import document_name
from mamba_lab.viz.figure import to_png
from mamba_lab.viz.leak_map import count_leaks, leak_maps
from mamba_lab.viz.style import PAGE_WIDTH
from mamba_lab.viz.widgets import boxed, control_look, escaped, lengths_field, parse_lengths

if TYPE_CHECKING:
    import ipywidgets

_WIDTH = 4  # d_model: enough that no two influences cancel
_MOST_TOKENS = 40


class _Block(TinyMambaBlock):
    """A block whose convolution and scan each have positions of their own."""

    def convolve(self, u: Tensor, position: Tensor) -> Tensor:
        return super().convolve(u, position[0])

    def scan(self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, position: Tensor) -> Tensor:
        return super().scan(u, delta, B, C, position[1])


def block_leaks(
    lengths: Sequence[int],
    *,
    reset_convolution: bool,
    reset_scan: bool,
    blocks: int = 1,
    taps: int = 4,
) -> np.ndarray:
    """How strongly each output of ``blocks`` random Mamba blocks depends on each input, by autograd.

    Args:
        lengths: tokens of each document of the pack, T in all.
        reset_convolution, reset_scan: whether that part is told where documents start.
        blocks: blocks on top of each other, each added to its input.
        taps: W, the width of the convolution.

    Returns:
        float64 [T, T]: the norm of d output / d input, outputs down, inputs across. Zeros are exact.
    """
    positions = Boundaries.from_lengths(lengths).position_indices.long()
    one = torch.arange(len(positions))
    chosen = torch.stack([positions if reset else one for reset in (reset_convolution, reset_scan)])[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [_Block(_WIDTH, d_conv=taps).double() for _ in range(blocks)]
        x = torch.randn(1, len(positions), _WIDTH, dtype=torch.float64)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = x + layer(x, chosen)
        return x[0]

    slopes = torch.autograd.functional.jacobian(run, x, vectorize=True)[:, :, 0]  # [T, channels, T, channels]
    return np.asarray(slopes.square().sum((1, 3)).sqrt().numpy())


def explore(
    lengths: Sequence[int], reset_convolution: bool, reset_scan: bool, blocks: int, taps: int, picked: int
) -> tuple[Figure, str]:
    """The map of :func:`block_leaks`, with output ``picked`` framed, and a sentence about it.

    Raises:
        ValueError: no token, or more than 40.
    """
    n = sum(lengths)
    if not 0 < n <= _MOST_TOKENS:
        raise ValueError(f"lengths add up to {n}: expected 1 to {_MOST_TOKENS} tokens, so that cells can be seen")
    sizes = block_leaks(lengths, reset_convolution=reset_convolution, reset_scan=reset_scan, blocks=blocks, taps=taps)
    leaks, possible = count_leaks(sizes, lengths)
    number = np.repeat(np.arange(len(lengths)), lengths)
    place = picked - int(sum(lengths[: number[picked]]))
    foreign = np.unique(number[(sizes[picked] != 0) & (number != number[picked])])
    heard = " and ".join(document_name(int(i)) for i in foreign) or "no other document"
    text = (
        f"{leaks} of {possible} forbidden pairs leak. "
        f"Output {document_name(int(number[picked]))}{place} (framed) hears {heard}."
    )
    return leak_maps({_called(reset_convolution, reset_scan): sizes}, lengths, picked=picked), text


def leak_explorer(lengths: Sequence[int] | None = None) -> ipywidgets.VBox:
    """The map as a widget, of the running example or of documents of your own ``lengths``.

    The parts are also attributes of the returned box, by name in ``box.parts``: convolution, scan, blocks, taps,
    output, own, image, text.
    """
    import ipywidgets as w

    from mamba_lab.example import LENGTHS

    look = control_look()
    convolution = w.Checkbox(value=False, description="the convolution resets", indent=False)
    scan = w.Checkbox(value=True, description="the scan resets", indent=False)
    blocks = w.IntSlider(value=1, min=1, max=3, description="blocks", continuous_update=False, **look)
    taps = w.IntSlider(value=4, min=1, max=8, description="taps (W)", continuous_update=False, **look)
    output = w.IntSlider(value=4, min=0, max=15, description="output", continuous_update=False, **look)
    own = lengths_field(lengths or LENGTHS)
    image, text = w.Image(format="png", width=PAGE_WIDTH), w.HTML()

    def update(_: object = None) -> None:
        try:
            chosen = parse_lengths(own.value)
            output.max = max(0, sum(chosen) - 1)
            figure, said = explore(chosen, convolution.value, scan.value, blocks.value, taps.value, output.value)
        except ValueError as error:
            text.value = "<b>✗</b> " + escaped(str(error))
            return
        image.value, text.value = to_png(figure), said

    parts = {
        "convolution": convolution, "scan": scan, "blocks": blocks, "taps": taps, "output": output, "own": own,
    }  # fmt: skip
    return boxed(parts, text, image, update)


def _called(convolution: bool, scan: bool) -> str:
    if convolution and scan:
        return "both reset"
    return "convolution resets" if convolution else "scan resets" if scan else "no reset"
