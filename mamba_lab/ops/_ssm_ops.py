"""ssm_pack's operators as PyTorch sees them: shapes for the compiler, gradients for autograd. No arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _triton_ops
from ._schemas import CHECKPOINT_TOKENS, REGISTERED, define, define_fused, operator, refuse_second_derivative


def _fake(
    every: int,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    cu_seqlens: Tensor,
    order: Tensor,
    initial_state: Tensor | None,
    return_final_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    sequences = cu_seqlens.shape[0] - 1
    slots = u.shape[0] // every + sequences
    final_state = A.new_empty(sequences, *A.shape) if return_final_state else A.new_empty(0)
    return u.new_empty(u.shape), final_state, A.new_empty(slots, *A.shape)


def _fake_backward(
    dy: Tensor,
    dfinal_state: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    cu_seqlens: Tensor,
    order: Tensor,
    initial_state: Tensor | None,
    checkpoints: Tensor,
) -> tuple[Tensor, ...]:
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    return tuple(u.new_empty(0) if value is None else value.new_empty(value.shape) for value in inputs)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, delta, A, B, C, D, z, delta_bias, ctx.delta_softplus, cu_seqlens, order, initial_state, ctx.has_final_state = (
        inputs
    )
    checkpoints = output[2]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(checkpoints)
    ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, cu_seqlens, order, initial_state, checkpoints)


def _register(backend: str) -> Callable[..., tuple[Tensor, ...]]:
    forward, backward = define("ssm_pack", backend)
    if backend == "triton":
        _triton_ops.implement("ssm_pack")
    backward_op = operator(backward)

    def gradients(ctx: Any, dy: Tensor | None, dfinal_state: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        u, delta, A, B, C, D, z, delta_bias, cu_seqlens, order, initial_state, checkpoints = ctx.saved_tensors
        dfinal_state = dfinal_state if ctx.has_final_state else None  # a compiler makes a zero for the absent one
        dy = torch.zeros_like(u) if dy is None else dy
        inputs = (u, delta, A, B, C, D, z, delta_bias, ctx.delta_softplus, cu_seqlens, order, initial_state)
        *grads, dinitial = backward_op(dy, dfinal_state, *inputs, checkpoints)
        grads += [None, None, None, dinitial]
        return (*(None if value is None else grad for value, grad in zip(inputs, grads, strict=True)), None)

    def fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _fake(CHECKPOINT_TOKENS[backend], *args)

    torch.library.register_fake(forward, fake)
    torch.library.register_fake(backward, _fake_backward)
    torch.library.register_autograd(forward, gradients, setup_context=_setup_context)
    refuse_second_derivative(backward)
    return operator(forward)


define_fused()
FORWARD = {backend: _register(backend) for backend in REGISTERED}
