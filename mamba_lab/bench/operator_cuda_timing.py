"""Times on a GPU, and the two ceilings of a chip that a scan meets: copying, and taking exponentials."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable

import torch

from mamba_lab.bench.timing import time_samples

GROUP = 16
"""Calls that are queued at once: the GPU waits before them, so that it never waits for Python between them."""


def in_turn_seconds(call: Callable[[], object], repeats: int, device: str) -> list[float]:
    """Seconds of each of ``repeats`` calls after two that are not counted: by CUDA events, on the CPU by the clock."""
    for _ in range(2):
        call()
    if device != "cuda":
        samples = []
        for _ in range(repeats):
            started = time.perf_counter()
            call()
            samples.append(time.perf_counter() - started)
        return samples
    samples = []
    for first in range(0, repeats, GROUP):
        marks = [(_event(), _event()) for _ in range(min(GROUP, repeats - first))]
        torch.cuda._sleep(50_000_000)  # cycles: some 30 ms
        for before, after in marks:
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        samples += [before.elapsed_time(after) * 1e-3 for before, after in marks]
    return samples


def copy_bytes_per_second(device: str) -> float:
    """Bytes read plus bytes written a second, of a copy that no cache holds."""
    source = torch.zeros(1 << 30 if device == "cuda" else 1 << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / statistics.median(in_turn_seconds(lambda: target.copy_(source), 10, device))


def exp2_per_second(device: str) -> float | None:
    """exp2 a second where memory plays no part: a Triton kernel on the GPU; None without one."""
    if device != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from mamba_lab.bench.exp2_kernel import BLOCK, ROUNDS, exp2_chains

    programs = 64 * torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.empty(programs * BLOCK, device=device)
    seconds = statistics.median(in_turn_seconds(lambda: exp2_chains[(programs,)](out, BLOCK, ROUNDS), 10, device))
    return programs * BLOCK * ROUNDS / seconds


def queued_seconds(call: Callable[[], object], repeats: int, device: str) -> list[float]:
    """Seconds of ``repeats`` long calls, one after the other without a pause, as a training loop makes them."""
    if device != "cuda":
        return time_samples(call, repeats, warm_up=0)
    marks = [_event() for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e-3 for before, after in itertools.pairwise(marks)]


def matmul_flops_per_second(device: str, size: int = 8192) -> float | None:
    """Operations a second of a square bfloat16 matrix product, two for each of size cubed; None without a GPU."""
    if device != "cuda":
        return None
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * size**3 / statistics.median(in_turn_seconds(lambda: a @ b, 10, device))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
