"""`mamba-lab bench ladder`: the scan's forward pass on a GPU, rung by rung: early kernels, Triton, and the one in use.

All compute the same on the same pack of published lengths, and are compared before they are timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.bench.operator_cases import Case, forward, ours, published_pack, scan_case
from mamba_lab.bench.operator_cuda_timing import in_turn_seconds
from mamba_lab.bench.operator_table import aligned
from mamba_lab.bench.record import write_record
from mamba_lab.ops.scan_ladder import TILES, VERSIONS, scan_ladder

TOKENS = (4096, 16_384)
CHANNELS, STATES = 4096, 16
CORRECT = (1, 2, 3)


def run(repeats: int, output: Path | None) -> int:
    """Measure, print a table, write the record ``ladder``. Returns 0.

    Raises:
        ValueError: PyTorch sees no GPU.
        RuntimeError: two rungs compute different things; their times would mean nothing.
    """
    if not torch.cuda.is_available():
        raise ValueError(
            "bench ladder needs a GPU, and PyTorch sees none here; data/results/ladder.json has one's times"
        )
    payload = measure("cuda", repeats)
    print(table(payload))
    path = write_record("ladder", payload, folder=output)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure(device: str, repeats: int) -> dict[str, Any]:
    """The record's payload."""
    return {
        "settings": {
            "channels": CHANNELS,
            "states": STATES,
            "dtype": "bfloat16",
            "repeats": repeats,
            "versions": {str(number): what for number, what in VERSIONS.items() if number in CORRECT},
            "seconds": "of each call, by CUDA events, in order; forward, with softplus, bias, D and gate",
        },
        "timed": [part for tokens in TOKENS for part in measure_size(tokens, device, repeats)],
    }


def measure_size(tokens: int, device: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Every rung at one number of tokens."""
    case = scan_case(tokens, CHANNELS, STATES, torch.bfloat16, device=device)
    lengths = published_pack(tokens)
    wanted = forward(ours("ssm_pack", lengths, device, "cuda"), case)
    for name, settings, call in rungs(case, lengths, device):
        with torch.no_grad():
            off = float((call().float() - wanted.float()).norm() / wanted.float().norm())
        if not off < 1e-2:
            raise RuntimeError(f"{name}: y is off by {off:.1e}; times of different things mean nothing")
        with torch.no_grad():
            seconds = in_turn_seconds(call, repeats, device)
        yield {"rung": name, **settings, "tokens": tokens, "sequences": len(lengths), "off": off, "seconds": seconds}


def rungs(case: Case, lengths: list[int], device: str) -> Iterator[tuple[str, dict[str, Any], Callable[[], Tensor]]]:
    """Name, settings and call of every rung, the first one first."""
    boundaries = Boundaries.from_lengths(lengths, device=device)
    inputs = case.inputs
    for version in CORRECT:
        for tile in TILES if version > 1 else TILES[:1]:

            def call(version: int = version, tile: int = tile) -> Tensor:
                return scan_ladder(**inputs, boundaries=boundaries, version=version, tile=tile)

            yield f"version {version}", {"version": version, "tile": tile if version > 1 else None}, call
    for backend in ("triton", "cuda"):
        whole = partial(ours("ssm_pack", lengths, device, backend), inputs)
        yield backend, {"version": None, "tile": None}, whole


def table(payload: dict[str, Any]) -> str:
    """Milliseconds, a line for each rung."""
    rows = [("rung", "tile", *(f"{tokens:,} tokens, ms" for tokens in TOKENS))]
    found: dict[tuple[str, Any], list[str]] = {}
    for part in payload["timed"]:
        milliseconds = statistics.median(part["seconds"]) * 1e3
        found.setdefault((part["rung"], part["tile"]), []).append(f"{milliseconds:.3f}")
    rows += [(rung, "-" if tile is None else str(tile), *times) for (rung, tile), times in found.items()]
    return "\n".join(aligned(rows))
