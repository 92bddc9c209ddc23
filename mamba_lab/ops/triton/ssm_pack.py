"""Calls the scan's kernels. The arguments were checked before; shapes and results are those of ``_schemas.py``."""

from __future__ import annotations

import triton
from torch import Tensor

from ..reference import wide_dtype
from .add_up import add_up
from .kernel import ROUNDED, WIDE, dense, on_device_of, rows, side_by_side
from .ssm_backward import scan_backward
from .ssm_forward import scan_forward
from .tiles import EVERY, scan_backward_tiles, scan_forward_tiles


def ssm_pack(
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
    """y [T, D], final_state [S, D, N] and checkpoints [T // 16 + S, D, N] (inside a slot state after state)."""
    (T, channels), N, sequences = u.shape, A.shape[1], cu_seqlens.shape[0] - 1
    y = u.new_empty(T, channels)
    final = A.new_empty(sequences, channels, N) if return_final_state else A.new_empty(0)
    checkpoints = A.new_empty(T // EVERY + sequences, channels, N)
    if sequences * channels == 0:
        return y, final, checkpoints
    u, delta, B, C = rows(u), rows(delta), side_by_side(B), side_by_side(C)
    z = None if z is None else rows(z)
    tiles = scan_forward_tiles(N, u.dtype)
    with on_device_of(u):
        scan_forward[(sequences * triton.cdiv(channels, tiles.rows * tiles.lanes),)](
            u,
            delta,
            A.contiguous(),
            B,
            C,
            dense(D),
            z,
            dense(delta_bias),
            cu_seqlens,
            order,
            dense(initial_state),
            y,
            final if return_final_state else None,
            checkpoints,
            u.stride(0),
            delta.stride(0),
            B.stride(0),
            C.stride(0),
            0 if z is None else z.stride(0),
            SOFTPLUS=delta_softplus,
            D=channels,
            N=N,
            WIDE=WIDE[u.dtype],
            EVERY=EVERY,
            TOKENS=tiles.tokens,
            ROWS=tiles.rows,
            LANES=tiles.lanes,
            STATES=tiles.states,
            num_warps=tiles.warps,
            maxnreg=tiles.registers,
            **ROUNDED,
        )
    return y, final, checkpoints


def ssm_pack_backward(
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
    """The gradient of each input; size 0 for an absent one."""
    (T, channels), N, sequences = u.shape, A.shape[1], cu_seqlens.shape[0] - 1
    given = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    found = tuple(u.new_empty(0) if x is None else x.new_empty(x.shape) for x in given)
    du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial = found
    if sequences * channels == 0:
        for grad in found:
            grad.zero_()
        return found
    u, delta, B, C, dy = rows(u), rows(delta), side_by_side(B), side_by_side(C), rows(dy)
    z = None if z is None else rows(z)
    tiles = scan_backward_tiles(N, u.dtype)
    blocks = triton.cdiv(channels, tiles.rows * tiles.lanes)
    wide = wide_dtype(u)
    # dB and dC: one partial sum a block of channels. The others: one a sequence.
    of_tokens = u.new_empty(2, blocks, T, N, dtype=wide)
    of_states = u.new_empty(sequences, channels, N, dtype=wide)
    of_channels = u.new_empty(2, sequences, channels, dtype=wide)
    with on_device_of(u):
        scan_backward[(sequences * blocks,)](
            dy,
            dense(dfinal_state),
            u,
            delta,
            A.contiguous(),
            B,
            C,
            dense(D),
            z,
            dense(delta_bias),
            cu_seqlens,
            order,
            checkpoints,
            du,
            ddelta,
            of_states,
            of_tokens[0],
            of_tokens[1],
            of_channels[0],
            dz,
            of_channels[1],
            None if initial_state is None else dinitial,
            T,
            dy.stride(0),
            u.stride(0),
            delta.stride(0),
            B.stride(0),
            C.stride(0),
            0 if z is None else z.stride(0),
            SOFTPLUS=delta_softplus,
            D=channels,
            N=N,
            WIDE=WIDE[u.dtype],
            EVERY=EVERY,
            TOKENS=tiles.tokens,
            ROWS=tiles.rows,
            LANES=tiles.lanes,
            STATES=tiles.states,
            num_warps=tiles.warps,
            maxnreg=tiles.registers,
            **ROUNDED,
        )
        add_up(of_states, dA)
        add_up(of_tokens[0], dB)
        add_up(of_tokens[1], dC)
        if D is not None:
            add_up(of_channels[0], dD)
        if delta_bias is not None:
            add_up(of_channels[1], ddelta_bias)
    return found
