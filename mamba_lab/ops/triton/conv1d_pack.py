"""Calls the convolution's kernels. The arguments were checked before; results are those of ``_schemas.py``."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from ..reference import wide_dtype
from .add_up import add_up
from .conv1d_backward import conv1d_backward_initial_state, conv1d_backward_input, conv1d_backward_weight
from .conv1d_forward import conv1d_final_state, conv1d_forward
from .kernel import ROUNDED, WIDE, dense, on_device_of, rows
from .tiles import conv_tiles

UNROLLED = 8
"""Up to so many taps are written out one after the other; wider windows are a loop."""


def conv1d_pack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    cu_seqlens: Tensor,
    order: Tensor,
    initial_state: Tensor | None,
    return_final_state: bool,
) -> tuple[Tensor, Tensor]:
    """y [T, D] and final_state [S, D, W - 1]. Tiles are all of one size, so ``order`` is not needed."""
    (T, D), W, sequences, wide = x.shape, weight.shape[1], cu_seqlens.shape[0] - 1, wide_dtype(x)
    y = x.new_empty(T, D)
    final = x.new_empty(sequences, D, W - 1, dtype=wide) if return_final_state else x.new_empty(0, dtype=wide)
    x, initial_state = rows(x), dense(initial_state)
    tiles = conv_tiles(x.dtype)
    blocks = triton.cdiv(D, tiles.channels)
    with on_device_of(x):
        if y.numel():
            conv1d_forward[(triton.cdiv(T, tiles.tokens) * blocks,)](
                x,
                weight,
                dense(bias),
                cu_seqlens,
                initial_state,
                y,
                T,
                sequences,
                sequences.bit_length(),
                x.stride(0),
                weight.stride(0),
                weight.stride(1),
                SILU=silu,
                **_sizes(x, W, unroll=True),
                TOKENS=tiles.tokens,
                CHANNELS=tiles.channels,
                num_warps=tiles.warps,
                **ROUNDED,
            )
        if final.numel():
            conv1d_final_state[(sequences * blocks,)](
                x,
                cu_seqlens,
                initial_state,
                final,
                x.stride(0),
                **_sizes(x, W),
                CHANNELS=tiles.channels,
                num_warps=1,
                **ROUNDED,
            )
    return y, final


def conv1d_pack_backward(
    dy: Tensor,
    dfinal_state: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    cu_seqlens: Tensor,
    order: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, weight, bias and initial_state; size 0 for an absent one."""
    (T, D), W, sequences, wide = x.shape, weight.shape[1], cu_seqlens.shape[0] - 1, wide_dtype(x)
    dx, dweight = x.new_empty(T, D), weight.new_empty(D, W)
    dbias = x.new_empty(0) if bias is None else bias.new_empty(D)
    dinitial = x.new_empty(0) if initial_state is None else initial_state.new_empty(sequences, D, W - 1)
    x, dy, initial_state, dfinal_state = rows(x), rows(dy), dense(initial_state), dense(dfinal_state)
    tiles = conv_tiles(x.dtype)
    blocks, spans = triton.cdiv(D, tiles.channels), triton.cdiv(T, tiles.tokens)
    g = x.new_empty(T, D, dtype=wide)
    parts = x.new_empty(spans, W + 1, D, dtype=wide)
    strides = (weight.stride(0), weight.stride(1))
    with on_device_of(x):
        if dx.numel():
            in_tiles: dict[str, Any] = {
                "TOKENS": tiles.tokens,
                "CHANNELS": tiles.channels,
                "num_warps": tiles.warps,
                **ROUNDED,
                **_sizes(x, W, unroll=True),
            }
            searched = (T, sequences, sequences.bit_length())
            conv1d_backward_weight[(spans * blocks,)](
                dy,
                x,
                weight,
                dense(bias),
                cu_seqlens,
                initial_state,
                g,
                parts,
                *searched,
                dy.stride(0),
                x.stride(0),
                *strides,
                SILU=silu,
                **in_tiles,
            )
            conv1d_backward_input[(spans * blocks,)](
                g, dfinal_state, weight, cu_seqlens, dx, *searched, *strides, **in_tiles
            )
        if dinitial.numel():
            conv1d_backward_initial_state[(sequences * blocks,)](
                g,
                dfinal_state,
                weight,
                cu_seqlens,
                dinitial,
                *strides,
                **_sizes(x, W),
                CHANNELS=tiles.channels,
                num_warps=1,
                **ROUNDED,
            )
        sums = add_up(parts, x.new_empty(W + 1, D, dtype=wide))
    dweight.copy_(sums[:W].t())
    if bias is not None:
        dbias.copy_(sums[W])
    return dx, dweight, dbias, dinitial


def _sizes(x: Tensor, W: int, *, unroll: bool = False) -> dict[str, Any]:
    sizes = {"D": x.shape[1], "W": W, "WIDE": WIDE[x.dtype]}
    return sizes | {"UNROLL": W if W <= UNROLLED else 1} if unroll else sizes
