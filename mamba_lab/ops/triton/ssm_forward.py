"""The scan's forward pass: y, the final states, and a state every 16 tokens for the backward pass.

    h[t] = exp(dt[t] A) h[t-1] + dt[t] u[t] B[t]      y[t] = C[t] h[t] + D u[t]      (arXiv 2312.00752, equation 2a)

A program walks one sequence, from its own first token, for one block of channels. So no state has to be reset: it
never meets another sequence's. The tensors of a tile are [tokens, rows, states, lanes]; a block's channels are rows
times lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .elementwise import LOG2_E, sigmoid, softplus
from .kernel import kernel


@triton.jit
def load_rows(x, row, stride, t, left, d, D: tl.constexpr):
    """Tokens row, row + 1, ... of some channels; zeros after the sequence's end and after the last channel."""
    pointers = x + row * stride + (t * stride + d)
    if D % 16 == 0:
        pointers = tl.multiple_of(pointers, (1, 1, 16))
    return tl.load(pointers, mask=(t < left) & (d < D), other=0.0)


@triton.jit
def load_states(x, row, stride, t, left, n, N: tl.constexpr):
    """B or C of tokens row, row + 1, ...; zeros where there is none."""
    pointers = x + row * stride + (t * stride + n)
    return tl.load(pointers, mask=(t < left) & (n < N), other=0.0)


@triton.jit
def load_decays(A, d, n, D: tl.constexpr, N: tl.constexpr):
    """A in units of log2(e), so that exp(dt A) is a power of two. Kept finite: no step times infinity is no decay."""
    a = tl.load(A + d * N + n, mask=(d < D) & (n < N), other=0.0) * LOG2_E
    most: tl.constexpr = 1.7976931348623157e308 if a.dtype == tl.float64 else 3.4028234663852886e38
    return tl.where(a < -most, -most, tl.where(a > most, most, a))


@triton.jit
def step_size(delta, bias, exists, SOFTPLUS: tl.constexpr):
    """dt as the recurrence uses it, and before softplus. No step where no token exists: the state stays as it is."""
    raw = delta + bias
    dt = raw
    if SOFTPLUS:
        dt = softplus(raw)
    return tl.where(exists, dt, 0.0), raw


@triton.jit
def one_token(x, t4, i):
    """x[i] of a tile [tokens, ...]. Added up with minus zeros, because x + -0 is x for every x: the sum costs nothing.

    A thread holds all tokens of its channels and states, so a compiler sees which of its registers is meant.
    """
    return tl.sum(tl.where(t4 == i, x, tl.zeros_like(x) * -1.0), 0)


@kernel
def scan_forward(
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
    initial,
    y,
    final,
    checkpoints,
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
    s = tl.load(order + program // BLOCKS).to(tl.int64)
    start = tl.load(cu_seqlens + s).to(tl.int64)
    length = (tl.load(cu_seqlens + s + 1) - start).to(tl.int32)

    t = tl.arange(0, TOKENS)[:, None, None]
    d = (program % BLOCKS) * (ROWS * LANES) + (
        tl.arange(0, ROWS)[None, :, None] * LANES + tl.arange(0, LANES)[None, None, :]
    )
    t_of_states, n_of_states = tl.arange(0, TOKENS)[:, None], tl.arange(0, STATES)[None, :]
    t4 = tl.arange(0, TOKENS)[:, None, None, None]
    d3 = (program % BLOCKS) * (ROWS * LANES) + (
        tl.arange(0, ROWS)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :]
    )
    n3 = tl.arange(0, STATES)[None, :, None]
    real = (d3 < D) & (n3 < N)

    decay = load_decays(A, d3, n3, D, N)[None]
    bias_of_d = tl.zeros((1, ROWS, LANES), WIDE)
    if bias is not None:
        bias_of_d = tl.load(bias + d, mask=d < D, other=0.0)
    skip_of_d = tl.zeros((1, ROWS, LANES), WIDE)
    if skip is not None:
        skip_of_d = tl.load(skip + d, mask=d < D, other=0.0)
    h = tl.zeros((ROWS, STATES, LANES), WIDE)
    if initial is not None:
        h = tl.load(initial + (s * D + d3) * N + n3, mask=real, other=0.0)

    # A tile is asked for one tile ahead.
    next_u = load_rows(u, start, u_stride, t, length, d, D)
    next_delta = load_rows(delta, start, delta_stride, t, length, d, D)
    next_B = load_states(B, start, B_stride, t_of_states, length, n_of_states, N)
    next_C = load_states(C, start, C_stride, t_of_states, length, n_of_states, N)
    if z is not None:
        next_z = load_rows(z, start, z_stride, t, length, d, D)
    row = start
    slot = checkpoints + (start // EVERY + s) * (D * N) + (n3 * D + d3)
    for first in range(0, length, TOKENS):
        if first % EVERY == 0:
            tl.store(slot, h, mask=real)
            slot += D * N
        u_t, delta_t = next_u.to(WIDE), next_delta.to(WIDE)
        B_t, C_t = next_B.to(WIDE)[:, None, :, None], next_C.to(WIDE)[:, None, :, None]
        left, later = length - first - TOKENS, row + TOKENS
        next_u = load_rows(u, later, u_stride, t, left, d, D)
        next_delta = load_rows(delta, later, delta_stride, t, left, d, D)
        next_B = load_states(B, later, B_stride, t_of_states, left, n_of_states, N)
        next_C = load_states(C, later, C_stride, t_of_states, left, n_of_states, N)
        if z is not None:
            z_t = next_z.to(WIDE)
            next_z = load_rows(z, later, z_stride, t, left, d, D)

        exists = t < length - first
        dt, _ = step_size(delta_t, bias_of_d, exists, SOFTPLUS)
        a = tl.exp2(dt[:, :, None, :] * decay)
        b = (dt * u_t)[:, :, None, :] * B_t
        hs = b
        for i in tl.static_range(TOKENS):
            h = tl.fma(one_token(a, t4, i), h, one_token(b, t4, i))
            hs = tl.where(t4 == i, h[None], hs)

        y_t = tl.sum(hs * C_t, 2)
        if skip is not None:
            y_t += skip_of_d * u_t
        if z is not None:
            open_gate, _ = sigmoid(z_t)
            y_t *= z_t * open_gate
        tl.store(y + row * D + (t * D + d), y_t.to(y.dtype.element_ty), mask=exists & (d < D))
        row = later

    # A sequence has one slot more than it fills where that keeps the next sequence's first slot easy to find.
    stop = start + length
    spare = stop // EVERY - start // EVERY + 1 > tl.cdiv(length, EVERY)
    tl.store(slot, tl.zeros_like(h), mask=real & spare)
    if final is not None:
        tl.store(final + (s * D + d3) * N + n3, h, mask=real)
