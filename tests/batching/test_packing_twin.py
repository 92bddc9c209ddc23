"""The packers' rule written out slowly, and both fast forms against it."""

from __future__ import annotations

import logging
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import _native, _pack, pack_best_fit
from mamba_lab.lengths import published_lengths
from mamba_lab.log import log_once
from mamba_lab.ops import NativeUnavailable, build

Bins = list[list[tuple[int, int, int]]]


def pieces_of(lengths: list[int], capacity: int, split: bool) -> Bins:
    """The pieces of each sequence."""
    if not split:
        return [[(i, 0, min(n, capacity))] if n else [] for i, n in enumerate(lengths)]
    return [[(i, at, min(at + capacity, n)) for at in range(0, n, capacity)] for i, n in enumerate(lengths)]


def best_fit_by_the_rule(lengths: list[int], capacity: int, buffer: int, split: bool) -> Bins:
    packed: Bins = []
    cut = pieces_of(lengths, capacity, split)
    for first in range(0, len(lengths), buffer):
        pieces = sorted(
            (piece for of_one in cut[first : first + buffer] for piece in of_one), key=lambda p: (p[1] - p[2], p)
        )
        bins: list[dict[str, Any]] = []
        for step, piece in enumerate(pieces):
            size = piece[2] - piece[1]
            fitting = [b for b in bins if b["room"] >= size]
            if not fitting:
                bins.append({"room": capacity, "since": (step, len(bins)), "pieces": []})
                fitting = bins[-1:]
            chosen = min(fitting, key=lambda b: (b["room"], b["since"]))
            chosen["pieces"].append(piece)
            chosen["room"] -= size
            chosen["since"] = (step, 0)
        packed += sorted(sorted(b["pieces"]) for b in bins)
    return packed


def next_fit_by_the_rule(lengths: list[int], capacity: int, split: bool) -> Bins:
    packed: Bins = []
    room = 0
    for piece in (piece for of_one in pieces_of(lengths, capacity, split) for piece in of_one):
        size = piece[2] - piece[1]
        if size > room:
            packed.append([])
            room = capacity
        packed[-1].append(piece)
        room -= size
    return packed


def as_bins(made: _pack.Csr) -> Bins:
    offsets, sequence, start, stop = made
    pieces = list(zip(sequence.tolist(), start.tolist(), stop.tolist(), strict=True))
    return [pieces[first:last] for first, last in pairwise(offsets.tolist())]


def need_cpp() -> None:
    if not _pack.native_available():
        pytest.skip("no C++ compiler here")


def equal(ours: _pack.Csr, theirs: _pack.Csr) -> bool:
    return all(
        mine.dtype == other.dtype and np.array_equal(mine, other) for mine, other in zip(ours, theirs, strict=True)
    )


# Few different lengths, so that bins with equal room and pieces of equal length abound.
lists = st.lists(st.integers(0, 70) | st.sampled_from([1, 2, 3, 16, 32]), max_size=50)
capacities = st.integers(1, 70) | st.sampled_from([32, 63, 64, 65, 128, 4096, 4097, 10**6, 2**31 - 1])


