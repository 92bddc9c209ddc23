"""The step of ``mamba_inner`` as autograd sees it: what forward keeps, and what backward computes again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ._schemas import operator
from .reference import wide_dtype


class How(NamedTuple):
    """What a step needs beside tensors that may have gradients: one argument, since autograd looks at each.

    Attributes:
        cu_seqlens, order: of the boundaries.
        narrow_in: what the first projection computes in.
        narrow: what the others compute in.
        backends: of the convolution and of the scan.
    """

    cu_seqlens: Tensor
    order: Tensor
    narrow_in: torch.dtype
    narrow: torch.dtype
    backends: tuple[str, str]


@lru_cache(maxsize=64)
def _operator(name: str) -> Callable[..., Any]:
    return operator(f"mamba_lab::{name}")


def _operators(backends: tuple[str, str], suffix: str = "") -> tuple[Callable[..., Any], Callable[..., Any]]:
    conv, scan = backends
    return _operator(f"conv1d_pack_{conv}{suffix}"), _operator(f"ssm_pack_{scan}{suffix}")


_NEEDS = (
    *("hidden", "in_weight", "in_bias", "conv_weight", "conv_bias", "x_weight", "dt_weight", "dt_bias", "A_log", "D"),
    *("out_weight", "out_bias"),
)
"""The order of the step's arguments, which autograd counts."""


