"""One packer on very many lengths, in a process of its own: only so does its peak memory mean something."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mamba_lab.batching import PackingPlan, pack_best_fit, pack_greedy, pack_sequential
from mamba_lab.bench.memory import process_bytes, reset_peak
from mamba_lab.bench.timing import time_samples
from mamba_lab.lengths import published_lengths

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

PACKERS: dict[str, Callable[[Int64Array, int], PackingPlan]] = {
    "sequential": pack_sequential,
    "greedy": pack_greedy,
    "best_fit": pack_best_fit,
}
CHUNK = 1_000_000


def in_own_process(packer: str, n: int, capacity: int, repeats: int) -> dict[str, Any]:
    """``measure`` in a fresh process.

    Raises:
        RuntimeError: the process failed (out of memory, for example); the message ends with what it said.
    """
    command = [sys.executable, "-m", "mamba_lab.bench.packing_scale", packer, str(n), str(capacity), str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"packing {n:,} lengths failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(packer: str, n: int, capacity: int, repeats: int) -> dict[str, Any]:
    """Seconds of each repeat, and peak memory in bytes a length, without the lengths themselves.

    Memory is None where the system does not tell (it is Linux that does).
    The first repeat is counted too: it also pays for memory that the system hands out for the first time.
    """
    lengths = np.empty(n, np.int64)
    for number, first in enumerate(range(0, n, CHUNK)):  # in parts: a temporary of this size would hide the packer's
        part = lengths[first : first + CHUNK]
        part[:] = published_lengths(len(part), seed=number)
    pack = PACKERS[packer]
    pack(lengths[:20_000], capacity)  # loads the library
    before = process_bytes("VmRSS") if reset_peak() else None
    made: list[PackingPlan] = []

    def again() -> None:
        made.clear()  # never two plans at once
        made.append(pack(lengths, capacity))

    samples = time_samples(again, 1, warm_up=0)
    peak = process_bytes("VmHWM")  # of one packing: over several it is also what the allocator keeps between them
    samples += time_samples(again, repeats - 1, warm_up=0) if repeats > 1 else []
    (plan,) = made
    return {
        "packer": packer,
        "lengths": n,
        "capacity": capacity,
        "bins": plan.n_bins,
        "padding_rate": plan.padding_rate,
        "seconds": samples,
        "bytes_per_length": None if before is None or peak is None else (peak - before) / n,
    }


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    print(json.dumps(measure(name, *map(int, numbers))))
