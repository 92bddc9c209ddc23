"""`mamba-lab bench packing`: what each packer leaves empty, how long it takes, and how far it moves documents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mamba_lab.batching import PackingPlan, _pack, pack_best_fit, pack_greedy, pack_sequential
from mamba_lab.bench.packing_peers import PEERS
from mamba_lab.bench.packing_scale import PACKERS, in_own_process
from mamba_lab.bench.record import write_record
from mamba_lab.bench.timing import time_samples
from mamba_lab.corpus import Corpus, load_corpus
from mamba_lab.lengths import length_stats, published_lengths
from mamba_lab.machine import version_of
from mamba_lab.ops.build import load_library

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Form: TypeAlias = "Callable[[], tuple[np.ndarray[Any, Any], ...]]"

CORPORA = ("docs", "code", "chat")
CAPACITIES = (2048, 4096, 8192)
TIMED_CAPACITY = 2048
BUFFERS = (64, 128, 256, 512, 1024, 2048, 4096, 16_384, 65_536)
DEFAULT_BUFFER = 1024
TIMED = 1_000_000
SCALES = (1_000_000, 10_000_000)
FULL_SCALE = 100_000_000
PEER_LENGTHS = 100_000
LOG_NORMAL_MEAN = 359


def run(repeats: int = 5, output: Path | None = None, full: bool = False) -> int:
    """Measure, print a table, write the record ``packing``. Returns 0.

    Args:
        repeats: timed repeats of each part.
        output: the record's folder, ``data/results`` when None.
        full: also pack 100 million lengths, in about 4 GB of memory and a minute.

    Raises:
        NativeUnavailable: the packers cannot be built here, so there is nothing to compare.
    """
    load_library("packing")
    drawn = {"published": published_lengths(TIMED, seed=0), "log-normal": log_normal_lengths(TIMED, seed=0)}
    lengths = drawn | {name: _corpus_lengths(name) for name in CORPORA}
    payload = {
        "settings": {
            "capacities": CAPACITIES,
            "buffers": BUFFERS,
            "timed_capacity": TIMED_CAPACITY,
            "overflow": "split",
            "repeats": repeats,
            "seconds": "wall time of each repeat, in order",
            "moved": "places between a piece's turn in the plan and in the data, in pieces",
            "least_bins": "no packing needs fewer: the Martello-Toth bound L2, at least tokens / capacity",
            "log-normal": f"mean {LOG_NORMAL_MEAN} before it is clipped to 1..2048",
        },
        "lengths": {name: measure_padding(found) for name, found in lengths.items()},
        "seconds": {name: measure_seconds(found, repeats) for name, found in drawn.items()},
        "scale": [
            in_own_process(packer, n, TIMED_CAPACITY, 1 if n == FULL_SCALE else repeats)
            for n in (*SCALES, *([FULL_SCALE] if full else []))
            for packer in PACKERS
        ],
        "peers": {
            name: {peer: measure_peer(peer, found[:PEER_LENGTHS], repeats) for peer in PEERS}
            | {"ours": measure_ours(found[:PEER_LENGTHS], repeats)}
            for name, found in drawn.items()
        },
    }
    print(_table(payload))
    path = write_record("packing", payload, folder=output)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def log_normal_lengths(n: int, seed: int) -> Int64Array:
    """Log-normal lengths of mean 359, clipped to 1..2048: many short documents and a long tail."""
    sigma = 1.0
    draw = np.random.RandomState(np.random.PCG64(seed)).normal(math.log(LOG_NORMAL_MEAN) - sigma**2 / 2, sigma, n)
    return np.clip(np.rint(np.exp(draw)), 1, 2048).astype(np.int64)


def measure_padding(lengths: Int64Array) -> dict[str, Any]:
    """Bins, padding and movement of each packer at each capacity."""
    found = []
    for capacity in CAPACITIES:
        least = least_bins(split_lengths(lengths, capacity), capacity)
        found.append(
            {
                "capacity": capacity,
                "least_bins": least,
                "least_padding_rate": 1 - int(lengths.sum()) / (least * capacity) if least else 0.0,
                "tokens_over_capacity": -(-int(lengths.sum()) // capacity),
                "sequential": plan_costs(pack_sequential(lengths, capacity, overflow="split"), lengths, least),
                "greedy": [
                    {"buffer_size": buffer, **plan_costs(_greedy(lengths, capacity, buffer), lengths, least)}
                    for buffer in BUFFERS
                ],
                "best_fit": plan_costs(pack_best_fit(lengths, capacity, overflow="split"), lengths, least),
            }
        )
    return {"statistics": asdict(length_stats(lengths)), "capacities": found}


def plan_costs(plan: PackingPlan, lengths: Int64Array, least: int) -> dict[str, Any]:
    """What a plan costs, after checking that it is one: every token once, no bin above capacity."""
    plan.check_conserved(lengths)
    if plan.n_bins and plan.bin_tokens.max() > plan.capacity:
        raise RuntimeError(f"a bin of {plan.bin_tokens.max()} tokens at capacity {plan.capacity}")
    moved = np.abs(np.lexsort((plan.start, plan.sequence)) - np.arange(len(plan.sequence)))
    return {
        "bins": plan.n_bins,
        "padding_rate": plan.padding_rate,
        "bins_above_least": plan.n_bins - least,
        "moved_mean": float(moved.mean()) if len(moved) else 0.0,
        "moved_max": int(moved.max(initial=0)),
    }


def split_lengths(lengths: Int64Array, capacity: int) -> Int64Array:
    """The lengths of the pieces that overflow="split" makes, in any order."""
    rest = lengths % capacity
    return np.concatenate((np.full(int((lengths // capacity).sum()), capacity, np.int64), rest[rest > 0]))


def least_bins(lengths: Int64Array, capacity: int) -> int:
    """A number of bins that no packing can go below: the bound L2 of Martello and Toth (1990).

    Lengths above capacity / 2 need a bin each. For each k, those above capacity - k keep theirs to themselves as far
    as lengths of k and more are concerned; the others' room is all that is left for lengths from k to capacity / 2.
    """
    counts = np.bincount(lengths, minlength=capacity + 1).astype(np.int64)
    count_to, tokens_to = np.cumsum(counts), np.cumsum(counts * np.arange(capacity + 1))  # of lengths up to i
    half = capacity // 2
    k = np.arange(half + 1)
    shared = count_to[capacity - k] - count_to[half]
    room = shared * capacity - (tokens_to[capacity - k] - tokens_to[half])
    below = np.where(k > 0, tokens_to[np.maximum(k - 1, 0)], 0)
    more = -(-(tokens_to[half] - below - room) // capacity)
    return int(count_to[-1] - counts[0] - (count_to[half] - counts[0]) + max(int(more.max()), 0))


def measure_seconds(lengths: Int64Array, repeats: int) -> dict[str, Any]:
    """Seconds of each packer on the same lengths: as called, and the two forms that give equal results."""
    n, capacity = len(lengths), TIMED_CAPACITY
    forms: dict[str, tuple[Form, Form]] = {
        "sequential": (
            lambda: _pack.next_fit_in_cpp(lengths, capacity, True),
            lambda: _pack.next_fit_in_python(lengths, capacity, True),
        ),
        "greedy": (
            lambda: _pack.best_fit_in_cpp(lengths, capacity, DEFAULT_BUFFER, True),
            lambda: _pack.best_fit_in_python(lengths, capacity, DEFAULT_BUFFER, True),
        ),
        "best_fit": (
            lambda: _pack.best_fit_in_cpp(lengths, capacity, n, True),
            lambda: _pack.best_fit_in_python(lengths, capacity, n, True),
        ),
    }
    for name, (cpp, python) in forms.items():
        if not all(np.array_equal(ours, theirs) for ours, theirs in zip(cpp(), python(), strict=True)):
            raise RuntimeError(f"{name}: C++ and its Python twin disagree; their times mean nothing")
    return {
        "lengths": n,
        "sequential_s": time_samples(lambda: pack_sequential(lengths, capacity), repeats),
        "greedy_s": [
            {
                "buffer_size": buffer,
                "seconds": time_samples(lambda buffer=buffer: _greedy(lengths, capacity, buffer), repeats),  # type: ignore[misc]
            }
            for buffer in BUFFERS
        ],
        "best_fit_s": time_samples(lambda: pack_best_fit(lengths, capacity), repeats),
        "cpp_s": {name: time_samples(cpp, repeats) for name, (cpp, _) in forms.items()},
        "python_s": {name: time_samples(python, repeats, warm_up=0) for name, (_, python) in forms.items()},
    }


def measure_peer(name: str, lengths: Int64Array, repeats: int) -> dict[str, Any]:
    """A peer on the same lengths, in windows of the default buffer and at once; or that it is not installed."""
    windows = []
    try:
        for window in (DEFAULT_BUFFER, len(lengths)):
            pack, check = PEERS[name](lengths, TIMED_CAPACITY, window)
            sizes = check(pack())
            windows.append(
                {
                    "window": window,
                    "bins": len(sizes),
                    "padding_rate": 1 - int(sizes.sum()) / (len(sizes) * TIMED_CAPACITY),
                    "seconds": time_samples(pack, repeats, warm_up=0),  # the check was its warm-up
                }
            )
    except ModuleNotFoundError as error:
        return {"skipped": f"{error.name} is not installed: pip install 'mamba-lab[peers]'"}
    return {"version": version_of(name), "lengths": len(lengths), "windows": windows}


def measure_ours(lengths: Int64Array, repeats: int) -> dict[str, Any]:
    """Our packer in the peers' form."""
    windows = []
    for window in (DEFAULT_BUFFER, len(lengths)):
        plan = _greedy(lengths, TIMED_CAPACITY, window)
        seconds = time_samples(lambda window=window: _greedy(lengths, TIMED_CAPACITY, window), repeats)  # type: ignore[misc]
        windows.append({"window": window, "bins": plan.n_bins, "padding_rate": plan.padding_rate, "seconds": seconds})
    return {"version": version_of("mamba-lab"), "lengths": len(lengths), "windows": windows}


