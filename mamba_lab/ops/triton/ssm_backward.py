"""The scan's backward pass. It walks a sequence's tiles from the last to the first.

The states of a tile are made again from its checkpoint: first those at which the tile's parts start, then, part by part
from the last to the first, those of every token. A part is as long as a thread's registers allow. Then g, the gradient
of the state, runs against time,

    g[t] = dy[t] C[t] + a[t+1] g[t+1]      a[t] = exp(dt[t] A)

and every other gradient is a product of g with something at hand. What sums over channels (dB, dC) or over tokens (dA,
dD, ddelta_bias) leaves a program as one partial sum; they are added up afterwards in a fixed order, never by atomics.
"""

from __future__ import annotations

import triton.language as tl

from .elementwise import LN_2, sigmoid
from .kernel import kernel
from .ssm_forward import load_decays, load_rows, load_states, one_token, step_size


@kernel
def scan_backward(
    dy,
    dfinal,
    u,
    delta,
    A,
    B,
    C,
    skip,
    z,
    bias,
    cu_seqlens,
    order,
    checkpoints,
    du,
    ddelta,
    dA_parts,
    dB_parts,
    dC_parts,
    dskip_parts,
    dz,
    dbias_parts,
    dinitial,
    tokens,
    dy_stride,
    u_stride,
    delta_stride,
    B_stride,
    C_stride,
    z_stride,
    SOFTPLUS: tl.constexpr,
    D: tl.constexpr,
    N: tl.constexpr,
    WIDE: tl.constexpr,
    EVERY: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    STATES: tl.constexpr,
):
    BLOCKS: tl.constexpr = (D + ROWS * LANES - 1) // (ROWS * LANES)
    program = tl.program_id(0)
    block = program % BLOCKS
    s = tl.load(order + program // BLOCKS).to(tl.int64)
    start = tl.load(cu_seqlens + s).to(tl.int64)
    length = (tl.load(cu_seqlens + s + 1) - start).to(tl.int32)
    PARTS: tl.constexpr = EVERY // TOKENS
    tiles = tl.cdiv(length, EVERY)

    t = tl.arange(0, TOKENS)[:, None, None]
    d = block * (ROWS * LANES) + (tl.arange(0, ROWS)[None, :, None] * LANES + tl.arange(0, LANES)[None, None, :])
    t_of_states, n_of_states = tl.arange(0, TOKENS)[:, None], tl.arange(0, STATES)[None, :]
    t4 = tl.arange(0, TOKENS)[:, None, None, None]
    d3 = block * (ROWS * LANES) + (tl.arange(0, ROWS)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :])
    n3 = tl.arange(0, STATES)[None, :, None]
    part4 = tl.arange(0, PARTS)[:, None, None, None]
    real = (d3 < D) & (n3 < N)

    decay = load_decays(A, d3, n3, D, N)[None]
    bias_of_d = tl.zeros((1, ROWS, LANES), WIDE)
    if bias is not None:
        bias_of_d = tl.load(bias + d, mask=d < D, other=0.0)
    skip_of_d = tl.zeros((1, ROWS, LANES), WIDE)
    if skip is not None:
        skip_of_d = tl.load(skip + d, mask=d < D, other=0.0)
    dh = tl.zeros((ROWS, STATES, LANES), WIDE)
    if dfinal is not None:
        dh = tl.load(dfinal + (s * D + d3) * N + n3, mask=real, other=0.0)
    dA = tl.zeros((ROWS, STATES, LANES), WIDE)
    dskip = tl.zeros((ROWS, LANES), WIDE)
    dbias = tl.zeros((ROWS, LANES), WIDE)

    # A part is asked for one part ahead. What does not exist is not read: `left` is at most 0 then.
    first = tiles * EVERY - TOKENS
    row, left = start + first, tl.where(tiles > 0, length - first, 0)
    slot = checkpoints + (start // EVERY + s + tiles) * (D * N) + (n3 * D + d3)
    next_u = load_rows(u, row, u_stride, t, left, d, D)
    next_delta = load_rows(delta, row, delta_stride, t, left, d, D)
    next_B = load_states(B, row, B_stride, t_of_states, left, n_of_states, N)
    next_C = load_states(C, row, C_stride, t_of_states, left, n_of_states, N)
    next_dy = load_rows(dy, row, dy_stride, t, left, d, D)
    if z is not None:
        next_z = load_rows(z, row, z_stride, t, left, d, D)
    for tile in range(tiles):
        slot -= D * N
        h = tl.load(slot, mask=real, other=0.0)
        starts = tl.broadcast_to(h[None], (PARTS, ROWS, STATES, LANES))
        for part in tl.static_range(1, PARTS):
            early, rest = row - (PARTS - part) * TOKENS, left + (PARTS - part) * TOKENS
            delta_t = load_rows(delta, early, delta_stride, t, rest, d, D).to(WIDE)
            u_t = load_rows(u, early, u_stride, t, rest, d, D).to(WIDE)
            B_t = load_states(B, early, B_stride, t_of_states, rest, n_of_states, N).to(WIDE)[:, None, :, None]
            dt, _ = step_size(delta_t, bias_of_d, t < rest, SOFTPLUS)
            a = tl.exp2(dt[:, :, None, :] * decay)
            b = (dt * u_t)[:, :, None, :] * B_t
            for i in tl.static_range(TOKENS):
                h = tl.fma(one_token(a, t4, i), h, one_token(b, t4, i))
            starts = tl.where(part4 == part, h[None], starts)

        for back in range(PARTS):
            h = one_token(starts, part4, PARTS - 1 - back)
            exists = (t < left) & (d < D)
            given = (t_of_states < left) & (n_of_states < N)
            u_t, delta_t, dy_t = next_u.to(WIDE), next_delta.to(WIDE), next_dy.to(WIDE)
            B_t, C_t = next_B.to(WIDE)[:, None, :, None], next_C.to(WIDE)[:, None, :, None]
            dgated = dy_t
            in_sequence = t < left
            dt, raw = step_size(delta_t, bias_of_d, in_sequence, SOFTPLUS)
            more = (tile < tiles - 1) | (back < PARTS - 1)
            left = tl.where(more, left + TOKENS, 0)
            next_u = load_rows(u, row - TOKENS, u_stride, t, left, d, D)
            next_delta = load_rows(delta, row - TOKENS, delta_stride, t, left, d, D)
            next_B = load_states(B, row - TOKENS, B_stride, t_of_states, left, n_of_states, N)
            next_C = load_states(C, row - TOKENS, C_stride, t_of_states, left, n_of_states, N)
            next_dy = load_rows(dy, row - TOKENS, dy_stride, t, left, d, D)
            if z is not None:
                z_t = next_z.to(WIDE)
                next_z = load_rows(z, row - TOKENS, z_stride, t, left, d, D)
                open_gate, shut = sigmoid(z_t)
                dy_t *= z_t * open_gate

            a = tl.exp2(dt[:, :, None, :] * decay)
            # One token is taken out of whole tiles, in which a thread holds all tokens. Of these it costs nothing.
            dt4 = tl.broadcast_to(dt[:, :, None, :], a.shape)
            dtu4 = tl.broadcast_to((dt * u_t)[:, :, None, :], a.shape)
            dy4 = tl.broadcast_to(dy_t[:, :, None, :], a.shape)
            B4, C4 = tl.broadcast_to(B_t, a.shape), tl.broadcast_to(C_t, a.shape)
            decayed = a  # a[t] h[t-1], to be filled in
            for i in tl.static_range(TOKENS):
                kept = one_token(a, t4, i) * h
                decayed = tl.where(t4 == i, kept[None], decayed)
                h = tl.fma(one_token(dtu4, t4, i), one_token(B4, t4, i), kept)

            # What needs the states, and then what needs their gradients: a thread need not hold both at once.
            of_states = block.to(tl.int64) * tokens * N + row * N + (t_of_states * N + n_of_states)
            of_channels = row * D + (t * D + d)
            hs = tl.fma(dtu4, B4, decayed)
            tl.store(dC_parts + of_states, tl.sum(tl.sum(dy4 * hs, 1), 2), mask=given)
            if z is not None:
                y_t = tl.sum(hs * C4, 2)
                if skip is not None:
                    y_t += skip_of_d * u_t
                dz_t = dgated * y_t * (open_gate * (1.0 + z_t * shut))
                tl.store(dz + of_channels, dz_t.to(dz.dtype.element_ty), mask=exists)

            g = a  # to be filled in
            for i in tl.static_range(TOKENS - 1, -1, -1):
                dh = tl.fma(one_token(dy4, t4, i), one_token(C4, t4, i), dh)
                g = tl.where(t4 == i, dh[None], g)
                dA = tl.fma(dh * one_token(decayed, t4, i), one_token(dt4, t4, i), dA)
                dh *= one_token(a, t4, i)
            tl.store(dB_parts + of_states, tl.sum(tl.sum(g * dtu4, 1), 2), mask=given)
            through_B = tl.sum(g * B4, 2)
            du_t = dt * through_B
            if skip is not None:
                du_t += skip_of_d * dy_t
                dskip += tl.sum(dy_t * u_t, 0)
            tl.store(du + of_channels, du_t.to(du.dtype.element_ty), mask=exists)
            ddelta_t = u_t * through_B + tl.sum(g * decayed * decay, 2) * LN_2
            if SOFTPLUS:
                slope, _ = sigmoid(raw)
                ddelta_t = tl.where(raw > 20, ddelta_t, ddelta_t * slope)
            tl.store(ddelta + of_channels, ddelta_t.to(ddelta.dtype.element_ty), mask=exists)
            if bias is not None:
                dbias += tl.sum(tl.where(in_sequence, ddelta_t, 0.0), 0)
            row -= TOKENS

    tl.store(dA_parts + (s * D + d3) * N + n3, dA, mask=real)
    if dinitial is not None:
        tl.store(dinitial + (s * D + d3) * N + n3, dh, mask=real)
    d2 = block * (ROWS * LANES) + (tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :])
    if skip is not None:
        tl.store(dskip_parts + s * D + d2, dskip, mask=d2 < D)
    if bias is not None:
        tl.store(dbias_parts + s * D + d2, dbias, mask=d2 < D)
