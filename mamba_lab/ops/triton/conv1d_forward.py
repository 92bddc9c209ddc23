"""The convolution's forward pass, and the state it leaves.

    y[t] = bias + sum over k of weight[k] x[t - (W - 1) + k]

A program takes a tile of the pack, whatever sequences are in it. Every output is a sum of its own, so its bits do not
depend on where the tile begins. What a token may look back on is found by a search in ``cu_seqlens``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .elementwise import sigmoid
from .kernel import fma, kernel


@triton.jit
def sequence_of(t, cu_seqlens, sequences, halvings):
    """The last sequence that starts at or before token t: its number, start and end."""
    low = t * 0
    high = low + sequences
    for _ in range(halvings):
        middle = (low + high) // 2
        here = tl.load(cu_seqlens + middle) <= t
        low = tl.where(here, middle, low)
        high = tl.where(here, high, middle)
    return low.to(tl.int64), tl.load(cu_seqlens + low), tl.load(cu_seqlens + low + 1)


@triton.jit
def tap(weight, d, k, weight_row, weight_column, D: tl.constexpr, WIDE: tl.constexpr):
    """weight[d, k] of a block of channels."""
    return tl.load(weight + d * weight_row + k * weight_column, mask=d < D, other=0.0).to(WIDE)


@triton.jit
def tile_of(x, first, stride, i, d, D: tl.constexpr):
    """Pointers to tokens first + i of some channels: 64 bits for where the tile lies, 32 for the place inside it."""
    pointers = x + first.to(tl.int64) * stride + (i * stride + d).to(tl.int32)
    if D % 16 == 0:
        pointers = tl.multiple_of(pointers, (1, 16))
    return pointers


@triton.jit
def look_back(
    x, initial, s, first, i, start, back, x_stride, d, exists, D: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr
):
    """x of the tokens ``back`` before the tile's: before a sequence's start its initial state, or zero without one."""
    t = first + i
    inside = t - back >= start
    value = tl.load(tile_of(x, first - back, x_stride, i, d, D), mask=exists & inside, other=0.0).to(WIDE)
    if initial is not None:
        place = t - start + (W - 1) - back
        kept = tl.load(initial + (s * D + d) * (W - 1) + place, mask=exists & ~inside, other=0.0)
        value = tl.where(inside, value, kept)
    return value


@triton.jit
def convolve(
    x,
    weight,
    bias,
    initial,
    s,
    first,
    i,
    start,
    d,
    exists,
    x_stride,
    weight_row,
    weight_column,
    D: tl.constexpr,
    W: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of outputs before the activation, the oldest tap added first."""
    result = tl.zeros(exists.shape, WIDE)
    if bias is not None:
        result += tl.load(bias + d, mask=d < D, other=0.0).to(WIDE)
    for k in tl.range(0, W, loop_unroll_factor=UNROLL):
        w = tap(weight, d, k, weight_row, weight_column, D, WIDE)
        x_k = look_back(x, initial, s, first, i, start, W - 1 - k, x_stride, d, exists, D, W, WIDE)
        result = fma(w, x_k, result)
    return result


@kernel
def conv1d_forward(
    x,
    weight,
    bias,
    cu_seqlens,
    initial,
    y,
    tokens,
    sequences,
    halvings,
    x_stride,
    weight_row,
    weight_column,
    SILU: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    BLOCKS: tl.constexpr = (D + CHANNELS - 1) // CHANNELS
    program = tl.program_id(0)
    first = (program // BLOCKS) * TOKENS
    i = tl.arange(0, TOKENS)[:, None]
    t = first + i
    d = (program % BLOCKS) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    exists = (t < tokens) & (d < D)
    s, start, _ = sequence_of(tl.minimum(t, tokens - 1), cu_seqlens, sequences, halvings)
    result = convolve(
        x, weight, bias, initial, s, first, i, start, d, exists, x_stride, weight_row, weight_column, D, W, UNROLL, WIDE
    )
    if SILU:
        gate, _ = sigmoid(result)
        result *= gate
    tl.store(tile_of(y, first, D, i, d, D), result.to(y.dtype.element_ty), mask=exists)


@kernel
def conv1d_final_state(
    x,
    cu_seqlens,
    initial,
    final,
    x_stride,
    D: tl.constexpr,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The last W - 1 inputs of each sequence, out of its initial state where it is shorter."""
    BLOCKS: tl.constexpr = (D + CHANNELS - 1) // CHANNELS
    program = tl.program_id(0)
    s = (program // BLOCKS).to(tl.int64)
    d = (program % BLOCKS) * CHANNELS + tl.arange(0, CHANNELS)
    start = tl.load(cu_seqlens + s).to(tl.int64)
    length = tl.load(cu_seqlens + s + 1) - start
    to = final + (s * D + d) * (W - 1)
    for i in range(W - 1):
        t = length - (W - 1) + i
        value = tl.load(x + (start + t) * x_stride + d, mask=(d < D) & (t >= 0), other=0.0).to(WIDE)
        if initial is not None:
            kept = tl.load(initial + (s * D + d) * (W - 1) + t + (W - 1), mask=(d < D) & (t < 0), other=0.0)
            value = tl.where(t >= 0, value, kept)
        tl.store(to + i, value, mask=d < D)
