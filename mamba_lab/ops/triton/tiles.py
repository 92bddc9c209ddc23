"""Tile sizes. They depend on D, N and the dtype only: a sequence's bits may not depend on what else is in its pack."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .._schemas import CHECKPOINT_TOKENS
from .._triton_ops import INTERPRETED

EVERY = CHECKPOINT_TOKENS["triton"]


class ScanTiles(NamedTuple):
    """How one program of a scan covers its sequence: ``tokens`` at a time, ``rows * lanes`` channels, all states.

    A warp's threads share lanes and states, so a thread holds every token of a tile for its channels and states. Then
    the scan over the tile's tokens is a plain loop in registers. One warp a program wherever its states fit: then no
    sum over states or channels has to wait for another warp.
    """

    tokens: int
    rows: int
    lanes: int
    states: int
    warps: int
    registers: int
    """At most so many a thread. With 168 of them 12 warps fit on one of the GPU's processors, with 255 only 8."""


class ConvTiles(NamedTuple):
    """How one program of the convolution covers the pack: ``tokens`` by ``channels``."""

    tokens: int
    channels: int
    warps: int


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def scan_forward_tiles(N: int, dtype: torch.dtype) -> ScanTiles:
    """8 states of 8 tokens in a thread."""
    return _one_warp(8, 8, N, dtype)


def scan_backward_tiles(N: int, dtype: torch.dtype) -> ScanTiles:
    """4 states of 4 tokens in a thread, several times: of a, h, g, B and C. A checkpoint serves four such tiles."""
    return _one_warp(4, 4, N, dtype)


def _one_warp(tokens: int, states_a_thread: int, N: int, dtype: torch.dtype) -> ScanTiles:
    """So many states a thread, half of them in float64. Where a warp is too small for them, more warps."""
    states = next_power_of_two(N)
    if INTERPRETED:
        return ScanTiles(EVERY // 2, 2, 4, states, 1, 255)
    double = dtype == torch.float64
    a_warp = 32 * states_a_thread // (2 if double else 1)
    lanes = min(max(a_warp // states, 2), 32)
    return ScanTiles(tokens, 1, lanes, states, max(lanes * states // a_warp, 1), 255 if double else 168)


def conv_tiles(dtype: torch.dtype) -> ConvTiles:
    """One warp a program here too. Each holds 32 numbers a thread, and what a window of taps adds to them."""
    if INTERPRETED:
        return ConvTiles(16, 8, 1)
    return ConvTiles(16 if dtype == torch.float64 else 32, 32, 1)
