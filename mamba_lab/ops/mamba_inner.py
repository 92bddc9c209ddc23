"""A Mamba block from the convolution to the output projection as one step, whose backward computes cheap parts again.

Without it autograd keeps, for each token and channel, the convolution's output and the step size. Both are cheap to
compute again: an element-wise convolution and a product of rank R. Private: ``mamba_lab.models`` calls it when every
layer in between is plain.

The operators are those of the backend that ``conv1d_pack`` and ``ssm_pack`` would run, called by name, forward and
backward. The reference backend has no such operators, so it never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
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
    A_log: Tensor,
    D: Tensor,
    out_weight: Tensor,
    out_bias: Tensor | None,
    *,
    boundaries: Boundaries,
    backends: tuple[str, str],
) -> Tensor:
    """``out_proj(ssm_pack(conv1d_pack(x), ..., z))`` with ``x, z = xz.chunk(2, 1)`` and ``A = -exp(A_log)``.

    Args:
        xz: [T, 2 d_inner], the first projection's output.
        conv_weight: [d_inner, 1, W]; conv_bias: [d_inner].
        x_weight: [R + 2 N, d_inner]; dt_weight: [d_inner, R]; out_weight: [d_model, d_inner]; out_bias: [d_model].
            Under autocast these four are cast as ``F.linear`` would.
        dt_bias, D: [d_inner] and A_log: [d_inner, N], cast to the dtype of the states.
        backends: what ``fused_backends`` said.

    Returns:
        [T, d_model].

    Raises:
        ValueError: boundaries of another number of tokens, or a dtype, shape or device that does not fit x's.
    """
    _check(xz, conv_weight, conv_bias, dt_bias, A_log, D, boundaries)
    parameters = (conv_weight, conv_bias, x_weight, dt_weight, dt_bias, A_log, D, out_weight, out_bias)
    refuse_tangents("MambaMixer", xz, *parameters)
    device, narrow = xz.device.type, out_weight.dtype
    if torch.is_autocast_enabled(device) and narrow != torch.float64:
        narrow = torch.get_autocast_dtype(device)
    cu_seqlens, order = boundaries.cu_seqlens.contiguous(), boundaries._schedule
    return _MambaInner.apply(xz, *parameters, cu_seqlens, order, narrow, backends)


_checked: set[tuple[object, ...]] = set()
"""Combinations of dtypes, shapes and devices that were looked at: a training step comes by with the same ones."""


def _check(
    xz: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
    boundaries: Boundaries,
) -> None:
    """All that a kernel takes for granted: it is called by name here, past the checks of the public functions."""
    given = (conv_weight, A_log, D, dt_bias) if conv_bias is None else (conv_weight, A_log, D, dt_bias, conv_bias)
    key = (xz.dtype, xz.device, xz.shape[1:], *((value.dtype, value.device, value.shape) for value in given))
    fits = boundaries.n_tokens == xz.shape[0] and boundaries.cu_seqlens.device == xz.device
    if fits and key in _checked:
        return
    # Under the names that a user of the model knows.
    wide = wide_dtype(xz)
    arguments = Arguments("MambaMixer", "the output of in_proj", xz.chunk(2, 1)[0])
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


@lru_cache(maxsize=64)
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
        A_log: Tensor,
        D: Tensor,
        out_weight: Tensor,
        out_bias: Tensor | None,
        cu_seqlens: Tensor,
        order: Tensor,
        narrow: torch.dtype,
        backends: tuple[str, str],
    ) -> Tensor:
        convolve, scan = _operators(backends)
        wide, rank, states = wide_dtype(xz), dt_weight.shape[1], A_log.shape[1]
        with _without_autocast(xz, narrow):
            A = torch.exp(A_log.to(wide)).neg_()
            x, z = xz.chunk(2, 1)
            u, _ = convolve(x, conv_weight.flatten(1), conv_bias, True, cu_seqlens, order, None, False)
            projected = F.linear(u.to(narrow), x_weight.to(narrow))
            step, B, C = projected.split_with_sizes([rank, states, states], 1)
            delta = F.linear(step, dt_weight.to(narrow)).to(u.dtype)
            inputs = (u, delta, A, B.to(u.dtype), C.to(u.dtype), D.to(wide), z, dt_bias.to(wide))
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
            A_log,
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
            A_log,
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
        with _without_autocast(xz, narrow):
            x, z = xz.chunk(2, 1)
            taps = conv_weight.flatten(1)
            u, _ = convolve(x, taps, conv_bias, True, cu_seqlens, order, None, False)
            step, B, C = projected.split_with_sizes([rank, states, states], 1)
            dt_narrow = dt_weight.to(narrow)
            delta = F.linear(step, dt_narrow).to(u.dtype)

            dout_weight = (dout.T @ y.to(narrow)).to(out_weight.dtype) if need_out_weight else None
            dout_bias = dout.sum(0, dtype=wide).to(out_bias.dtype) if need_out_bias else None
            dy = (dout @ out_weight.to(narrow)).to(y.dtype)
            inputs = (u, delta, A, B.to(u.dtype), C.to(u.dtype), D.to(wide), z, dt_bias.to(wide))
            du, ddelta, dA, dB, dC, dD, dz, ddt_bias, _ = scan_backward(
                dy, None, *inputs, True, cu_seqlens, order, None, checkpoints
            )
            del dy, delta, inputs  # a third of what this backward holds at most
            ddelta = ddelta.to(narrow)
            ddt_weight = (ddelta.T @ step).to(dt_weight.dtype) if need_dt_weight else None
            dprojected = torch.cat((ddelta @ dt_narrow, dB.to(narrow), dC.to(narrow)), 1)
            del ddelta
            dx_weight = (dprojected.T @ u.to(narrow)).to(x_weight.dtype) if need_x_weight else None
            del u
            if du.dtype == narrow:  # added where the product is made, and rounded once
                du = du.addmm_(dprojected, x_weight.to(narrow))
            else:
                du += dprojected @ x_weight.to(narrow)
            dx, dconv_weight, dconv_bias, _ = convolve_backward(
                du, None, x, taps, conv_bias, True, cu_seqlens, order, None
            )
            del du
            dxz = torch.cat((dx, dz), 1)
            dA_log = dA.mul_(A).to(A_log.dtype)  # A = -exp(A_log) is its own derivative
        return (
            dxz,
            dconv_weight.view(conv_weight.shape),
            None if conv_bias is None else dconv_bias,
            dx_weight,
            ddt_weight,
            ddt_bias.to(dt_bias.dtype),
            dA_log,
            dD.to(D.dtype),
            dout_weight,
            dout_bias,
            None,
            None,
            None,
            None,
        )


def _without_autocast(x: Tensor, narrow: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast off, where it would change what is cast here already."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != narrow:
        return torch.autocast(device, enabled=False)
    return nullcontext()