class MambaStep(torch.autograd.Function):
    """``mamba_inner`` without its checks; arguments in its order, then what is no layer's."""

    @staticmethod
    def forward(
        ctx: Any,
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
        how: How,
    ) -> Tensor:
        cu_seqlens, order, narrow_in, narrow, backends = how
        convolve, scan = _operators(backends)
        rank, states = dt_weight.shape[1], A_log.shape[1]
        with _without_autocast(hidden, narrow), _below_autograd():
            ctx.hidden_dtype, xz, w_in = hidden.dtype, hidden, in_weight
            if in_weight is not None:
                hidden, w_in = cast(hidden, narrow_in), cast(in_weight, narrow_in)
                xz = F.linear(hidden, w_in, None if in_bias is None else cast(in_bias, narrow_in))
            wide = wide_dtype(xz)
            w_x, w_dt, w_out = cast(x_weight, narrow), cast(dt_weight, narrow), cast(out_weight, narrow)
            A, D_wide, dt_bias_wide = torch.exp(cast(A_log, wide)).neg_(), cast(D, wide), cast(dt_bias, wide)
            x, z = xz.chunk(2, 1)
            u, _ = convolve(x, conv_weight.flatten(1), conv_bias, True, cu_seqlens, order, None, False)
            projected = F.linear(cast(u, narrow), w_x)
            step, B, C = projected.split_with_sizes([rank, states, states], 1)
            delta = cast(F.linear(step, w_dt), u.dtype)
            inputs = (u, delta, A, cast(B, u.dtype), cast(C, u.dtype), D_wide, z, dt_bias_wide)
            y, _, checkpoints = scan(*inputs, True, cu_seqlens, order, None, False)
            out = F.linear(cast(y, narrow), w_out, None if out_bias is None else cast(out_bias, narrow))
        ctx.narrow, ctx.backends, ctx.gives_y = narrow, backends, backends == ("cuda", "cuda")
        parameters = (
            *(in_weight, in_bias, conv_weight, conv_bias, x_weight, dt_weight, dt_bias, A_log, D, out_weight, out_bias),
        )
        ctx.dtypes = dict(zip(_NEEDS[1:], (None if p is None else p.dtype for p in parameters), strict=True))
        ctx.save_for_backward(
            None if in_weight is None else hidden,
            xz,
            w_in,
            conv_weight,
            conv_bias,
            w_x,
            w_dt,
            dt_bias_wide,
            A,
            D_wide,
            w_out,
            cu_seqlens,
            order,
            projected,
            None if ctx.gives_y else y,  # backward makes it once more on its way
            checkpoints,
        )
        return out

    # Not once_differentiable, which lets a second derivative through where dout needs none: the operators refuse it,
    # and those that write into what they are given are refused here.
    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        # Weights as they were computed with: a cast is not made twice.
        (
            hidden,
            xz,
            w_in,
            conv_weight,
            conv_bias,
            w_x,
            w_dt,
            dt_bias,
            A,
            D,
            w_out,
            cu_seqlens,
            order,
            projected,
            y,
            checkpoints,
        ) = ctx.saved_tensors
        if ctx.gives_y and torch.is_grad_enabled():
            raise RuntimeError(
                "MambaMixer: only first derivatives are native. Use backend='reference', also of MambaLM, for others."
            )
        convolve, _ = _operators(ctx.backends)
        convolve_backward, scan_backward = _operators(ctx.backends, "_backward")
        narrow, wide, dtypes = ctx.narrow, wide_dtype(xz), ctx.dtypes
        rank, states = w_dt.shape[1], A.shape[1]
        needs = dict(zip(_NEEDS, ctx.needs_input_grad, strict=False))  # and one for how
        with _without_autocast(xz, narrow), _below_autograd():
            x, z = xz.chunk(2, 1)
            taps = conv_weight.flatten(1)
            u, _ = convolve(x, taps, conv_bias, True, cu_seqlens, order, None, False)
            step, B, C = projected.split_with_sizes([rank, states, states], 1)
            delta = cast(F.linear(step, w_dt), u.dtype)

            dy = cast(dout @ w_out, u.dtype)
            inputs = (u, delta, A, cast(B, u.dtype), cast(C, u.dtype), D, z, dt_bias, True)
            if ctx.gives_y:
                du, ddelta, dA, dB, dC, dD, dxz, ddt_bias, y = _operator("ssm_pack_cuda_backward_inner")(
                    dy, *inputs, cu_seqlens, order, checkpoints
                )
            else:
                du, ddelta, dA, dB, dC, dD, dz, ddt_bias, _ = scan_backward(
                    dy, None, *inputs, cu_seqlens, order, None, checkpoints
                )
            del dy, delta, inputs  # a third of what this backward holds at most
            dout_weight = _product(dout.T, cast(y, narrow), dtypes["out_weight"]) if needs["out_weight"] else None
            dout_bias = dout.sum(0, dtype=wide).to(dtypes["out_bias"]) if needs["out_bias"] else None
            del y
            ddelta = cast(ddelta, narrow)
            ddt_weight = _product(ddelta.T, step, dtypes["dt_weight"]) if needs["dt_weight"] else None
            dprojected = torch.cat((ddelta @ w_dt, cast(dB, narrow), cast(dC, narrow)), 1)
            del ddelta
            dx_weight = _product(dprojected.T, cast(u, narrow), dtypes["x_weight"]) if needs["x_weight"] else None
            del u
            if du.dtype == narrow:  # added where the product is made, and rounded once
                du = du.addmm_(dprojected, w_x)
            else:
                du += dprojected @ w_x
            taken = (x, taps, conv_bias, True, cu_seqlens, order, None)
            if ctx.gives_y:
                dconv_weight, dconv_bias, _ = _operator("conv1d_pack_cuda_backward_into")(
                    du, None, *taken, dxz.chunk(2, 1)[0]
                )
            else:
                dx, dconv_weight, dconv_bias, _ = convolve_backward(du, None, *taken)
                dxz = torch.cat((dx, dz), 1)
            del du
            dA_log = cast(dA.mul_(A), dtypes["A_log"])  # A = -exp(A_log) is its own derivative
            din_weight = _product(dxz.T, hidden, dtypes["in_weight"]) if needs["in_weight"] else None
            din_bias = dxz.sum(0, dtype=wide).to(dtypes["in_bias"]) if needs["in_bias"] else None
            dhidden = dxz
            if w_in is not None:
                dhidden = cast(dxz @ w_in, ctx.hidden_dtype) if needs["hidden"] else None
        return (
            dhidden,
            din_weight,
            din_bias,
            dconv_weight.view(conv_weight.shape),
            None if conv_bias is None else dconv_bias,
            dx_weight,
            ddt_weight,
            cast(ddt_bias, dtypes["dt_bias"]),
            dA_log,
            cast(dD, dtypes["D"]),
            dout_weight,
            dout_bias,
            None,
        )


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, which takes ten times as long to find that there is nothing to do: twenty times a step."""
    return x if x.dtype == dtype else x.to(dtype)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in ``dtype``; on a GPU it is not rounded to a narrower one before."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def _below_autograd() -> AbstractContextManager[Any]:
    """Past autograd, which has nothing to do where gradients are off, and takes a tenth of a small step to find out.

    Where they are on, in the backward of a second derivative, every operator has to be asked.
    """
    return nullcontext() if torch.is_grad_enabled() else torch._C._AutoDispatchBelowAutograd()


def _without_autocast(x: Tensor, narrow: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast off, where it would change what is cast here already."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != narrow:
        return torch.autocast(device, enabled=False)
    return nullcontext()