def _greedy(lengths: Int64Array, capacity: int, buffer: int) -> PackingPlan:
    return pack_greedy(lengths, capacity, buffer_size=buffer, overflow="split")


def _corpus_lengths(name: str) -> Int64Array:
    corpus = load_corpus(name)
    assert isinstance(corpus, Corpus)  # a shipped corpus is never a stream
    return corpus.lengths()


def _table(payload: Mapping[str, Any]) -> str:
    rows = [("lengths", "capacity", "sequential", f"greedy {DEFAULT_BUFFER}", "best fit", "least")]
    for name, found in payload["lengths"].items():
        for part in found["capacities"]:
            greedy = next(one for one in part["greedy"] if one["buffer_size"] == DEFAULT_BUFFER)
            rates = [one["padding_rate"] for one in (part["sequential"], greedy, part["best_fit"])]
            rates.append(part["least_padding_rate"])
            rows.append((name, f"{part['capacity']}", *(f"{rate:.2%}" for rate in rates)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{word:>{width}}" for word, width in zip(row, widths, strict=True)) for row in rows]
    lines.append("Padding rates; sequences above capacity are split; no packing leaves less than the last column.")
    for name, found in payload["seconds"].items():
        cpp, python = ({key: min(value) for key, value in found[form].items()} for form in ("cpp_s", "python_s"))
        said = ", ".join(f"{key} {cpp[key]:.3f} s (Python {python[key]:.2f})" for key in cpp)
        lines.append(f"{found['lengths']:,} lengths, {name}, fastest of {len(found['sequential_s'])}: {said}.")
    lines += [
        f"{one['lengths']:>11,} lengths, {one['packer']}: {statistics.median(one['seconds']):.2f} s, "
        + (
            "memory not measured."
            if one["bytes_per_length"] is None
            else f"{one['bytes_per_length']:.0f} bytes a length beside the lengths."
        )
        for one in payload["scale"]
    ]
    for name, peers in payload["peers"].items():
        for peer, found in peers.items():
            if "skipped" in found:
                lines.append(f"{name}, {peer}: skipped, {found['skipped']}")
                continue
            said = "; ".join(
                f"windows of {one['window']:,}: {one['padding_rate']:.3%} in {min(one['seconds']):.4f} s"
                for one in found["windows"]
            )
            lines.append(f"{name}, {peer} {found['version']}, {found['lengths']:,} lengths, {said}.")
    return "\n".join(lines)
