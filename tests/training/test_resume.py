"""Stop anywhere, go on, and the run is to the bit the one that was never stopped. And whose folder is it?"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_help import SCHEMES, config, documents, lines, run, same_weights, without_clock

from mamba_lab.training import run_folder
from mamba_lab.training.checkpoint import CheckpointError, find_checkpoint, latest_checkpoint
from mamba_lab.training.checkpoint_folders import clean_up
from mamba_lab.training.loop import TrainResult, train
from mamba_lab.training.manifest import verify
from mamba_lab.training.metrics_file import read_metrics
from mamba_lab.training.run_folder import open_run


def assert_same_run(folder: Path, one: TrainResult, other: TrainResult, *, history: bool = True) -> None:
    """The runs "whole" and "part" in ``folder``, to the bit: weights, moments, place, watch, random numbers, lines."""
    assert same_weights(one.model, other.model)
    assert one.validation == other.validation
    assert (one.steps, one.stopped, one.tokens) == (other.steps, other.stopped, other.tokens)
    assert lines(folder / "whole") == lines(folder / "part")
    paths = [find_checkpoint(folder / name) for name in ("whole", "part")]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert paths[0].joinpath(name).read_bytes() == paths[1].joinpath(name).read_bytes(), name
    rest = [json.loads((path / "trainer.json").read_text()) for path in paths]
    for values in rest:
        del values["state"]["counters"]["seconds"]
    assert rest[0] == rest[1]
    if history:
        wanted = [without_clock(step.to_dict()) for step in one.history]
        assert [without_clock(step.to_dict()) for step in other.history] == wanted[-len(other.history) :]


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


# The folder


def test_a_folder_with_a_run_takes_no_second_one(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run"), stop_at=2)
    before = lines(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"has a run already, up to step-00000002\. Go on with it \(--resume\)"):
        run(config(tmp_path, tmp_path / "run"))
    assert lines(tmp_path / "run") == before


def test_a_run_that_died_before_its_first_checkpoint_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Crash(Exception):
        pass

    def crash(step: Any) -> None:
        if step.step == 3:
            raise Crash

    whole = run(config(tmp_path, tmp_path / "whole"))
    with pytest.raises(Crash):
        train(config(tmp_path, tmp_path / "part"), documents=documents(), on_step=crash)
    rest = run(config(tmp_path, tmp_path / "part"), resume=True)
    assert "has no checkpoint yet: the run starts from the beginning" in caplog.text
    assert_same_run(tmp_path, whole, rest)


def test_when_no_checkpoint_is_whole_the_run_does_not_start_anew_by_itself(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run", training={"save_steps": 1}), stop_at=2)
    for each in (tmp_path / "run" / "checkpoints").iterdir():
        (each / "trainer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole: .*step-00000002.*step-00000001"):
        run(config(tmp_path, tmp_path / "run"), resume=True)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    with (
        open_run(tmp_path / "run"),
        pytest.raises(ValueError, match=f"another run is at work in .*process {os.getpid()} on "),
        open_run(tmp_path / "run", resume=True),
    ):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with open_run(tmp_path / "run"), pytest.raises(ValueError, match="another run"), open_run(tmp_path / "link"):
        pass
    with open_run(tmp_path / "run") as opened:
        assert opened.path == tmp_path / "run"


def test_without_locks_a_run_goes_on_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fcntl

    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with open_run(tmp_path / "run"):
        pass
    assert "the file system has no locks (No locks available); start no second run there" in caplog.text


def test_a_linked_folder_is_as_good(tmp_path: Path) -> None:
    whole = run(config(tmp_path, tmp_path / "whole"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "part").symlink_to(tmp_path / "disk")
    run(config(tmp_path, tmp_path / "part"), stop_at=4)
    assert latest_checkpoint(tmp_path / "disk") is not None
    rest = run(config(tmp_path, tmp_path / "part"), resume=True)
    assert_same_run(tmp_path, whole, rest)


@pytest.mark.parametrize("what", ["a file", "in a file", "a dangling link"])
def test_a_folder_that_takes_no_files_is_named_before_any_work(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    place = {"a file": tmp_path / "file", "in a file": tmp_path / "file" / "run", "a dangling link": tmp_path / "link"}
    with pytest.raises(ValueError, match=r"training\.output_dir is .* which takes no files"), open_run(place[what]):
        pass


def test_a_file_in_the_place_of_the_checkpoints_is_named_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("text")
    with (
        pytest.raises(ValueError, match=r"folder of checkpoints is .* which takes no files"),
        open_run(tmp_path / "run"),
    ):
        pass


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(ValueError, match=r"\.lock cannot be opened \(Is a directory\)"), open_run(tmp_path):
        pass


def test_a_full_disk_keeps_the_lock(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with open_run(tmp_path), pytest.raises(ValueError, match=r"another run .* \(unknown\)"), open_run(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_cannot_be_cleaned_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "a")

    (tmp_path / "checkpoints" / ".step-00000004.old").mkdir(parents=True)
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(CheckpointError, match=r"cannot be set in order .*Permission denied"), open_run(tmp_path):
        pass


def test_what_a_killed_write_left_is_removed(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run"), stop_at=4)
    root = tmp_path / "run" / "checkpoints"
    for name in (".step-00000005.0011aabb.tmp", ".step-00000001.0011aabb.gone", ".step-00000004.old"):
        shutil.copytree(root / "step-00000004", root / name)
    (root / ".mine").mkdir()
    with open_run(tmp_path / "run", resume=True) as opened:
        assert opened.checkpoint == root / "step-00000004"
    assert sorted(each.name for each in root.iterdir()) == [".mine", "step-00000004"]


def test_a_checkpoint_that_was_about_to_be_replaced_is_put_back(tmp_path: Path) -> None:
    run(config(tmp_path, tmp_path / "run"), stop_at=4)
    root = tmp_path / "run" / "checkpoints"
    (root / "step-00000004").rename(root / ".step-00000004.old")
    clean_up(root)
    assert verify(root / "step-00000004")["step"] == 4
    assert [each.name for each in root.iterdir()] == ["step-00000004"]
    clean_up(tmp_path / "nowhere")


# From another place


def test_from_a_checkpoint_in_another_folder(tmp_path: Path) -> None:
    """A run of its own, which leaves the other's folder alone; its own checkpoint counts from then on."""
    whole = run(config(tmp_path, tmp_path / "whole", training={"save_total_limit": 30, "save_steps": 1}))
    before = sorted(os.listdir(tmp_path / "whole" / "checkpoints"))
    path = tmp_path / "whole" / "checkpoints" / "step-00000005"
    assert run(config(tmp_path, tmp_path / "part"), resume=path, stop_at=8).history[0].step == 6
    with pytest.raises(CheckpointError, match="has a run already, up to step-00000008"):
        run(config(tmp_path, tmp_path / "part"), resume=path)
    rest = run(config(tmp_path, tmp_path / "part"), resume=True)
    assert same_weights(rest.model, whole.model)
    assert sorted(os.listdir(tmp_path / "whole" / "checkpoints")) == before
    nothing = run(config(tmp_path, None), resume=tmp_path / "whole")
    assert nothing.history == []


