"""A run's folder: whose it is, what a kill left in it, and from which checkpoint a run goes on."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_help import assert_same_run, config, documents, lines, run, same_weights

from mamba_lab.training import run_folder
from mamba_lab.training.checkpoint import CheckpointError, latest_checkpoint
from mamba_lab.training.checkpoint_folders import clean_up
from mamba_lab.training.loop import train
from mamba_lab.training.manifest import verify
from mamba_lab.training.run_folder import open_run

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
    class Crash(BaseException):
        """No error, after which what was reached would be saved."""

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
