"""Stop anywhere, go on, and the run is to the bit the one that was never stopped."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_help import SCHEMES, assert_same_run, config, documents, lines, run, same_weights, stopper

from mamba_lab.training.checkpoint import CheckpointError, find_checkpoint
from mamba_lab.training.loop import TrainResult, train
from mamba_lab.training.metrics_file import read_metrics

# To the bit


@pytest.mark.parametrize("stop_at", [5, 20])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_goes_on_to_the_bit(tmp_path: Path, scheme: str, stop_at: int) -> None:
    """In the first epoch and in the second; step 5 of the packed schemes is in the middle of a buffer."""
    settings: dict[str, Any] = {
        "packing": {"scheme": scheme},
        "training": {"num_train_epochs": 2 if stop_at == 20 else 1, "eval_steps": 4, "gradient_accumulation_steps": 1},
    }
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    part = run(config(tmp_path, tmp_path / "part", **settings), stop_at=min(stop_at, whole.steps - 1))
    assert (part.stopped, part.steps) == ("signal", min(stop_at, whole.steps - 1))
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert_same_run(tmp_path, whole, rest)


@pytest.mark.parametrize(
    "settings",
    [
        {"training": {"gradient_accumulation_steps": 3}},
        {"loss": {"weighting": "sequence"}},
        {"training": {"gradient_checkpointing": True, "lr_scheduler_type": "linear", "warmup_steps": 12}},
        {"packing": {"scheme": "one-at-a-time"}, "training": {"gradient_accumulation_steps": 2}},
        {"packing": {"overflow": "truncate", "shuffle": False, "pad_to_multiple_of": 16}},
        {"model": {"tie_embeddings": False, "rms_norm": False, "bias": True}},
        {"training": {"deterministic": True, "bf16": True}},
    ],
    ids=lambda each: ",".join(f"{k}={v}" for section in each.values() for k, v in section.items()),
)
def test_other_settings_go_on_to_the_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    run(config(tmp_path, tmp_path / "part", **settings), stop_at=4)
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert_same_run(tmp_path, whole, rest)


def test_stopped_after_every_step(tmp_path: Path) -> None:
    """A run that is stopped as often as it has steps; a moment in each buffer, each epoch's end, the last step."""
    settings = {"training": {"eval_steps": 5}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    for step in range(1, whole.steps + 1):
        rest = run(config(tmp_path, tmp_path / "part", **settings), stop_at=step, resume=True)
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert_same_run(tmp_path, whole, rest, history=False)


@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0), (1, 3)])
def test_other_loader_workers_go_on_to_the_bit(tmp_path: Path, first: int, then: int) -> None:
    whole = run(config(tmp_path, tmp_path / "whole"))
    run(config(tmp_path, tmp_path / "part", packing={"workers": first}), stop_at=7)
    rest = run(config(tmp_path, tmp_path / "part", packing={"workers": then, "prefetch": 1}), resume=True)
    assert_same_run(tmp_path, whole, rest)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streamed_file_goes_on_to_the_bit(tmp_path: Path, workers: int) -> None:
    texts = "".join(json.dumps({"text": each.text}) + "\n" for each in documents())
    (tmp_path / "texts.jsonl").write_text(texts)

    def streamed(name: str, workers: int, stop_at: int | None = None, resume: bool = False) -> TrainResult:
        settings = config(
            tmp_path,
            tmp_path / name,
            data={"corpus": str(tmp_path / "texts.jsonl"), "streaming": True},
            packing={"workers": workers},
            training={"max_steps": 20},
        )
        return train(settings, on_step=stopper(stop_at), resume=resume)

    whole = streamed("whole", workers)
    streamed("part", workers, stop_at=9)
    assert_same_run(tmp_path, whole, streamed("part", 2 - workers, resume=True))