def test_from_an_older_checkpoint_of_the_same_folder(tmp_path: Path) -> None:
    """The newer ones would be mixed with those of the new way."""
    run(config(tmp_path, tmp_path / "run", training={"save_steps": 1}), stop_at=4)
    root = tmp_path / "run" / "checkpoints"
    with pytest.raises(CheckpointError, match="has gone on after step-00000003, up to step-00000004"):
        run(config(tmp_path, tmp_path / "run"), resume=root / "step-00000003")
    assert run(config(tmp_path, tmp_path / "run"), resume=str(root / "step-00000004"), stop_at=6).history[0].step == 5
    shutil.rmtree(root / "step-00000006")
    for each in (root / "step-00000004", tmp_path / "run"):
        with open_run(tmp_path / "run", resume=each) as opened:
            assert opened.checkpoint == root / "step-00000004"


@pytest.mark.parametrize("resume", ["nowhere", ""])
def test_a_place_without_a_checkpoint_is_named(tmp_path: Path, resume: str) -> None:
    place = tmp_path / resume if resume else ""
    with pytest.raises(ValueError, match=r"there is no checkpoint|must be a path"):
        run(config(tmp_path, tmp_path / "run"), resume=place)


def test_resume_without_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"resume needs training\.output_dir"), open_run(None, resume=True):
        pass
    with open_run(None) as opened:
        assert (opened.path, opened.config, opened.checkpoint) == (None, None, None)


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with open_run("~/run") as opened:
        assert opened.path == tmp_path / "run"
    with open_run("run") as opened:
        monkeypatch.chdir("/")
        assert opened.path == tmp_path / "run"
    assert run_folder._LOCK in os.listdir(tmp_path / "run")
