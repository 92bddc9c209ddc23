"""Timing that keeps every sample."""

from __future__ import annotations

import time
from collections.abc import Callable


def time_samples(function: Callable[[], object], repeats: int, *, warm_up: int = 1) -> list[float]:
    """Seconds of each of `repeats` calls, in order, after `warm_up` calls that are not counted.

    Raises:
        ValueError: fewer than one repeat, or a negative warm-up.
    """
    if repeats < 1 or warm_up < 0:
        raise ValueError(f"repeats is {repeats} and warm_up is {warm_up}; at least 1 and 0 are needed")
    for _ in range(warm_up):
        function()
    samples = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        samples.append(time.perf_counter() - started)
    return samples
