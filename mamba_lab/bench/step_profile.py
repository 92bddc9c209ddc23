"""Where a training step's GPU time goes, by kind of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

KINDS = {
    "scan backward": ("scan_backward", "selective_scan_bwd"),
    "scan forward": ("scan_forward", "selective_scan_fwd"),
    "partial sums": ("sum_parts", "add_up"),
    "convolution": ("conv1d", "::conv::"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "splitk", "gemv"),
    "norm and residual": ("norm",),
    "loss": ("softmax", "nll_loss", "cross_entropy"),
    "casts and copies": ("copy", "catarray"),
}
"""By kind, words that occur in a kernel's name. The first kind that fits counts."""

TOP = 20


def kind_of(kernel: str) -> str:
    """The kind of work of a kernel by its name."""
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "everything else")


def measure(step: Callable[[], object], device: str) -> dict[str, Any]:
    """GPU seconds of one step by kind and of its longest kernels, after two steps that are not looked at."""
    if device != "cuda":
        step()
        return summary([], None)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        before.record()
        step()
        after.record()
        torch.cuda.synchronize()
    results = profile.profiler.kineto_results  # the events as they are: making Python's of them takes seconds
    kernels = [
        (event.name(), event.duration_ns() * 1e-9)
        for event in results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    return summary(kernels, before.elapsed_time(after) * 1e-3)


def summary(kernels: list[tuple[str, float]], seconds: float | None) -> dict[str, Any]:
    """From kernels' names and seconds: by kind, longest first; the longest by name; and what the whole step took."""
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    for name, taken in kernels:
        kinds[kind_of(name)] += taken
        names[name].append(taken)
    longest = sorted(names, key=lambda name: -sum(names[name]))[:TOP]
    return {
        "seconds": seconds,
        "busy_seconds": sum(kinds.values()),
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
        "longest": [
            {"kernel": name[:120], "kind": kind_of(name), "calls": len(names[name]), "seconds": sum(names[name])}
            for name in longest
        ],
    }
