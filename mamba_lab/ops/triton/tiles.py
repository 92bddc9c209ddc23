"""Tile sizes. They depend on D, N and the dtype only: a sequence's bits may not depend on what else is in its pack."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .._schemas import CHECKPOINT_TOKENS
from .._triton_ops import INTERPRETED


class ScanTiles(NamedTuple):
    """How one program of a scan covers its sequence: ``tokens`` at a time, ``rows * lanes`` channels, all states.

    Lanes of a warp are neighbouring channels and warps share the states, so a thread holds every token of a tile for
    its channels and states. Then the scan over the tile's tokens is a plain loop in registers.
    """

    tokens: int
    rows: int
    lanes: int
    states: int
    warps: int


class ConvTiles(NamedTuple):
    """How one program of the convolution covers the pack: ``tokens`` by ``channels``."""

    tokens: int
    channels: int
    warps: int


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def scan_forward_tiles(N: int, dtype: torch.dtype) -> ScanTiles:
    """At most 32 states of all tokens in a thread: 128 registers at N = 16."""
    states = next_power_of_two(N)
    if INTERPRETED:
        return ScanTiles(8, 2, 4, states, 1)
    warps, lanes = min(max(states // 4, 1), 8), min(32, 1024 // states)
    most = 16 if dtype == torch.float64 else 32
    return ScanTiles(max(1, min(most * 32 * warps // (states * lanes), 8)), 1, lanes, states, warps)


def scan_backward_tiles(N: int, dtype: torch.dtype) -> ScanTiles:
    """A tile has the tokens between two checkpoints: it can be started at each of them."""
    states = next_power_of_two(N)
    if INTERPRETED:
        return ScanTiles(CHECKPOINT_TOKENS, 2, 4, states, 1)
    warps = min(max(states // 2, 1), 8)
    lanes = min(32, (256 if dtype == torch.float64 else 512) // states)
    return ScanTiles(CHECKPOINT_TOKENS, 1, max(lanes, 2), states, warps)


def conv_tiles(dtype: torch.dtype) -> ConvTiles:
    if INTERPRETED:
        return ConvTiles(16, 8, 1)
    return ConvTiles(32, 32 if dtype == torch.float64 else 64, 4)
