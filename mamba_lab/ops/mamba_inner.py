"""A Mamba block from the convolution to the output projection as one step, whose backward computes cheap parts again.

Without it autograd keeps, for each token and channel, the convolution's output and the step size. Both are cheap to
compute again: an element-wise convolution and a product of rank R. Private: ``mamba_lab.models`` calls it when every
layer in between is plain.

The operators are those of the backend that ``conv1d_pack`` and ``ssm_pack`` would run, called by name, forward and
backward. The reference backend has no such operators, so it never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mamba_lab.batching.boundaries import Boundaries

from ._arguments import Arguments
from ._forward_mode import refuse_tangents
from ._resolve import lacks, resolve
from ._schemas import REGISTERED, operator
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
    xz: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    x_weight: Tensor,
    dt_weight: Tensor,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    out_weight: Tensor,
    out_bias: Tensor | None,
    *,
    boundaries: Boundaries,
    backends: tuple[str, str],
) -> Tensor:
    """``out_proj(ssm_pack(conv1d_pack(x), ..., z))`` with ``x, z = xz.chunk(2, 1)``.

    Args:
        xz: [T, 2 d_inner], the first projection's output.
        conv_weight: [d_inner, W]; conv_bias: [d_inner].
        x_weight: [R + 2 N, d_inner]; dt_weight: [d_inner, R]; out_weight: [d_model, d_inner]; out_bias: [d_model].
            Under autocast these four are cast as ``F.linear`` would.
        dt_bias, D: [d_inner] and A: [d_inner, N], in the dtype of the states.
        backends: what ``fused_backends`` said.

    Returns:
        [T, d_model].

    Raises:
        ValueError: boundaries of another number of tokens, or a dtype, shape or device that does not fit x's.
    """
    # All that a kernel takes for granted: it is called by name here, past the checks of the public functions.
    # Under the names that a user of the model knows.
    arguments = Arguments("MambaMixer", "the output of in_proj", xz.chunk(2, 1)[0])
    arguments.parameter("conv1d.weight", conv_weight, "DW", narrow=True)
    if conv_bias is not None:
        arguments.parameter("conv1d.bias", conv_bias, "D", narrow=True)
    arguments.parameter("A_log", A, "DN")
    arguments.parameter("D", D, "D")
    arguments.parameter("dt_proj.bias", dt_bias, "D")
    cu_seqlens, order = arguments.boundaries(boundaries)
    weights = (x_weight, dt_weight, dt_bias, A, D, out_weight, out_bias)
    refuse_tangents("MambaMixer", xz, conv_weight, conv_bias, *weights)
    device, narrow = xz.device.type, out_weight.dtype
    if torch.is_autocast_enabled(device) and narrow != torch.float64:
        narrow = torch.get_autocast_dtype(device)
    return _MambaInner.apply(
        xz,
        conv_weight,
        conv_bias,
        x_weight,
        dt_weight,
        dt_bias,
        A,
        D,
        out_weight,
        out_bias,
        cu_seqlens,
        order,
        narrow,
        backends,
    )


def _operators(backends: tuple[str, str], suffix: str = "") -> tuple[Callable[..., Any], Callable[..., Any]]:
    conv, scan = backends
    return (
        operator(f"mamba_lab::conv1d_pack_{conv}{suffix}"),
        operator(f"mamba_lab::ssm_pack_{scan}{suffix}"),
    )


class _MambaInner(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        xz: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        x_weight: Tensor,
        dt_weight: Tensor,
        dt_bias: Tensor,
        A: Tensor,
        D: Tensor,
        out_weight: Tensor,
        out_bias: Tensor | None,
        cu_seqlens: Tensor,
        order: Tensor,
        narrow: torch.dtype,
        backends: tuple[str, str],
    ) -> Tensor:
        convolve, scan = _operators(backends)
        rank, states = dt_weight.shape[1], A.shape[1]
        with torch.autocast(xz.device.type, enabled=False):
            x, z = xz.chunk(2, 1)
            u, _ = convolve(x, conv_weight, conv_bias, True, cu_seqlens, order, None, False)
            projected = F.linear(u.to(narrow), x_weight.to(narrow))
            step, B, C = projected.split([rank, states, states], 1)
            delta = F.linear(step, dt_weight.to(narrow)).to(u.dtype)
            inputs = (u, delta, A, B.to(u.dtype), C.to(u.dtype), D, z, dt_bias)
            y, _, checkpoints = scan(*inputs, True, cu_seqlens, order, None, False)
            out = F.linear(y.to(narrow), out_weight.to(narrow), None if out_bias is None else out_bias.to(narrow))
        ctx.narrow, ctx.backends = narrow, backends
        ctx.save_for_backward(
            xz,
            conv_weight,
            conv_bias,
            x_weight,
            dt_weight,
            dt_bias,
            A,
            D,
            out_weight,
            out_bias,
            cu_seqlens,
            order,
            projected,
            y,
            checkpoints,
        )
        return out

    # Not once_differentiable, which lets a second derivative through where dout needs none: the operators refuse it.
    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        (
            xz,
            conv_weight,
            conv_bias,
            x_weight,
            dt_weight,
            dt_bias,
            A,
            D,
            out_weight,
            out_bias,
            cu_seqlens,
            order,
            projected,
            y,
            checkpoints,
        ) = ctx.saved_tensors
        convolve, _ = _operators(ctx.backends)
        convolve_backward, scan_backward = _operators(ctx.backends, "_backward")
        narrow, wide = ctx.narrow, wide_dtype(xz)
        rank, states = dt_weight.shape[1], A.shape[1]
        need_x_weight, need_dt_weight, need_out_weight, need_out_bias = (ctx.needs_input_grad[i] for i in (3, 4, 8, 9))
        with torch.autocast(xz.device.type, enabled=False):
            x, z = xz.chunk(2, 1)
            u, _ = convolve(x, conv_weight, conv_bias, True, cu_seqlens, order, None, False)
            step, B, C = projected.split([rank, states, states], 1)
            delta = F.linear(step, dt_weight.to(narrow)).to(u.dtype)

            dout_weight = (dout.T @ y.to(narrow)).to(out_weight.dtype) if need_out_weight else None
            dout_bias = dout.sum(0, dtype=wide).to(out_bias.dtype) if need_out_bias else None
            dy = (dout @ out_weight.to(narrow)).to(y.dtype)
            inputs = (u, delta, A, B.to(u.dtype), C.to(u.dtype), D, z, dt_bias)
            du, ddelta, dA, dB, dC, dD, dz, ddt_bias, _ = scan_backward(
                dy, None, *inputs, True, cu_seqlens, order, None, checkpoints
            )
            del dy, delta, inputs  # a third of what this backward holds at most
            ddelta = ddelta.to(narrow)
            ddt_weight = (ddelta.T @ step).to(dt_weight.dtype) if need_dt_weight else None
            dprojected = torch.cat((ddelta @ dt_weight.to(narrow), dB.to(narrow), dC.to(narrow)), 1)
            del ddelta
            dx_weight = (dprojected.T @ u.to(narrow)).to(x_weight.dtype) if need_x_weight else None
            du += dprojected @ x_weight.to(narrow)
            del u
            dx, dconv_weight, dconv_bias, _ = convolve_backward(
                du, None, x, conv_weight, conv_bias, True, cu_seqlens, order, None
            )
            del du
            dxz = torch.cat((dx, dz), 1)
        return (
            dxz,
            dconv_weight,
            None if conv_bias is None else dconv_bias,
            dx_weight,
            ddt_weight,
            ddt_bias,
            dA,
            dD,
            dout_weight,
            dout_bias,
            None,
            None,
            None,
            None,
        )
