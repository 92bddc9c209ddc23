"""conv1d_pack's operators as PyTorch sees them: shapes for the compiler, gradients for autograd. No arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _triton_ops
from ._schemas import REGISTERED, define, operator, refuse_second_derivative
from .reference import wide_dtype

_INPUTS = ("x", "weight", "bias", "silu", "cu_seqlens", "order", "initial_state")


def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    cu_seqlens: Tensor,
    order: Tensor,
    initial_state: Tensor | None,
    return_final_state: bool,
) -> tuple[Tensor, Tensor]:
    if not return_final_state:
        return x.new_empty(x.shape), x.new_empty(0, dtype=wide_dtype(x))
    shape = (cu_seqlens.shape[0] - 1, weight.shape[0], weight.shape[1] - 1)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=wide_dtype(x))


def _fake_backward(
    dy: Tensor,
    dfinal_state: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    cu_seqlens: Tensor,
    order: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, ...]:
    absent = x.new_empty(0)
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        absent if bias is None else bias.new_empty(bias.shape),
        x.new_empty(0) if initial_state is None else initial_state.new_empty(initial_state.shape),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, ctx.silu, cu_seqlens, order, initial_state, ctx.has_final_state = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, cu_seqlens, order, initial_state)


def _register(backend: str) -> Callable[..., tuple[Tensor, ...]]:
    forward, backward = define("conv1d_pack", backend)
    if backend == "triton":
        _triton_ops.implement("conv1d_pack")
    backward_op = operator(backward)

    def gradients(ctx: Any, dy: Tensor | None, dfinal_state: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, cu_seqlens, order, initial_state = ctx.saved_tensors
        dfinal_state = dfinal_state if ctx.has_final_state else None  # a compiler makes a zero for the absent one
        dy = torch.zeros_like(x) if dy is None else dy
        dx, dweight, dbias, dinitial = backward_op(
            dy, dfinal_state, x, weight, bias, ctx.silu, cu_seqlens, order, initial_state
        )
        return (
            dx,
            dweight,
            None if bias is None else dbias,
            None,
            None,
            None,
            None if initial_state is None else dinitial,
            None,
        )

    torch.library.register_fake(forward, _fake)
    torch.library.register_fake(backward, _fake_backward)
    torch.library.register_autograd(forward, gradients, setup_context=_setup_context)
    refuse_second_derivative(backward)
    return operator(forward)


FORWARD = {backend: _register(backend) for backend in REGISTERED}