@given(lists, capacities, st.sampled_from([1, 2, 5, 50]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_twins_and_the_rule_agree(lengths: list[int], capacity: int, buffer: int, split: bool) -> None:
    array = np.array(lengths, np.int64)
    best = best_fit_by_the_rule(lengths, capacity, buffer, split)
    following = next_fit_by_the_rule(lengths, capacity, split)
    python = _pack.best_fit_in_python(array, capacity, buffer, split), _pack.next_fit_in_python(array, capacity, split)
    assert [as_bins(made) for made in python] == [best, following]
    need_cpp()
    cpp = _pack.best_fit_in_cpp(array, capacity, buffer, split), _pack.next_fit_in_cpp(array, capacity, split)
    assert equal(python[0], cpp[0])
    assert equal(python[1], cpp[1])


@pytest.mark.parametrize("buffer", [64, 1024, 30_000])
@pytest.mark.parametrize(
    ("factor", "capacity"),
    [
        (1, 2048),
        (1, 300),  # many are cut
        (1, 4096),
        (400, 2**20),  # the largest table, and the pieces of a buffer sorted by comparing
        (400, 2**20 + 1),  # the map
        (400, 3_000_000),
    ],
)
def test_the_twins_agree_on_many_lengths(factor: int, capacity: int, buffer: int) -> None:
    need_cpp()
    lengths = published_lengths(30_000) * factor
    for split in (False, True):
        python = _pack.best_fit_in_python(lengths, capacity, buffer, split)
        assert equal(python, _pack.best_fit_in_cpp(lengths, capacity, buffer, split))
        python = _pack.next_fit_in_python(lengths, capacity, split)
        assert equal(python, _pack.next_fit_in_cpp(lengths, capacity, split))


def test_the_choice_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unavailable(name: str) -> None:
        raise NativeUnavailable(name, "no compiler here", "apt-get install g++")

    monkeypatch.setattr(_pack, "NATIVE_FROM", 1)
    monkeypatch.setattr(build, "load_library", unavailable)
    log_once.cache_clear()
    lengths = np.array([3, 4, 5], np.int64)
    with caplog.at_level(logging.INFO, logger="mamba_lab"):
        for _ in range(2):
            assert len(_pack.best_fit(lengths, 7, 3, False)[0]) == 3
            assert len(_pack.next_fit(lengths, 7, False)[0]) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "apt-get install g++" in caplog.text
    monkeypatch.undo()
    need_cpp()
    monkeypatch.setattr(_pack, "NATIVE_FROM", 3)
    caplog.clear()
    log_once.cache_clear()
    monkeypatch.setattr(_pack, "best_fit_in_python", None)
    monkeypatch.setattr(_pack, "next_fit_in_python", None)
    with caplog.at_level(logging.INFO, logger="mamba_lab"):
        for _ in range(2):
            assert len(_pack.best_fit(lengths, 7, 3, False)[0]) == 3
            assert len(_pack.next_fit(lengths, 7, False)[0]) == 3
    assert caplog.messages == ["Sequences are packed in C++ (packing)."]


def test_short_lists_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pack, "native_available", None)
    assert pack_best_fit([3, 4, 5], 7).n_bins == 2


def test_no_other_array_reaches_the_cpp_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object) -> None:
        raise AssertionError("the native function was called")

    monkeypatch.setattr(torch.ops.mamba_lab, "pack_best_fit", reached, raising=False)
    monkeypatch.setattr(torch.ops.mamba_lab, "pack_next_fit", reached, raising=False)
    good = np.zeros(6, np.int64)
    bad: list[tuple[Any, str]] = [
        (good.astype(np.float64), "int64 array of one dimension, got float64"),
        (good.astype(np.int32), r"int64 array of one dimension, got int32 \[6\]"),
        (good.astype(">i8"), "int64 array of one dimension, got >i8"),
        (good.reshape(2, 3), r"got int64 \[2, 3\]"),
        (torch.zeros(6, dtype=torch.int64, device="meta"), "NumPy int64 array"),
        ([1, 2], "got list"),
        (good[::2], "contiguous"),
    ]
    for lengths, message in bad:
        with pytest.raises(ValueError, match=message):
            _pack.best_fit_in_cpp(lengths, 10, 4, True)
        with pytest.raises(ValueError, match=message):
            _pack.next_fit_in_cpp(lengths, 10, True)
    with pytest.raises(AssertionError, match="was called"):
        _pack.best_fit_in_cpp(good, 10, 4, True)
    with pytest.raises(AssertionError, match="was called"):
        _pack.next_fit_in_cpp(good, 10, True)


def test_lengths_are_copied_only_where_pytorch_would_warn() -> None:
    lengths = np.arange(4)
    assert _native.lengths_as_tensor(lengths).data_ptr() == lengths.ctypes.data
    lengths.setflags(write=False)
    assert _native.lengths_as_tensor(lengths).data_ptr() != lengths.ctypes.data


SHORT_OF_MEMORY = """
import resource
from pathlib import Path
import numpy as np
from mamba_lab.batching import _pack

if _pack.native_available():
    _pack.best_fit_in_cpp(np.ones(9, np.int64), 1, 9, True)
    lengths = np.array([30_000_000])  # as many pieces
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Too little for the working memory of 12 bytes a piece; then enough for that, and too little for the plan.
    for more in (60, 450):
        resource.setrlimit(resource.RLIMIT_AS, (in_use + more * 2**20, resource.RLIM_INFINITY))
        for pack, arguments in ((_pack.best_fit_in_cpp, (1, 1, True)), (_pack.next_fit_in_cpp, (1, True))):
            try:
                pack(lengths, *arguments)
            except MemoryError as error:
                print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits its memory as Linux does")
def test_lack_of_memory_is_an_error_and_no_crash() -> None:
    need_cpp()
    done = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["The plan does not fit into memory. Pack the lengths in several parts."] * 4