def test_what_the_watch_remembers_goes_on(tmp_path: Path) -> None:
    """Medians, and the count of steps with a low valid ratio: the same warnings at the same steps, each once."""
    settings = {"packing": {"pad_to_multiple_of": 80}, "training": {"num_train_epochs": 4}}

    def warnings(name: str) -> list[Any]:
        return [(line["step"], line["text"]) for line in read_metrics(tmp_path / name, "warning")]

    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    assert warnings("whole"), "the case must warn"
    run(config(tmp_path, tmp_path / "part", **settings), stop_at=whole.steps // 2)
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert warnings("part") == warnings("whole")
    assert_same_run(tmp_path, whole, rest)


def test_random_numbers_drawn_between_the_steps_go_on(tmp_path: Path) -> None:
    """A model with dropout, or a callback, draws from the global generators: these go on where they were."""
    drawn: dict[str, list[Any]] = {"whole": [], "part": []}

    def one(name: str, stop_at: int | None = None, resume: bool = False) -> None:
        def on_step(step: Any) -> None:
            drawn[name].append((step.step, random.random(), np.random.random(), torch.rand(1).item()))  # noqa: NPY002
            if step.step == stop_at:
                os.kill(os.getpid(), 15)

        train(config(tmp_path, tmp_path / name), documents=documents(), on_step=on_step, resume=resume)

    one("whole")
    one("part", stop_at=6)
    one("part", resume=True)
    assert drawn["part"] == drawn["whole"]


def test_stopped_at_the_last_step(tmp_path: Path) -> None:
    whole = run(config(tmp_path, tmp_path / "whole"))
    run(config(tmp_path, tmp_path / "part"), stop_at=whole.steps)
    rest = run(config(tmp_path, tmp_path / "part"), resume=True)
    assert rest.stopped == "finished"
    assert_same_run(tmp_path, whole, rest, history=False)


@pytest.mark.parametrize("save_steps", [None, 1])
def test_resumed_after_its_end_a_run_does_nothing(tmp_path: Path, save_steps: int | None) -> None:
    settings = {"training": {"save_steps": save_steps}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    before = lines(tmp_path / "whole"), find_checkpoint(tmp_path / "whole")
    again = run(config(tmp_path, tmp_path / "whole", **settings), resume=True)
    assert again.history == []
    assert (again.steps, again.stopped, again.validation) == (whole.steps, "finished", whole.validation)
    assert same_weights(again.model, whole.model)
    assert (lines(tmp_path / "whole"), find_checkpoint(tmp_path / "whole")) == before


def test_a_run_can_be_made_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(config(tmp_path, tmp_path / "run", training={"max_steps": 5}))
    rest = run(config(tmp_path, tmp_path / "run", training={"max_steps": 8}), resume=True)
    assert [step.step for step in rest.history] == [6, 7, 8]
    assert "training.max_steps is 5 in the checkpoint and 8 here" in caplog.text


def test_a_run_that_is_beyond_its_last_step_has_reached_it(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run", training={"max_steps": 5}))
    rest = run(config(tmp_path, tmp_path / "run", training={"max_steps": 3}), resume=True)
    assert (rest.stopped, rest.steps, rest.history) == ("max_steps", 5, [])


def test_with_fewer_steps_than_it_has_taken_a_run_does_nothing(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run", training={"max_steps": 5}))
    rest = run(config(tmp_path, tmp_path / "run", training={"max_steps": 3}), resume=True)
    assert (rest.history, rest.steps) == ([], 5)


def test_a_broken_checkpoint_costs_the_steps_since_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"training": {"save_steps": 3}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    run(config(tmp_path, tmp_path / "part", **settings), stop_at=7)
    newest = find_checkpoint(tmp_path / "part")
    os.truncate(newest / "model.safetensors", 100)
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert rest.history[0].step == 7
    assert "passed over" in caplog.text
    assert "It is now called broken-step-00000007" in caplog.text
    assert newest.with_name("broken-step-00000007").is_dir()
    assert_same_run(tmp_path, whole, rest)


# Another run's


def test_other_documents_are_named_and_nothing_is_lost(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run"), stop_at=4)
    before = lines(tmp_path / "run"), find_checkpoint(tmp_path / "run")
    for others in (documents(41), documents()[::-1]):
        with pytest.raises(ValueError, match="state belongs to another run"):
            train(config(tmp_path, tmp_path / "run"), documents=others, resume=True)
    assert (lines(tmp_path / "run"), find_checkpoint(tmp_path / "run")) == before


def test_other_settings_are_named_and_nothing_is_lost(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run"), stop_at=4)
    before = lines(tmp_path / "run"), (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(CheckpointError, match=r"packing\.capacity is 48 in the checkpoint and 32 here"):
        run(config(tmp_path, tmp_path / "run", packing={"capacity": 32}), resume=True)
    with pytest.raises(CheckpointError, match=r"model\.d_model is 8 in the checkpoint and 16 here"):
        run(config(tmp_path, tmp_path / "run", model={"d_model": 16}), resume=True)
    assert (lines(tmp_path / "run"), (tmp_path / "run" / "config.toml").read_text()) == before
