"""The convolution's backward pass, in two steps.

First g, the gradient before the activation, and what a tile adds to dweight and dbias. Then what each input gets: token
t + k read x[t] through tap W - 1 - k, as long as it belongs to the same sequence.
"""

from __future__ import annotations

import triton.language as tl

from .conv1d_forward import convolve, look_back, sequence_of, tap, tile_of
from .elementwise import sigmoid
from .kernel import fma, kernel


@kernel
def conv1d_backward_weight(
    dy,
    x,
    weight,
    bias,
    cu_seqlens,
    initial,
    g,
    parts,
    tokens,
    sequences,
    halvings,
    dy_stride,
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
    """g [T, D], and this tile's sums of dweight and dbias in parts [tiles, W + 1, D]."""
    BLOCKS: tl.constexpr = (D + CHANNELS - 1) // CHANNELS
    program = tl.program_id(0)
    tile = (program // BLOCKS).to(tl.int64)
    first = (program // BLOCKS) * TOKENS
    i = tl.arange(0, TOKENS)[:, None]
    t = first + i
    d = (program % BLOCKS) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    d1 = (program % BLOCKS) * CHANNELS + tl.arange(0, CHANNELS)
    exists = (t < tokens) & (d < D)
    s, start, _ = sequence_of(tl.minimum(t, tokens - 1), cu_seqlens, sequences, halvings)
    g_t = tl.load(tile_of(dy, first, dy_stride, i, d, D), mask=exists, other=0.0).to(WIDE)
    if SILU:
        before = convolve(
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
            D,
            W,
            UNROLL,
            WIDE,
        )
        gate, shut = sigmoid(before)
        g_t *= gate * (1.0 + before * shut)
    tl.store(tile_of(g, first, D, i, d, D), g_t, mask=exists)
    to = parts + tile * ((W + 1) * D) + d1
    for k in tl.range(0, W, loop_unroll_factor=UNROLL):
        x_k = look_back(x, initial, s, first, i, start, W - 1 - k, x_stride, d, exists, D, W, WIDE)
        tl.store(to + k * D, tl.sum(g_t * x_k, 0), mask=d1 < D)
    if bias is not None:
        tl.store(to + W * D, tl.sum(g_t, 0), mask=d1 < D)


@kernel
def conv1d_backward_input(
    g,
    dfinal,
    weight,
    cu_seqlens,
    dx,
    tokens,
    sequences,
    halvings,
    weight_row,
    weight_column,
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
    s, _, stop = sequence_of(tl.minimum(t, tokens - 1), cu_seqlens, sequences, halvings)
    result = tl.zeros((TOKENS, CHANNELS), WIDE)
    if dfinal is not None:
        place = t - (stop - (W - 1))
        result += tl.load(dfinal + (s * D + d) * (W - 1) + place, mask=exists & (place >= 0), other=0.0)
    for k in tl.range(0, W, loop_unroll_factor=UNROLL):
        w = tap(weight, d, W - 1 - k, weight_row, weight_column, D, WIDE)
        later = tl.load(tile_of(g, first + k, D, i, d, D), mask=exists & (t + k < stop), other=0.0)
        result = fma(w, later, result)
    tl.store(tile_of(dx, first, D, i, d, D), result.to(dx.dtype.element_ty), mask=exists)


@kernel
def conv1d_backward_initial_state(
    g,
    dfinal,
    weight,
    cu_seqlens,
    dinitial,
    weight_row,
    weight_column,
    D: tl.constexpr,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Entry i of a state is read by the sequence's tokens 0 .. i through tap i - t, and shifted into a short end."""
    BLOCKS: tl.constexpr = (D + CHANNELS - 1) // CHANNELS
    program = tl.program_id(0)
    s = (program // BLOCKS).to(tl.int64)
    d = (program % BLOCKS) * CHANNELS + tl.arange(0, CHANNELS)
    start = tl.load(cu_seqlens + s).to(tl.int64)
    length = tl.load(cu_seqlens + s + 1) - start
    for i in range(W - 1):
        result = tl.zeros((CHANNELS,), WIDE)
        if dfinal is not None:
            place = i - length
            result += tl.load(dfinal + (s * D + d) * (W - 1) + place, mask=(d < D) & (place >= 0), other=0.0)
        for t in range(i + 1):
            w = tap(weight, d, i - t, weight_row, weight_column, D, WIDE)
            g_t = tl.load(g + (start + t) * D + d, mask=(d < D) & (t < length), other=0.0)
            result = fma(w, g_t, result)
        tl.store(dinitial + (s * D + d) * (W - 1) + i, result, mask=d < D)
