from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import _cut
from mamba_lab.lengths import published_lengths
from mamba_lab.log import log_once
from mamba_lab.ops import NativeUnavailable, build


def brute_force(lengths: list[int], max_tokens: int, max_padding: float, room: int) -> list[list[int]]:
    """The rule as the docstring states it, written without regard to speed."""
    waiting: list[int] = []
    stream = list(range(len(lengths)))
    batches = []
    while waiting or stream:
        batch: list[int] = []

        def verdict(sample: int, batch: list[int] = batch) -> str:
            inside = [lengths[i] for i in [*batch, sample]]
            padded = len(inside) * max(inside)
            if len(inside) > 1 and padded > max_tokens:
                return "full"
            return "wait" if len(inside) > 1 and padded - sum(inside) > max_padding * padded else "take"

        full = False
        for sample in list(waiting):
            what = verdict(sample)
            if what == "full":
                full = True
                break
            if what == "take":
                waiting.remove(sample)
                batch.append(sample)
        while stream and not full:
            what = verdict(stream[0])
            if what == "full":
                break
            if what == "take":
                batch.append(stream.pop(0))
            else:
                waiting.append(stream.pop(0))
                full = len(waiting) >= room
        batches.append(batch)
    return batches


def as_lists(made: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    order, offsets = made
    return [part.tolist() for part in np.split(order, offsets[1:-1])] if len(offsets) > 1 else []


def in_cpp(lengths: np.ndarray, max_tokens: int, max_padding: float, room: int) -> tuple[np.ndarray, np.ndarray]:
    if not _cut.native_available():
        pytest.skip("no C++ compiler here")
    return _cut.cut_in_cpp(lengths, max_tokens, max_padding, room)


streams = st.lists(st.integers(0, 40) | st.sampled_from([1, 2, 39, 40]), max_size=60)
rates = st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.5, 1.0])


@given(streams, st.integers(40, 120), rates, st.sampled_from([1, 2, 5, 1024]))
@settings(max_examples=200, deadline=None)
def test_the_twins_and_the_rule_agree(stream: list[int], max_tokens: int, max_padding: float, room: int) -> None:
    expected = brute_force(stream, max_tokens, max_padding, room)
    lengths = np.array(stream, np.int64)
    assert as_lists(_cut.cut_in_python(lengths, max_tokens, max_padding, room)) == expected
    assert as_lists(in_cpp(lengths, max_tokens, max_padding, room)) == expected


def test_the_twins_agree_on_many_samples() -> None:
    lengths = published_lengths(30_000)
    python = _cut.cut_in_python(lengths, 8192, 0.1, _cut.WAITING_ROOM)
    cpp = in_cpp(lengths, 8192, 0.1, _cut.WAITING_ROOM)
    for ours, theirs in zip(python, cpp, strict=True):
        assert np.array_equal(ours, theirs)


def test_protection_makes_the_long_sample_wait() -> None:
    lengths = np.array([200, 3000, 200, 200, 3000, 200], np.int64)
    assert as_lists(_cut.cut_batches(lengths, 12_000, 0.2)) == [[0, 2, 3, 5], [1, 4]]
    assert as_lists(_cut.cut_batches(lengths, 12_000, 1.0)) == [[0, 1, 2, 3], [4, 5]]


def test_the_choice_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unavailable(name: str) -> None:
        raise NativeUnavailable(name, "no compiler here", "apt-get install g++")

    monkeypatch.setattr(_cut, "NATIVE_FROM", 1)
    monkeypatch.setattr(build, "load_library", unavailable)
    log_once.cache_clear()
    lengths = np.array([3, 4, 5], np.int64)
    with caplog.at_level(logging.INFO, logger="mamba_lab"):
        for _ in range(2):
            assert as_lists(_cut.cut_batches(lengths, 10, 1.0)) == [[0, 1], [2]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "apt-get install g++" in caplog.text
    monkeypatch.undo()
    if _cut.native_available():
        monkeypatch.setattr(_cut, "NATIVE_FROM", 1)
        caplog.clear()
        log_once.cache_clear()
        monkeypatch.setattr(_cut, "cut_in_python", None)
        with caplog.at_level(logging.INFO, logger="mamba_lab"):
            for _ in range(2):
                assert as_lists(_cut.cut_batches(lengths, 10, 1.0)) == [[0, 1], [2]]
        assert caplog.messages == ["Batches are cut in C++ (token_budget)."]


def test_no_other_array_reaches_the_cpp_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object) -> None:
        raise AssertionError("the native function was called")

    monkeypatch.setattr(torch.ops.mamba_lab, "cut_token_budget", reached, raising=False)
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
            _cut.cut_in_cpp(lengths, 10, 0.2, 4)
    with pytest.raises(AssertionError, match="was called"):
        _cut.cut_in_cpp(good, 10, 0.2, 4)
