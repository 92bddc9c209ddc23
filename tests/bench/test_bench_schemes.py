"""The schemes' record: steps of like work on the same documents, what is compared is equal first, the command's end."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from mamba_lab import cli
from mamba_lab.batching import pad_collate
from mamba_lab.bench import schemes as bench
from mamba_lab.bench.record import read_record
from mamba_lab.bench.scheme_runs import by_targets, learn, speed
from mamba_lab.corpus import load_corpus
from mamba_lab.models import MambaConfig
from mamba_lab.training.config import SCHEMES

SMALL = MambaConfig(d_model=16, n_layer=1, vocab_size=8192, d_state=4, initializer_range=0.5)
RUN = {"documents": 14, "capacity": 96, "rows": 2, "targets": 192, "learning_rate": 3e-3}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SMALL", SMALL)
    monkeypatch.setattr(bench, "CPU_RUN", RUN)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What `mamba-lab bench schemes` records, and what it prints."""
    folder, printed = tmp_path_factory.mktemp("record"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(bench, "SMALL", SMALL)
        patch.setattr(bench, "CPU_RUN", RUN)
        assert cli.main(["bench", "schemes", "--output", str(folder)]) == 0
    return read_record("schemes", folder=folder)["results"], printed.getvalue()


@pytest.fixture
def payload(command: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return command[0]


def test_steps_come_as_near_to_the_targets_as_whole_groups_do() -> None:
    groups = [[pad_collate([list(range(n + 1))], pad_id=0)] for n in (5, 4, 9, 30, 2, 3, 3, 3)]
    steps = list(by_targets(groups, 10))
    assert [[batch.n_target_tokens for batch in step] for step in steps] == [[5, 4], [9], [30], [2, 3, 3, 3]]
    assert list(by_targets([], 10)) == []


def test_every_scheme_learns_the_same_targets_in_about_as_many_steps(payload: dict[str, Any]) -> None:
    learned = payload["learned"]
    assert list(learned) == list(SCHEMES)
    assert len({found["targets"] for found in learned.values()}) == 1
    assert len({found["tokens"] for found in learned.values()}) == 1
    steps = [len(found["losses"]) for found in learned.values()]
    assert max(steps) <= 1.5 * min(steps)
    for found in learned.values():
        assert len(found["seconds"]) == len(found["losses"]) == len(found["tokens_of_steps"])
        assert sum(found["tokens_of_steps"]) == found["tokens"]
        assert found["losses"][0] == pytest.approx(learned["packed-greedy"]["losses"][0], rel=0.3)
        assert 5 < found["validation_loss"] < 15
        assert found["peak_bytes"] > 0
    assert learned["one-at-a-time"]["valid_ratio"] == 1.0
    assert learned["fixed"]["valid_ratio"] < learned["packed-greedy"]["valid_ratio"]
    assert learned["one-at-a-time"]["peak_bytes"] < learned["packed-greedy"]["peak_bytes"]
    assert learned["one-at-a-time"]["micro_batches"] == learned["packed-greedy"]["sequences"]


def test_packs_are_their_sequences_one_at_a_time_and_leaking_is_not(payload: dict[str, Any]) -> None:
    apart, learned = payload["differences"], payload["learned"]
    assert apart["one_at_a_time"] < 1e-5
    assert apart["concat"] > 10 * apart["one_at_a_time"]
    assert apart["run_concat"] > 10 * apart["run_one_at_a_time"]
    assert learned["one-at-a-time"]["losses"] == pytest.approx(learned["packed-greedy"]["losses"], rel=1e-4)
    steps = [learned[scheme]["tokens_of_steps"] for scheme in ("packed-greedy", "one-at-a-time", "concat")]
    assert steps[0] == steps[1] == steps[2]


def test_packs_that_differ_from_their_sequences_end_it() -> None:
    found = {"losses": [2.0, 2.0], "losses_one_at_a_time": [2.0, 2.1], "losses_concat": [2.0, 2.0]}
    with pytest.raises(RuntimeError, match=r"differ by 5.0e-02 in a step's loss, and rounding makes 1e-05"):
        bench.differences({"packed-greedy": found}, 1e-5)
    found["losses_one_at_a_time"] = [2.0, float("nan")]
    with pytest.raises(RuntimeError, match="differ by nan"):
        bench.differences({"packed-greedy": found}, 1e-5)


def test_speed_leaves_the_weights_alone() -> None:
    model = bench.make_model(SMALL, "cpu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    corpus = load_corpus("chat")[:14]
    for scheme in SCHEMES:
        found = speed(
            model, bench.train_config(scheme, RUN, "cpu"), corpus, micro_batches=2, steps=2, at_most=99, bf16=False
        )
        assert len(found["seconds"]) == 2
        assert found["peak_bytes"] is None  # a GPU's allocator tells
        assert found["tokens"] == sum(found["tokens_of_steps"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="the documents make no 90 steps of 2 micro-batches"):
        speed(model, bench.train_config("fixed", RUN, "cpu"), corpus, micro_batches=2, steps=90, at_most=9, bf16=False)


def parts_in(payload: Mapping[str, Any]) -> int:
    return sum(len(part["schemes"]) for part in payload["steps"])


def test_steps_of_several_sizes(
    payload: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "GPU_RUN", RUN)
    monkeypatch.setattr(bench, "GPU_STEPS", (("small", SMALL, 2, 1, 2), ("small", SMALL, 1, 4, 1)))
    monkeypatch.setattr(bench, "AT_MOST", 8)
    into: dict[str, Any] = {"steps": [], "left_out": []}
    kept: list[int] = []
    corpus = load_corpus("chat")[:14]
    bench.measure_steps(corpus, "cpu", float("inf"), into, lambda all_of_it: kept.append(parts_in(all_of_it)))
    assert kept == list(range(1, 2 * len(bench.TIMED) + 1))
    parts = into["steps"]
    assert into["left_out"] == []
    assert [(part["model"], part["rows"], part["positions"]) for part in parts] == [
        ("small", 2, 192),
        ("small", 1, 384),
    ]
    for part, micro_batches, steps in zip(parts, (1, 4), (2, 1), strict=True):
        assert list(part["schemes"]) == [scheme for scheme in SCHEMES if scheme != "packed-best-fit"]
        alone = part["schemes"].pop("one-at-a-time")
        assert len(alone["seconds"]) == 1
        assert alone["micro_batches"] <= 8
        for found in part["schemes"].values():
            assert len(found["seconds"]) == steps
            assert found["micro_batches"] == micro_batches * steps
        if alone["micro_batches"] < 8:  # the whole first step
            first = part["schemes"]["packed-greedy"]["losses"][0]
            assert alone["losses"] == [pytest.approx(first, rel=1e-5)]
        assert part["schemes"]["fixed"]["positions"] == part["positions"] * steps
    printed = bench.table(payload | {"steps": parts})
    assert "small, 384 positions a step" in printed
    assert printed.count("\npacked-greedy") == 3
    assert "small, 192 positions: fixed: " in capsys.readouterr().out


def test_what_has_not_begun_in_time_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "GPU_RUN", RUN)
    monkeypatch.setattr(bench, "GPU_STEPS", (("small", SMALL, 2, 1, 1),))
    monkeypatch.setattr(bench, "make_model", None)  # not even made
    into: dict[str, Any] = {"steps": [], "left_out": []}
    bench.measure_steps(load_corpus("chat")[:14], "cpu", 0.0, into, lambda payload: None)
    assert into["steps"] == []
    assert into["left_out"][0] == "small, 192 positions: fixed"
    assert len(into["left_out"]) == len(SCHEMES) - 1
    assert "small, 192 positions: fixed: left out, the time is up" in capsys.readouterr().out


def test_every_scheme_starts_from_the_same_weights() -> None:
    model = bench.make_model(SMALL, "cpu")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    settings = bench.train_config("packed-greedy", RUN, "cpu")
    one, two = (
        learn(model, start, settings, load_corpus("chat")[:14], targets=192, bf16=False)["losses"] for _ in range(2)
    )
    assert one == two


def test_the_command_writes_a_record_and_prints_a_table(command: tuple[dict[str, Any], str]) -> None:
    results, out = command
    assert results["settings"]["run"]["config"]["d_model"] == 16
    assert results["steps"] == []
    for scheme in SCHEMES:
        assert out.count(f"\n{scheme}") + out.startswith(scheme) == 2  # as it is done, and in the table
    assert "Largest difference of a step's loss from the packs'" in out


def test_a_stopped_run_leaves_the_parts_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        if arguments[2].packing.scheme == "bucketed":
            raise SystemExit
        return learn(*arguments, **options)

    monkeypatch.setattr(bench, "learn", stopped)
    with pytest.raises(SystemExit):
        bench.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["schemes-unfinished.json"]
    assert list(read_record("schemes-unfinished", folder=tmp_path)["results"]["learned"]) == ["fixed", "padded"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "schemes", "--device", "cuda"]) == 1
    assert "PyTorch sees no GPU here; mamba-lab bench schemes measures the CPU" in capsys.readouterr().err


def test_peers_are_not_for_schemes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "schemes", "--peers"]) == 1
    assert "--peers" in capsys.readouterr().err
