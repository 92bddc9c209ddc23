"""The first versions of the scan's CUDA kernel, for notebook 13: from one thread a channel to lanes that share it.

They compute what ``ssm_pack`` computes with softplus and gate, forward only. Train with ``ssm_pack``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mamba_lab.batching import Boundaries

from . import build

VERSIONS = {
    1: "one thread a channel",
    2: "a tile in shared memory",
    3: "four lanes a channel",
    4: "version 3, with a planted mistake",
}
TILES = (4, 8, 16, 32)
_STATES = 16
_SCHEMA = (
    "(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor D, Tensor z, Tensor delta_bias, Tensor cu_seqlens, "
    "Tensor order, int version, int tile) -> Tensor"
)
torch.library.define("mamba_lab::scan_ladder", _SCHEMA)


def scan_ladder(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    delta_bias: Tensor,
    *,
    boundaries: Boundaries,
    version: int,
    tile: int = 16,
) -> Tensor:
    """``ssm_pack(..., delta_softplus=True)`` by an early version of its kernel, y bfloat16 [T, D] without a gradient.

    Args:
        u, delta, z: bfloat16 [T, D] on a GPU; B, C: bfloat16 [T, 16].
        A: float32 [D, 16]; D, delta_bias: float32 [D].
        boundaries: over the T tokens.
        version: 1 to 4, see ``VERSIONS``.
        tile: tokens that versions 2 and 3 stage at a time, one of ``TILES``.

    Raises:
        ValueError: another version, tile, shape, dtype or device.
        NativeUnavailable: the kernels cannot be compiled here.
    """
    if version not in VERSIONS:
        raise ValueError(f"version is {version}, expected one of {', '.join(map(str, VERSIONS))}.")
    if tile not in TILES:
        raise ValueError(f"tile is {tile}, expected one of {', '.join(map(str, TILES))}.")
    tokens, channels = u.shape if u.dim() == 2 else (boundaries.n_tokens, -1)
    sizes = {"TD": (tokens, channels), "TN": (tokens, _STATES), "DN": (channels, _STATES), "D": (channels,)}
    given = {"u": (u, "TD"), "delta": (delta, "TD"), "A": (A, "DN"), "B": (B, "TN"), "C": (C, "TN")}
    given |= {"D": (D, "D"), "z": (z, "TD"), "delta_bias": (delta_bias, "D")}
    for name, (value, size) in given.items():
        dtype = torch.bfloat16 if size in ("TD", "TN") else torch.float32
        if value.dtype != dtype or tuple(value.shape) != sizes[size] or value.device.type != "cuda":
            raise ValueError(
                f"{name} must be {dtype} {list(sizes[size])} on a GPU, got {value.dtype} {list(value.shape)} on "
                f"{value.device}. For everything else there is ssm_pack."
            )
    if boundaries.n_tokens != tokens:
        raise ValueError(f"boundaries cover {boundaries.n_tokens} tokens, u has {tokens}.")
    build.load_library("scan_ladder", "cuda")
    dense = [value.detach().contiguous() for value, _ in given.values()]
    here = boundaries.to(u.device)
    y: Tensor = torch.ops.mamba_lab.scan_ladder(*dense, here.cu_seqlens, here.order, version, tile)
    return y
