"""The packing record: its figures on cases that can be counted by hand, and the command from end to end."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab import cli
from mamba_lab.batching import PackingPlan, pack_best_fit, pack_greedy
from mamba_lab.bench import packing, packing_peers, packing_scale
from mamba_lab.bench.record import read_record


def test_what_a_plan_costs_by_hand() -> None:
    lengths = np.array([5, 3, 4, 2, 6])
    # Bins 0 1, 2, 3 4: the plan keeps data order.
    costs = packing.plan_costs(pack_best_fit(lengths, 8), lengths, least=3)
    rate = pytest.approx(4 / 24)
    assert costs == {"bins": 3, "padding_rate": rate, "bins_above_least": 0, "moved_mean": 0.0, "moved_max": 0}
    # Data order a b c d, plan a c | b d: b and c move by one.
    lengths = np.array([6, 5, 2, 3])
    costs = packing.plan_costs(pack_best_fit(lengths, 8), lengths, least=2)
    assert (costs["moved_mean"], costs["moved_max"]) == (0.5, 1)
    none = np.zeros(0, np.int64)
    assert packing.plan_costs(pack_best_fit(none, 8), none, least=0)["moved_max"] == 0


def test_a_wrong_plan_is_not_measured() -> None:
    plan = pack_best_fit([5, 3], 8)
    with pytest.raises(ValueError, match="the data set has 9"):
        packing.plan_costs(plan, np.array([5, 4]), least=1)
    crowded = PackingPlan._trusted(7, plan.offsets, plan.sequence, plan.start, plan.stop, 0)
    with pytest.raises(RuntimeError, match="a bin of 8 tokens at capacity 7"):
        packing.plan_costs(crowded, np.array([5, 3]), least=1)


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_split_lengths(lengths: list[int], capacity: int) -> None:
    plan = pack_greedy(lengths, capacity, overflow="split")
    found = packing.split_lengths(np.array(lengths, np.int64), capacity)
    assert sorted(found.tolist()) == sorted((plan.stop - plan.start).tolist())


def bound_by_the_book(lengths: list[int], capacity: int) -> int:
    """L2 as Martello and Toth define it."""
    best = 0
    for k in range(capacity // 2 + 1):
        alone = [n for n in lengths if n > capacity - k]
        shared = [n for n in lengths if capacity / 2 < n <= capacity - k]
        small = [n for n in lengths if k <= n <= capacity / 2]
        room = len(shared) * capacity - sum(shared)
        best = max(best, len(alone) + len(shared) + max(0, -(-(sum(small) - room) // capacity)))
    return best


@given(st.lists(st.integers(0, 25), max_size=12), st.integers(25, 30))
@settings(max_examples=200, deadline=None)
def test_the_bound(lengths: list[int], capacity: int) -> None:
    bound = packing.least_bins(np.array(lengths, np.int64), capacity)
    assert bound == bound_by_the_book(lengths, capacity)
    assert -(-sum(lengths) // capacity) <= bound <= pack_best_fit(lengths, capacity).n_bins


def test_the_log_normal_set_is_as_said() -> None:
    lengths = packing.log_normal_lengths(200_000, seed=0)
    assert (lengths.min(), lengths.max()) == (1, 2048)
    assert lengths.mean() == pytest.approx(347, abs=3)  # 359 before the clip
    assert np.array_equal(lengths[:10], packing.log_normal_lengths(10, seed=0))


def test_disagreeing_forms_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.arange(1, 200)
    packing.load_library("packing")
    reversed_ = packing._pack.next_fit_in_python(lengths[::-1].copy(), 2048, True)
    monkeypatch.setattr(packing._pack, "next_fit_in_python", lambda *_: reversed_)
    with pytest.raises(RuntimeError, match=r"sequential: .* disagree"):
        packing.measure_seconds(lengths, repeats=1)


def test_memory_is_measured_in_another_process() -> None:
    found = packing_scale.in_own_process("best_fit", 300_000, 2048, repeats=2)
    assert (found["packer"], found["lengths"], len(found["seconds"])) == ("best_fit", 300_000, 2)
    lengths = packing.published_lengths(300_000, seed=0)
    assert found["bins"] == pack_best_fit(lengths, 2048).n_bins
    assert found["bytes_per_length"] is None or 0 < found["bytes_per_length"] <= 60
    with pytest.raises(RuntimeError, match=r"(?s)packing 5 lengths failed with exit code 1: .*KeyError: 'nothing'"):
        packing_scale.in_own_process("nothing", 5, 2048, repeats=1)


def test_checked_sizes() -> None:
    lengths = np.array([5, 3, 4])
    bins = [np.array([4]), np.array([3, 5])]
    assert packing_peers.checked_sizes(lengths, bins, 8).tolist() == [4, 8]
    with pytest.raises(RuntimeError, match="a bin of 8 tokens at capacity 7"):
        packing_peers.checked_sizes(lengths, bins, 7)
    with pytest.raises(RuntimeError, match="packed 2 sequences that are not the 3"):
        packing_peers.checked_sizes(lengths, bins[1:], 8)


def test_a_missing_peer_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    packing_peers._first_fit_kernel.cache_clear()
    for module in ("trl", "numba"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises
        found = packing.measure_peer(module, np.array([3, 4]), repeats=1)
        assert found == {"skipped": f"{module} is not installed: pip install 'mamba-lab[peers]'"}


@pytest.mark.parametrize("peer", sorted(packing_peers.PEERS))
def test_peers_that_are_installed(peer: str) -> None:
    if importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    lengths = packing.published_lengths(3000)
    found = packing.measure_peer(peer, lengths, repeats=1)
    ours = packing.measure_ours(lengths, repeats=1)
    for theirs, mine in zip(found["windows"], ours["windows"], strict=True):
        assert theirs["window"] == mine["window"]
        assert theirs["bins"] == pytest.approx(mine["bins"], rel=0.01)
        assert len(theirs["seconds"]) == len(mine["seconds"]) == 1


def test_the_command_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled: list[tuple[Any, ...]] = []

    def in_own_process(*job: Any) -> dict[str, Any]:
        scaled.append(job)
        return packing_scale.measure(*job)

    monkeypatch.setattr(packing, "CORPORA", ("chat",))
    monkeypatch.setattr(packing, "CAPACITIES", (2048,))
    monkeypatch.setattr(packing, "TIMED", 3000)
    monkeypatch.setattr(packing, "PEER_LENGTHS", 2000)
    monkeypatch.setattr(packing, "PEERS", {"trl": packing_peers.trl_best_fit})
    monkeypatch.setattr(packing, "SCALES", (2000,))
    monkeypatch.setattr(packing, "FULL_SCALE", 4000)
    monkeypatch.setattr(packing, "in_own_process", in_own_process)
    monkeypatch.setitem(sys.modules, "trl", None)
    command = ["bench", "packing", "--repeats", "2", "--output", str(tmp_path)]
    assert cli.main(command) == 0
    assert [job[1] for job in scaled] == [2000] * 3
    results = read_record("packing", folder=tmp_path)["results"]
    assert set(results["lengths"]) == {"published", "log-normal", "chat"}
    part = results["lengths"]["published"]["capacities"][0]
    rates = [part["sequential"]["padding_rate"], *(one["padding_rate"] for one in part["greedy"])]
    assert rates[0] > rates[1] > rates[3] > part["best_fit"]["padding_rate"] >= part["least_padding_rate"]
    moved = [one["moved_max"] for one in part["greedy"]]
    assert moved[0] < 64
    assert moved == sorted(moved)
    assert part["sequential"]["moved_max"] == 0
    assert part["greedy"][-1]["bins"] == part["best_fit"]["bins"]  # a buffer of more than there is
    timed = results["seconds"]["log-normal"]
    assert [len(timed["best_fit_s"]), len(timed["python_s"]["greedy"]), len(timed["greedy_s"][0]["seconds"])] == [2] * 3
    assert results["peers"]["published"]["trl"] == {"skipped": "trl is not installed: pip install 'mamba-lab[peers]'"}
    out = capsys.readouterr().out
    assert "published, trl: skipped" in out
    assert "4,000 lengths" not in out
    assert cli.main([*command, "--full"]) == 0
    assert scaled[-1] == ("best_fit", 4000, 2048, 1)


def test_full_is_for_packing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "batching", "--full"]) == 1
    assert "--full belongs to bench packing" in capsys.readouterr().err
