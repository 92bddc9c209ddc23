"""The operators' schemas, in one place: every backend of an operator has the same one, under its own name.

``conv1d_pack_cpu`` and ``conv1d_pack_cpu_backward`` are registered here; a kernel's library supplies what runs. One
name per backend, so that a call is resolved once and its backward cannot end up in another backend.

A schema has no optional results: an absent one is a tensor of size 0. ``order`` has S + 1 entries like ``cu_seqlens``;
the last is never read (``Boundaries`` says why). For the same reason a final state that nobody asked for is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

CHECKPOINT_TOKENS = {"cpu": 16, "triton": 16, "cuda": 32}
"""The scan keeps its state every so many tokens, counted from a sequence's start, for its backward pass."""

_CONV1D_INPUTS = (
    "Tensor x, Tensor weight, Tensor? bias, bool silu, Tensor cu_seqlens, Tensor order, Tensor? initial_state"
)
_SSM_INPUTS = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
    "bool delta_softplus, Tensor cu_seqlens, Tensor order, Tensor? initial_state"
)
_SCHEMAS = {
    "conv1d_pack": f"({_CONV1D_INPUTS}, bool return_final_state) -> (Tensor y, Tensor final_state)",
    "conv1d_pack_backward": (
        f"(Tensor dy, Tensor? dfinal_state, {_CONV1D_INPUTS}) -> "
        "(Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_state)"
    ),
    # checkpoints: [T // every + S, D, N], sequence s from slot cu_seqlens[s] // every + s on; every: CHECKPOINT_TOKENS.
    "ssm_pack": (f"({_SSM_INPUTS}, bool return_final_state) -> (Tensor y, Tensor final_state, Tensor checkpoints)"),
    "ssm_pack_backward": (
        f"(Tensor dy, Tensor? dfinal_state, {_SSM_INPUTS}, Tensor checkpoints) -> "
        "(Tensor du, Tensor ddelta, Tensor dA, Tensor dB, Tensor dC, Tensor dD, Tensor dz, Tensor ddelta_bias, "
        "Tensor dinitial_state)"
    ),
}

_FUSED = {
    "conv1d_pack_cuda_backward_into": (
        f"(Tensor dy, Tensor? dfinal_state, {_CONV1D_INPUTS}, Tensor(a!) dx) -> "
        "(Tensor dweight, Tensor dbias, Tensor dinitial_state)"
    ),
    "ssm_pack_cuda_backward_inner": (
        "(Tensor dy, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor z, Tensor? delta_bias, "
        "bool delta_softplus, Tensor cu_seqlens, Tensor order, Tensor checkpoints) -> "
        "(Tensor du, Tensor ddelta, Tensor dA, Tensor dB, Tensor dC, Tensor dD, Tensor dxz, "
        "Tensor ddelta_bias, Tensor y)"
    ),
}
"""Backward passes for ``mamba_inner`` alone: results where it wants them, so that nothing is joined afterwards.

The first writes dx into a tensor given to it. The second makes dxz [T, 2 D], writes dz into its second half and leaves
the first to the convolution; it gives y once more, so that nobody has to keep it.
"""

REGISTERED = ("cpu", "triton", "cuda")
"""The backends that have operators of their own; the reference is plain autograd."""


def define(operator: str, backend: str) -> tuple[str, str]:
    """Make ``operator`` and its backward known to PyTorch; their qualified names."""
    forward = f"mamba_lab::{operator}_{backend}"
    torch.library.define(forward, _SCHEMAS[operator])
    torch.library.define(f"{forward}_backward", _SCHEMAS[f"{operator}_backward"])
    return forward, f"{forward}_backward"


def define_fused() -> None:
    """Make the backward passes for ``mamba_inner`` known to PyTorch. They run eagerly only: they have no fakes."""
    for name, schema in _FUSED.items():
        torch.library.define(f"mamba_lab::{name}", schema)


def operator(qualified_name: str) -> Callable[..., Any]:
    """The operator that ``define`` made known under this name."""
    call: Callable[..., Any] = getattr(torch.ops.mamba_lab, qualified_name.partition("::")[2]).default
    return call


def refuse_second_derivative(backward: str) -> None:
    """Let a second derivative through the operator ``backward`` fail with a remedy, not with a wrong number."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(
            f"{backward.partition('::')[2]} has no derivative of its own: only first derivatives are native. "
            f"For a second one call the operator with backend='reference'."
        )

    torch.library.register_autograd(backward, refuse)
