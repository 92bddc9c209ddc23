"""The batching record: its figures on cases that can be counted by hand, and the command from end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mamba_lab.batching import chunk_fixed
from mamba_lab.bench import batching
from mamba_lab.bench.record import read_record
from mamba_lab.ops.build import load_library


def test_chunk_costs_of_the_running_example() -> None:
    # A 4, B 2, C 3, D 7, chunks of 4: A | B.. | C. | D first four | D last three.
    apart = batching.chunk_costs(chunk_fixed([4, 2, 3, 7], 4))
    assert apart == {
        "rows": 5,
        "valid_ratio": pytest.approx(16 / 20),
        "documents_cut": 1 / 4,
        "cuts": 1,
        "tokens_cut_off": 3 / 16,
        "rows_that_mix_documents": 0.0,
        "dropped": 0,
    }
    # One stream: A | BBCC | CDDD | DDDD. C loses one token, D four.
    across = batching.chunk_costs(chunk_fixed([4, 2, 3, 7], 4, across=True))
    assert across == {
        "rows": 4,
        "valid_ratio": 1.0,
        "documents_cut": 2 / 4,
        "cuts": 2,
        "tokens_cut_off": 5 / 16,
        "rows_that_mix_documents": 2 / 4,
        "dropped": 0,
    }


def test_nothing_to_cut() -> None:
    assert batching.chunk_costs(chunk_fixed([], 4))["tokens_cut_off"] == 0.0


def test_random_padding_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batching.random_padding(np.full(40, 7), seed=0) == 1.0
    monkeypatch.setattr(batching, "BATCH_SIZE", 3)
    assert batching.random_padding(np.array([4, 2, 6]), seed=1) == pytest.approx(12 / 18)
    # A last batch of one sample holds no padding.
    lengths = np.array([5, 5, 5, 9])
    assert batching.random_padding(lengths, seed=0) in (pytest.approx(24 / 24), pytest.approx(24 / 32))


def test_schemes_rank_as_the_course_says() -> None:
    rng = np.random.default_rng(0)
    found = batching.measure_schemes(np.clip(rng.lognormal(6.2, 0.8, 5000), 57, 2048).astype(np.int64))
    apart = next(part for part in found["fixed_chunks"] if part["capacity"] == 2048 and not part["across"])
    assert apart["valid_ratio"] < max(found["padded_random"]["valid_ratio"]) < min(found["token_budget"]["valid_ratio"])
    assert len(found["padded_random"]["valid_ratio"]) == len(found["token_budget"]["batches"]) == batching.SEEDS


def test_the_budget_grows_for_a_document_that_needs_it() -> None:
    found = batching.measure_schemes(np.array([10, 20, batching.MAX_TOKENS + 5]))
    assert found["token_budget"]["max_tokens"] == batching.MAX_TOKENS + 5


def test_disagreeing_loops_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    load_library("token_budget")
    monkeypatch.setattr(batching._cut, "cut_in_python", lambda *_: (np.zeros(0, np.int64), np.zeros(1, np.int64)))
    with pytest.raises(RuntimeError, match="disagree"):
        batching.measure_sampler(np.arange(1, 50), repeats=1)


def test_the_command_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batching, "CORPORA", ("chat",))
    monkeypatch.setattr(batching, "PUBLISHED", 2000)
    monkeypatch.setattr(batching, "TIMED", 3000)
    assert batching.run(repeats=2, output=tmp_path) == 0
    results = read_record("batching", folder=tmp_path)["results"]
    assert set(results["lengths"]) == {"chat", "published"}
    assert results["lengths"]["chat"]["statistics"]["count"] > 1000
    assert [len(results["sampler"][key]) for key in ("cut_cpp_s", "cut_python_s", "epoch_s")] == [2, 2, 2]
    out = capsys.readouterr().out
    assert "published" in out
    assert "times faster" in out
