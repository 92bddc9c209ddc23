"""The short causal convolution of Mamba's block, stopped at each sequence's start."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from mamba_lab.batching.boundaries import Boundaries

from . import _conv1d_ops, reference
from ._arguments import Arguments
from ._forward_mode import refuse_tangents
from ._resolve import lacks, resolve

WIDEST = 256


@overload
def conv1d_pack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    boundaries: Boundaries | Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    return_final_state: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def conv1d_pack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    boundaries: Boundaries | Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    return_final_state: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def conv1d_pack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    boundaries: Boundaries | Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    return_final_state: bool,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...


def conv1d_pack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    boundaries: Boundaries | Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each channel over time, looking back W - 1 tokens and never past a sequence's start.

    A sequence's outputs and input gradients inside a pack are those of the sequence alone, to the bit. Names and
    defaults follow ``causal_conv1d_fn`` (causal-conv1d); the operator is the conv1d_pack of arXiv 2408.03865.

    Args:
        x: [T, D], tokens first, float32, bfloat16 or float64. Rows may be strided (half of a projection); other strides
            cost a copy.
        weight: [D, W], the oldest tap first, W from 1 to 256; float32 or x's dtype.
        bias: [D], float32 or x's dtype.
        boundaries: where sequences start. A raw int32 ``cu_seqlens`` tensor is checked at every call, which waits for a
            GPU. None: all tokens are one sequence.
        activation: None, "silu" or its other name "swish".
        initial_state: [S, D, W - 1], the inputs before each sequence, oldest first; float32, or float64 when x is.
            None: zeros.
        return_final_state: give back the state after each sequence too. An empty sequence hands its own on.
        backend: "auto" takes the fastest that can run this call on this machine, and logs once which. "cuda" has no
            float64 and windows of up to 8 taps.

    Returns:
        y [T, D] in x's dtype; with ``return_final_state`` also final_state [S, D, W - 1]. All floating-point arguments
        get gradients. A second derivative, forward mode and ``torch.func``'s transforms (all but ``vmap``)
        need ``backend="reference"``.

    Raises:
        ValueError: an argument of the wrong kind, shape, dtype or device.
        RuntimeError: an argument with a forward-mode tangent (``torch.func.jvp``) on a native backend.
        NativeUnavailable: the backend asked for is not available here.
    """
    arguments = Arguments("conv1d_pack", "x", x)
    return_final_state = arguments.flag("return_final_state", return_final_state)
    arguments.parameter("weight", weight, "DW", narrow=True)
    if bias is not None:
        arguments.parameter("bias", bias, "D", narrow=True)
    width = weight.shape[1]
    if not 1 <= width <= WIDEST:
        raise ValueError(f"conv1d_pack: weight has {width} taps (W), expected 1 to {WIDEST}.")
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"conv1d_pack: activation must be None, 'silu' or 'swish', got {activation!r}.")
    cu_seqlens, order = arguments.boundaries(boundaries)
    arguments.sizes["V"] = (width - 1, "weight")
    if initial_state is not None:
        arguments.parameter("initial_state", initial_state, "SDV")
    chosen = resolve("conv1d_pack", backend, x.device.type, lacks("conv1d_pack", x.dtype, width))
    silu = activation is not None
    if chosen == "reference":
        y, final_state = reference.conv1d_pack(
            x,
            weight,
            bias,
            cu_seqlens=cu_seqlens,
            activation="silu" if silu else None,
            initial_state=initial_state,
        )
    else:
        refuse_tangents("conv1d_pack", x, weight, bias, initial_state)
        run = _conv1d_ops.FORWARD[chosen]
        y, final_state = run(x, weight, bias, silu, cu_seqlens, order, initial_state, return_final_state)
    return (y, final_state) if return_final_state else y
