"""The scan's backward pass. It walks a sequence's tiles from the last to the first.

The states of a tile are made again from its checkpoint. Then g, the gradient of the state, runs against time,

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
    tiles = tl.cdiv(length, TOKENS)

    t = tl.arange(0, TOKENS)[:, None, None]
    d = block * (ROWS * LANES) + (tl.arange(0, ROWS)[None, :, None] * LANES + tl.arange(0, LANES)[None, None, :])
    t_of_states, n_of_states = tl.arange(0, TOKENS)[:, None], tl.arange(0, STATES)[None, :]
    t4 = tl.arange(0, TOKENS)[:, None, None, None]
    d3 = block * (ROWS * LANES) + (tl.arange(0, ROWS)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :])
    n3 = tl.arange(0, STATES)[None, :, None]
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

    # A tile is asked for one tile ahead. Where there is none, `left` is 0 and nothing is read.
    row = start + (tiles - 1) * TOKENS
    left = tl.where(tiles > 0, length - (tiles - 1) * TOKENS, 0)
    slot = checkpoints + (start // TOKENS + s + (tiles - 1)) * (D * N) + (n3 * D + d3)
    next_u = load_rows(u, row, u_stride, t, left, d, D)
    next_delta = load_rows(delta, row, delta_stride, t, left, d, D)
    next_B = load_states(B, row, B_stride, t_of_states, left, n_of_states, N)
    next_C = load_states(C, row, C_stride, t_of_states, left, n_of_states, N)
    next_dy = load_rows(dy, row, dy_stride, t, left, d, D)
    if z is not None:
        next_z = load_rows(z, row, z_stride, t, left, d, D)
    next_h = tl.load(slot, mask=real & (left > 0), other=0.0)
    for later in range(tiles):
        exists = (t < left) & (d < D)
        given = (t_of_states < left) & (n_of_states < N)
        u_t, delta_t, dy_t, h = next_u.to(WIDE), next_delta.to(WIDE), next_dy.to(WIDE), next_h
        B_t, C_t = next_B.to(WIDE)[:, None, :, None], next_C.to(WIDE)[:, None, :, None]
        dgated = dy_t
        in_sequence = t < left
        dt, raw = step_size(delta_t, bias_of_d, in_sequence, SOFTPLUS)
        left = tl.where(later < tiles - 1, TOKENS, 0)
        slot -= D * N
        next_u = load_rows(u, row - TOKENS, u_stride, t, left, d, D)
        next_delta = load_rows(delta, row - TOKENS, delta_stride, t, left, d, D)
        next_B = load_states(B, row - TOKENS, B_stride, t_of_states, left, n_of_states, N)
        next_C = load_states(C, row - TOKENS, C_stride, t_of_states, left, n_of_states, N)
        next_dy = load_rows(dy, row - TOKENS, dy_stride, t, left, d, D)
        next_h = tl.load(slot, mask=real & (left > 0), other=0.0)
        if z is not None:
            z_t = next_z.to(WIDE)
            next_z = load_rows(z, row - TOKENS, z_stride, t, left, d, D)
            open_gate, shut = sigmoid(z_t)
            dy_t *= z_t * open_gate

        a = tl.exp2(dt[:, :, None, :] * decay)
        dtu = (dt * u_t)[:, :, None, :]
        b = dtu * B_t
        decayed = a  # a[t] h[t-1], to be filled in
        for i in tl.static_range(TOKENS):
            kept = one_token(a, t4, i) * h
            decayed = tl.where(t4 == i, kept[None], decayed)
            h = kept + one_token(b, t4, i)
        hs = decayed + b

        dy4 = dy_t[:, :, None, :]
        added = dy4 * C_t + tl.zeros_like(a)
        g = added
        for k in tl.static_range(TOKENS):
            dh += one_token(added, t4, TOKENS - 1 - k)
            g = tl.where(t4 == TOKENS - 1 - k, dh[None], g)
            dh *= one_token(a, t4, TOKENS - 1 - k)

        gd = g * decayed
        dA += tl.sum(gd * dt[:, :, None, :], 0)
        of_states = row * N + (t_of_states * N + n_of_states)
        part = block.to(tl.int64) * tokens * N
        tl.store(dB_parts + part + of_states, tl.sum(tl.sum(g * dtu, 1), 2), mask=given)
        tl.store(dC_parts + part + of_states, tl.sum(tl.sum(dy4 * hs, 1), 2), mask=given)

        to = row * D + (t * D + d)
        through_B = tl.sum(g * B_t, 2)
        du_t = dt * through_B
        if skip is not None:
            du_t += skip_of_d * dy_t
            dskip += tl.sum(dy_t * u_t, 0)
        tl.store(du + to, du_t.to(du.dtype.element_ty), mask=exists)
        ddelta_t = u_t * through_B + tl.sum(gd * decay, 2) * LN_2
        if SOFTPLUS:
            slope, _ = sigmoid(raw)
            ddelta_t = tl.where(raw > 20, ddelta_t, ddelta_t * slope)
        tl.store(ddelta + to, ddelta_t.to(ddelta.dtype.element_ty), mask=exists)
        if bias is not None:
            dbias += tl.sum(tl.where(in_sequence, ddelta_t, 0.0), 0)
        if z is not None:
            y_t = tl.sum(hs * C_t, 2)
            if skip is not None:
                y_t += skip_of_d * u_t
            dz_t = dgated * y_t * (open_gate * (1.0 + z_t * shut))
            tl.store(dz + to, dz_t.to(dz.dtype.element_ty), mask=exists)
        row -= TOKENS

    tl.store(dA_parts + (s * D + d3) * N + n3, dA, mask=real)
    if dinitial is not None:
        tl.store(dinitial + (s * D + d3) * N + n3, dh, mask=real)
    d2 = block * (ROWS * LANES) + (tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :])
    if skip is not None:
        tl.store(dskip_parts + s * D + d2, dskip, mask=d2 < D)
    if bias is not None:
        tl.store(dbias_parts + s * D + d2, dbias, mask=d2 < D)
