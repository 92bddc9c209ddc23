"""A Mamba block from its first projection to its last as one step, whose backward computes cheap parts again.

Without it autograd keeps, for each token and channel, the convolution's output and the step size. Both are cheap to
compute again: an element-wise convolution and a product of rank R. Private: ``mamba_lab.models`` calls it when every
layer in between is plain.

The operators are those of the backend that ``conv1d_pack`` and ``ssm_pack`` would run, called by name, forward and
backward. The reference backend has no such operators, so it never comes here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mamba_lab.batching.boundaries import Boundaries

from ._arguments import Arguments
from ._forward_mode import refuse_tangents
from ._mamba_step import How, MambaStep
from ._resolve import lacks, resolve
from ._schemas import REGISTERED
from .reference import wide_dtype


def fused_backends(
    backend: str, device: str, dtype: torch.dtype = torch.float32, width: int = 4, states: int = 16
) -> tuple[str, str] | None:
    """The backends of conv1d_pack and ssm_pack when both have operators to call by name, otherwise None.

    Args:
        backend: "auto", or the one asked for.
        device: its type.
        dtype: of what the convolution gets.
        width, states: W and N.
    """
    chosen = (
        resolve("conv1d_pack", backend, device, lacks("conv1d_pack", dtype, width)),
        resolve("ssm_pack", backend, device, lacks("ssm_pack", dtype, states)),
    )
    return chosen if all(name in REGISTERED for name in chosen) else None


def mamba_inner(
    hidden: Tensor,
    in_weight: Tensor | None,
    in_bias: Tensor | None,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    x_weight: Tensor,
    dt_weight: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
    out_weight: Tensor,
    out_bias: Tensor | None,
    *,
    boundaries: Boundaries,
    backends: tuple[str, str],
) -> Tensor:
    """``out_proj(ssm_pack(conv1d_pack(x), ..., z))``, ``x, z = in_proj(hidden).chunk(2, 1)``, ``A = -exp(A_log)``.

    Args:
        hidden: [T, d_model]; where ``in_weight`` is None what ``in_proj`` made of it, [T, 2 d_inner].
        in_weight: [2 d_inner, d_model]; in_bias: [2 d_inner]; x_weight: [R + 2 N, d_inner]; dt_weight: [d_inner, R];
            out_weight: [d_model, d_inner]; out_bias: [d_model]. Under autocast these are cast as ``F.linear`` would.
        conv_weight: [d_inner, 1, W]; conv_bias: [d_inner].
        dt_bias, D: [d_inner] and A_log: [d_inner, N], cast to the dtype of the states.
        backends: what ``fused_backends`` said.

    Returns:
        [T, d_model].

    Raises:
        ValueError: boundaries of another number of tokens, or a dtype, shape or device that does not fit x's.
    """
    narrow_in, narrow = hidden.dtype if in_weight is None else linear_dtype(in_weight), linear_dtype(out_weight)
    channels = (hidden.shape[1] if in_weight is None else in_weight.shape[0]) // 2
    _check(hidden, channels, narrow_in, conv_weight, conv_bias, dt_bias, A_log, D, boundaries)
    parameters = (
        *(in_weight, in_bias, conv_weight, conv_bias, x_weight, dt_weight, dt_bias, A_log, D, out_weight, out_bias),
    )
    refuse_tangents("MambaMixer", hidden, *parameters)
    how = How(boundaries.cu_seqlens.contiguous(), boundaries._schedule, narrow_in, narrow, backends)
    return MambaStep.apply(hidden, *parameters, how)


def linear_dtype(weight: Tensor) -> torch.dtype:
    """What ``F.linear`` computes in with this weight: its dtype, or autocast's."""
    device = weight.device.type
    if torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return weight.dtype


_checked: set[tuple[object, ...]] = set()
"""Combinations of dtypes, shapes and devices that were looked at: a training step comes by with the same ones."""


def _check(
    hidden: Tensor,
    channels: int,
    narrow: torch.dtype,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
    boundaries: Boundaries,
) -> None:
    """All that a kernel takes for granted: it is called by name here, past the checks of the public functions."""
    given = (conv_weight, A_log, D, dt_bias) if conv_bias is None else (conv_weight, A_log, D, dt_bias, conv_bias)
    device = hidden.device
    key = (narrow, device, channels, *((value.dtype, value.device, value.shape) for value in given))
    fits = boundaries.n_tokens == hidden.shape[0] and boundaries.cu_seqlens.device == device
    if fits and key in _checked:
        return
    # Under the names that a user of the model knows.
    x = torch.empty(hidden.shape[0], channels, dtype=narrow, device=device)
    wide = wide_dtype(x)
    arguments = Arguments("MambaMixer", "the output of in_proj", x)
    arguments.parameter("conv1d.weight", conv_weight.flatten(1), "DW", narrow=True)
    if conv_bias is not None:
        arguments.parameter("conv1d.bias", conv_bias, "D", narrow=True)
    arguments.parameter("A_log", A_log.to(wide), "DN")
    arguments.parameter("D", D.to(wide), "D")
    arguments.parameter("dt_proj.bias", dt_bias.to(wide), "D")
    arguments.boundaries(boundaries)
    if len(_checked) >= 1000:
        _checked.clear()
    _checked.add(key)
