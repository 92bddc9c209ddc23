"""The schemes' record: steps of like work on the same documents, what is compared is equal first, the command's end."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from mamba_lab import cli
from mamba_lab.batching import pad_collate
from mamba_lab.bench import scheme_steps
from mamba_lab.bench import schemes as bench
from mamba_lab.bench.record import read_record
from mamba_lab.bench.scheme_runs import by_targets, learn
from mamba_lab.bench.scheme_steps import speed, spread_by_length
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


def test_a_sample_is_spread_over_the_lengths() -> None:
    batches = [pad_collate([list(range(n + 1))], pad_id=0) for n in (8, 1, 7, 2, 6, 3, 5, 4)]
    assert [batch.max_seqlen for batch in spread_by_length(batches, 2)] == [4, 8]
    assert [batch.max_seqlen for batch in spread_by_length(batches, 4)] == [3, 5, 7, 9]
    assert spread_by_length(batches, 8) == batches


@pytest.fixture(scope="module")
def timed() -> dict[str, dict[str, Any]]:
    """The same documents under every scheme, on the CPU. The weights stay as they are."""
    model = bench.make_model(SMALL, "cpu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    documents, found = load_corpus("chat")[:14], {}
    for scheme in SCHEMES:
        config = bench.train_config(scheme, RUN, "cpu", all_alike=True)
        found[scheme] = speed(model, config, documents, at_most=3, repeats=4, seconds=99.0, bf16=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return found


def test_every_scheme_is_timed_on_the_same_documents(timed: dict[str, dict[str, Any]]) -> None:
    lengths = [min(len(ids) + 1, 96) for ids in load_corpus("chat")[:14].tokenize()]  # with the end token
    for found in timed.values():
        assert (found["tokens"], found["targets"]) == (sum(lengths), sum(lengths) - len(lengths))
        assert len(found["forward_backward_seconds"]) == len(found["update_seconds"]) == 4
        assert found["peak_bytes"] is None  # a GPU's allocator tells
        assert found["timed_micro_batches"] == min(3, found["micro_batches"])
    assert timed["packed-greedy"]["positions"] < timed["packed-sequential"]["positions"] < timed["fixed"]["positions"]
    assert timed["one-at-a-time"]["micro_batches"] == timed["one-at-a-time"]["sequences"] == 14
    bench.require_same_tokens(timed)


def test_lone_sequences_tell_what_a_call_takes(timed: dict[str, dict[str, Any]]) -> None:
    alone = timed["one-at-a-time"]
    assert len(alone["call_tokens"]) == len(alone["call_seconds"]) == 3
    assert alone["call_tokens"] == sorted(alone["call_tokens"])
    assert all(0 < seconds < 5 for seconds in alone["call_seconds"])
    assert [name for name, found in timed.items() if "call_seconds" in found] == ["one-at-a-time"]


def test_a_sample_counts_for_all_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(scheme_steps, "now", lambda model: float(next(clock)))  # each part takes a second
    config = bench.train_config("one-at-a-time", RUN, "cpu", all_alike=True)
    model, documents = bench.make_model(SMALL, "cpu"), load_corpus("chat")[:14]
    found = speed(model, config, documents, at_most=2, repeats=9, seconds=0.0, bf16=False)
    assert found["forward_backward_seconds"] == [14 / 2] * scheme_steps.LEAST  # the seconds are over at once
    assert found["update_seconds"] == [1.0] * scheme_steps.LEAST
    assert found["call_seconds"] == [1.0, 1.0]


def test_updates_count_once_a_step_and_a_stray_repeat_does_not() -> None:
    found = {"tokens": 1000, "forward_backward_seconds": [10.0, 11.0, 99.0], "update_seconds": [1.0, 2.0, 3.0]}
    whole = bench.with_updates(found, 300)
    assert (whole["updates"], whole["seconds"]) == (4, [14.0, 19.0, 111.0])
    assert bench.tokens_per_second(whole) == 1000 / 19
    assert bench.with_updates(found, 1000)["seconds"] == [11.0, 13.0, 102.0]


def test_epochs_of_other_tokens_end_it() -> None:
    with pytest.raises(RuntimeError, match=r"the same documents have other tokens: \{'a': 3, 'b': 4\}"):
        bench.require_same_tokens({"a": {"tokens": 3}, "b": {"tokens": 4}})


def test_steps_of_several_sizes(
    payload: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "GPU_RUN", RUN)
    monkeypatch.setattr(bench, "GPU_STEPS", (("small", SMALL, 2, (192,)), ("small", SMALL, 1, (96, 384))))
    monkeypatch.setattr(bench, "AT_MOST", {"one-at-a-time": 2})
    monkeypatch.setattr(bench, "REPEATS", 2)
    into: dict[str, Any] = {"steps": [], "left_out": []}
    kept: list[int] = []
    corpus = load_corpus("chat")[:14]
    bench.measure_steps(corpus, "cpu", float("inf"), into, lambda all_of_it: kept.append(len(all_of_it["steps"])))
    assert kept == [1] * len(bench.TIMED) + [3] * len(bench.TIMED)
    parts = into["steps"]
    assert into["left_out"] == []
    assert [(part["rows"], part["positions"]) for part in parts] == [(2, 192), (1, 96), (1, 384)]
    for part in parts:
        schemes = part["schemes"]
        assert list(schemes) == [scheme for scheme in SCHEMES if scheme != "packed-best-fit"]
        assert len({found["tokens"] for found in schemes.values()}) == 1
        for found in schemes.values():
            assert found["updates"] == -(-found["tokens"] // part["positions"])
            assert len(found["seconds"]) == 2
        assert schemes["one-at-a-time"]["timed_micro_batches"] == 2
    printed = bench.table(payload | {"steps": parts})
    assert "small, 384 positions a step" in printed
    assert printed.count("\npacked-greedy") == 4
    assert "small, 192 positions a step: fixed: " in capsys.readouterr().out


def test_what_has_not_begun_in_time_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "GPU_RUN", RUN)
    monkeypatch.setattr(bench, "GPU_STEPS", (("small", SMALL, 2, (192,)),))
    monkeypatch.setattr(bench, "make_model", None)  # not even made
    into: dict[str, Any] = {"steps": [], "left_out": []}
    bench.measure_steps(load_corpus("chat")[:60], "cpu", 0.0, into, lambda payload: None)
    assert into["steps"] == []
    assert into["left_out"][0] == "small, 192 positions a step: fixed"
    assert len(into["left_out"]) == len(SCHEMES) - 1
    assert "small, 192 positions a step: fixed: left out, the time is up" in capsys.readouterr().out


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
