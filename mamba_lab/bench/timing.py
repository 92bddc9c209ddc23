"""Timing that keeps every sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np


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


def time_in_turn(
    functions: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each function in each of `rounds` rounds, in order; a round calls all of them.

    Every second round goes backwards. What else the machine does then falls on all of them alike, and the quotient of
    two samples of one round means more than that of two medians.

    Raises:
        ValueError: fewer than one round, or a negative warm-up.
    """
    if rounds < 1 or warm_up < 0:
        raise ValueError(f"rounds is {rounds} and warm_up is {warm_up}; at least 1 and 0 are needed")
    for function in [*functions.values()] * warm_up:
        function()
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds):
        for name in functions if turn % 2 == 0 else reversed([*functions]):
            started = time.perf_counter()
            functions[name]()
            samples[name].append(time.perf_counter() - started)
    return samples


def ratios(samples: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Quartiles of the quotients, round by round: what one function costs in units of another.

    Raises:
        ValueError: the two have different numbers of rounds.
    """
    if len(samples) != len(to):
        raise ValueError(f"there are {len(samples)} samples and {len(to)} to divide by; time both in the same rounds")
    quotients = np.asarray(samples) / np.asarray(to)
    lower, median, upper = np.percentile(quotients, [25, 50, 75]).tolist()
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}
