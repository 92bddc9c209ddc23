"""The early kernels that notebook 13 reads: bad input is named; on a GPU each rung gives what ssm_pack gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mamba_lab.batching import Boundaries
from mamba_lab.ops import ssm_pack
from mamba_lab.ops.scan_ladder import TILES, scan_ladder

LENGTHS = (1, 2, 31, 32, 33, 0, 65, 200)


def inputs(channels: int, device: str) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device, dtype)

    tokens = sum(LENGTHS)
    return {
        "u": normal(tokens, channels),
        "delta": normal(tokens, channels),
        "A": -normal(channels, 16, dtype=torch.float32).exp(),
        "B": normal(tokens, 16),
        "C": normal(tokens, 16),
        "D": normal(channels, dtype=torch.float32),
        "z": normal(tokens, channels),
        "delta_bias": normal(channels, dtype=torch.float32),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 5}, "version is 5, expected one of 1, 2, 3, 4"),
        ({"tile": 7}, "tile is 7, expected one of 4, 8, 16, 32"),
        ({}, r"u must be torch.bfloat16 \[364, 8\] on a GPU, got torch.bfloat16 \[364, 8\] on cpu"),
    ],
)
def test_what_it_cannot_run_is_named(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan_ladder(**inputs(8, "cpu"), boundaries=Boundaries.from_lengths(LENGTHS), **{"version": 1, **change})


ON_A_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))


@ON_A_GPU[0]
@ON_A_GPU[1]
@pytest.mark.parametrize(("version", "tile"), [(1, 16), *((v, tile) for v in (2, 3) for tile in TILES)])
@pytest.mark.parametrize("channels", [1, 75, 256])
def test_every_rung_is_ssm_pack(version: int, tile: int, channels: int) -> None:
    given, boundaries = inputs(channels, "cuda"), Boundaries.from_lengths(LENGTHS, device="cuda")
    wanted = ssm_pack(**given, delta_softplus=True, boundaries=boundaries, backend="reference").float()
    found = scan_ladder(**given, boundaries=boundaries, version=version, tile=tile).float()
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2


@ON_A_GPU[0]
@ON_A_GPU[1]
def test_the_planted_mistake_shows_only_behind_eight_tokens() -> None:
    given, boundaries = inputs(64, "cuda"), Boundaries.from_lengths(LENGTHS, device="cuda")
    right = scan_ladder(**given, boundaries=boundaries, version=3)
    broken = scan_ladder(**given, boundaries=boundaries, version=4)
    wrong = (right != broken).any(1)
    assert wrong.any()
    assert not wrong[boundaries.position_indices < 8].any()
