"""Mamba's selective scan, started afresh at each sequence's start."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from mamba_lab.batching.boundaries import Boundaries

from . import _ssm_ops, reference
from ._arguments import Arguments
from ._forward_mode import refuse_tangents
from ._resolve import lacks, resolve


@overload
def ssm_pack(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    boundaries: Boundaries | Tensor | None = None,
    initial_state: Tensor | None = None,
    return_final_state: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def ssm_pack(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    boundaries: Boundaries | Tensor | None = None,
    initial_state: Tensor | None = None,
    return_final_state: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def ssm_pack(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    boundaries: Boundaries | Tensor | None = None,
    initial_state: Tensor | None = None,
    return_final_state: bool,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...


def ssm_pack(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    boundaries: Boundaries | Tensor | None = None,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Scan each channel over time, h = exp(delta A) h + delta u B and y = C h + D u, afresh in every sequence.

    A sequence's outputs and input gradients inside a pack are those of the sequence alone, to the bit. Names and
    defaults follow ``selective_scan_fn`` (mamba-ssm); the operator is the SSM_pack of arXiv 2408.03865, the formulas
    are equations 2a and 2b of arXiv 2312.00752 with the steps of its algorithm 2.

    Args:
        u: [T, D], tokens first, float32, bfloat16 or float64. Rows of this and of the other inputs may be strided;
            other strides cost a copy.
        delta: [T, D], u's dtype: the step of each token, before ``delta_bias`` and softplus where these are asked for.
        A: [D, N], float32, or float64 when u is: usually negative, so that states decay.
        B, C: [T, N], u's dtype.
        D: [D], A's dtype: what of u passes by the state.
        z: [T, D], u's dtype: y is multiplied by silu(z).
        delta_bias: [D], A's dtype.
        delta_softplus: make steps positive by softplus.
        boundaries: where sequences start. A raw int32 ``cu_seqlens`` tensor is checked at every call, which waits for a
            GPU. None: all tokens are one sequence.
        initial_state: [S, D, N], A's dtype: the state before each sequence. None: zeros.
        return_final_state: give back the state after each sequence too. An empty sequence hands its own on.
        backend: "auto" takes the fastest that can run this call on this machine, and logs once which. "cuda" has no
            float64 and up to 256 states.

    Returns:
        y [T, D] in u's dtype; with ``return_final_state`` also final_state [S, D, N]. All floating-point arguments get
        gradients. A second derivative, forward mode and ``torch.func``'s transforms (all but ``vmap``)
        need ``backend="reference"``.

    Raises:
        ValueError: an argument of the wrong kind, shape, dtype or device.
        RuntimeError: an argument with a forward-mode tangent (``torch.func.jvp``) on a native backend.
        NativeUnavailable: the backend asked for is not available here.
    """
    arguments = Arguments("ssm_pack", "u", u)
    softplus = arguments.flag("delta_softplus", delta_softplus)
    return_final_state = arguments.flag("return_final_state", return_final_state)
    arguments.activation("delta", delta, "TD")
    arguments.parameter("A", A, "DN")
    arguments.activation("B", B, "TN")
    arguments.activation("C", C, "TN")
    if D is not None:
        arguments.parameter("D", D, "D")
    if z is not None:
        arguments.activation("z", z, "TD")
    if delta_bias is not None:
        arguments.parameter("delta_bias", delta_bias, "D")
    cu_seqlens, order = arguments.boundaries(boundaries)
    if initial_state is not None:
        arguments.parameter("initial_state", initial_state, "SDN")
    chosen = resolve("ssm_pack", backend, u.device.type, lacks("ssm_pack", u.dtype, A.shape[1]))
    if chosen == "reference":
        y, final_state = reference.ssm_pack(
            u, delta, A, B, C, D, z, delta_bias, softplus, cu_seqlens=cu_seqlens, initial_state=initial_state
        )
    else:
        refuse_tangents("ssm_pack", u, delta, A, B, C, D, z, delta_bias, initial_state)
        run = _ssm_ops.FORWARD[chosen]
        y, final_state, _ = run(
            u, delta, A, B, C, D, z, delta_bias, softplus, cu_seqlens, order, initial_state, return_final_state
        )
    return (y, final_state) if return_final_state else y
