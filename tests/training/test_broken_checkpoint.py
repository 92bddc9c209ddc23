"""What is broken, another run's, or cannot be written is named, and changes nothing."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_help import FILES, Run, names_in

from mamba_lab.training import checkpoint as module
from mamba_lab.training import checkpoint_folders, manifest
from mamba_lab.training.checkpoint import (
    CheckpointError,
    NewerFormatError,
    find_checkpoint,
    latest_checkpoint,
)
from mamba_lab.training.config import TrainConfig


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


# What is broken


@pytest.mark.parametrize("harm", [cut, flip, remove])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_harmed_is_named_and_nothing_changes(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    path = Run().save(tmp_path)
    harm(path / name)
    other = Run(steps=0, seed=5)
    before = other.everything()
    with pytest.raises(CheckpointError, match=name):
        other.load(path)
    assert other.everything() == before
    assert latest_checkpoint(tmp_path) is None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = Run().save(tmp_path)
    (path / "trainer.json").unlink()
    os.symlink("trainer.json", path / "trainer.json")  # a loop, which root may not read either
    with pytest.raises(CheckpointError, match=r"trainer\.json"):
        find_checkpoint(path)
    (path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        find_checkpoint(path)


def test_a_renamed_checkpoint_is_found_out(tmp_path: Path) -> None:
    path = Run().save(tmp_path)
    path.rename(path.with_name("step-00000007"))
    with pytest.raises(CheckpointError, match="holds step 2"):
        find_checkpoint(path.with_name("step-00000007"))
    path.with_name("step-00000007").rename(tmp_path / "best")
    assert find_checkpoint(tmp_path / "best") == tmp_path / "best"


def test_a_later_format_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older checkpoint in its place would lose steps without need."""
    run = Run()
    run.save(tmp_path, 1)
    monkeypatch.setattr(manifest, "FORMAT", 2)
    run.save(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(NewerFormatError, match=r"has format 2, and this version .* reads format 1"):
        latest_checkpoint(tmp_path)


# What is another run's


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"packing": {"capacity": 64}}, "packing.capacity is 2048 in the checkpoint and 64 here"),
        ({"training": {"learning_rate": 0.5}}, "training.learning_rate is 0.001 in the checkpoint and 0.5 here"),
        ({"data": {"corpus": "code"}}, "data.corpus is 'docs' in the checkpoint and 'code' here"),
        ({"loss": {"weighting": "sequence"}}, "loss.weighting is 'token' in the checkpoint and 'sequence' here"),
    ],
)
def test_other_settings_are_named(tmp_path: Path, section: dict[str, Any], message: str) -> None:
    path = Run().save(tmp_path)
    other = Run(steps=0, seed=5, config=TrainConfig(**section))
    before = other.everything()
    with pytest.raises(CheckpointError, match=message):
        other.load(path)
    assert other.everything() == before


def test_settings_without_influence_may_differ_and_others_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Run().save(tmp_path)
    free = {
        "logging": {"logging_steps": 7, "run_name": "b"},
        "packing": {"workers": 3, "prefetch": 9},
        "training": {"output_dir": tmp_path, "save_steps": 4, "save_total_limit": 9, "on_nonfinite": "stop"},
    }
    Run(config=TrainConfig(**free)).load(path)
    assert not caplog.records
    Run(config=TrainConfig(training={"max_steps": 9})).load(path)
    assert "goes on with other settings: training.max_steps is None in the checkpoint and 9 here" in caplog.text


def test_a_setting_that_the_checkpoint_did_not_know_must_have_its_default(tmp_path: Path) -> None:
    path = Run().save(tmp_path)
    settings = json.loads((path / "train_config.json").read_text())
    del settings["packing"]["capacity"]
    (path / "train_config.json").write_text(json.dumps(settings))
    Run().load(path, verified=True)
    with pytest.raises(CheckpointError, match=r"packing\.capacity is 2048 in the checkpoint and 64 here"):
        Run(config=TrainConfig(packing={"capacity": 64})).load(path, verified=True)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab_size": 22}, r"mamba_lab_vocab is \[21, 8\] in the checkpoint and \[22, 8\] here"),  # as many rows
        ({"d_model": 16}, "hidden_size is 8 in the checkpoint and 16 here"),
        ({"rms_norm": False}, "the model is another one"),
    ],
)
def test_another_model_is_named(tmp_path: Path, sizes: dict[str, Any], message: str) -> None:
    path = Run().save(tmp_path)
    other = Run(steps=0, seed=5, **sizes)
    before = other.everything()
    with pytest.raises(CheckpointError, match=message):
        other.load(path)
    assert other.everything() == before


def test_another_precision_is_named(tmp_path: Path) -> None:
    path = Run().save(tmp_path)
    other = Run()
    other.model.double()
    with pytest.raises(CheckpointError, match=r"has dtype torch.float32 in the checkpoint and torch.float64"):
        other.load(path)


def test_another_optimiser_is_named(tmp_path: Path) -> None:
    path = Run().save(tmp_path)
    other = Run()
    other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="the optimiser is AdamW in the checkpoint and SGD here"):
        other.load(path)
    other.optimizer = torch.optim.AdamW(other.model.parameters())
    with pytest.raises(CheckpointError, match="the groups differ"):
        other.load(path)
    other.optimizer = torch.optim.AdamW(list(other.model.parameters())[:-1])
    with pytest.raises(CheckpointError, match=r"norm_f\.weight is only in the checkpoint"):
        other.load(path)
    other.optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(CheckpointError, match=r"shape \[3\] that the model does not have"):
        other.load(path)


def test_another_machine_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = Run().save(tmp_path)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    Run().load(path)
    assert "now 77: the last bits of what follows may differ" in caplog.text


# What cannot be written


@pytest.mark.parametrize(
    "state",
    [
        {"watch": {"norms": (1.0,)}},
        {"counters": {3: 1}},
        {"stream_state": np.int64(3)},
        {"watch": {"t": torch.ones(1)}},
    ],
)
def test_what_would_not_come_back_is_refused_before_anything_is_written(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^state\['"):
        Run().save(tmp_path, **state)
    assert not (tmp_path / "checkpoints").exists()


def test_a_model_that_is_none_is_refused(tmp_path: Path) -> None:
    run = Run()
    run.model = torch.nn.Linear(2, 2)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="must be a MambaLM, got Linear"):
        run.save(tmp_path)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_full_disk_is_named_and_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A write that fails half-way, at each file in turn."""

    def full(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    run = Run()
    first = run.save(tmp_path, 1)
    real_text, real_manifest = module.write_text, module.write_manifest
    monkeypatch.setattr(
        module, "write_text", lambda path, text: full(path) if path.name == name else real_text(path, text)
    )
    if name == "manifest.json":
        monkeypatch.setattr(module, "write_manifest", lambda folder, *_: full(folder / name))
    elif name == "model.safetensors":
        monkeypatch.setattr(module, "write_checkpoint", lambda folder, *_: full(folder / name))
    elif name == "optimizer.safetensors":
        monkeypatch.setattr(module, "save_file", lambda _, path: full(path))
    with pytest.raises(CheckpointError, match=f"step-00000002/{name} cannot be written .No space left on device"):
        run.save(tmp_path, 2)
    assert names_in(tmp_path) == ["step-00000001"]
    assert latest_checkpoint(tmp_path) == first
    monkeypatch.undo()
    assert module.write_manifest is real_manifest
    assert latest_checkpoint(tmp_path) != run.save(tmp_path, 2) == latest_checkpoint(tmp_path)


@pytest.mark.parametrize("limit", [100, 3_000, 15_000, 21_000])
def test_the_systems_own_limit_is_named(tmp_path: Path, limit: int) -> None:
    """Real writes that fail in safetensors' Rust and in Python: no file may grow beyond ``limit`` bytes."""
    run = Run()
    first = run.save(tmp_path, 1)
    sizes = {name: (first / name).stat().st_size for name in FILES}
    assert max(sizes.values()) > limit
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written \(.*File too large"):
            run.save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names_in(tmp_path) == ["step-00000001"]
    assert latest_checkpoint(tmp_path) == first


@pytest.mark.parametrize("name", ["set_up", "write_text", "write_manifest", "sync_folder", "publish"])
def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = Run()
    first, wanted = run.save(tmp_path, 1), (tmp_path / "checkpoints" / "step-00000001" / "trainer.json").read_bytes()
    run.step(2)
    monkeypatch.setattr(module, name, interrupt)
    for step in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            run.save(tmp_path, step)
    assert names_in(tmp_path) == ["step-00000001"]
    assert latest_checkpoint(tmp_path) == first
    assert (first / "trainer.json").read_bytes() == wanted


def test_a_rename_that_fails_gives_the_old_one_its_place_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    first = run.save(tmp_path, 1)
    real = os.rename

    def fails(source: Path, target: Path) -> None:
        if source.name.endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(checkpoint_folders.os, "rename", fails)
    with pytest.raises(CheckpointError, match="Input/output error"):
        run.save(tmp_path, 1)
    monkeypatch.undo()
    assert names_in(tmp_path) == ["step-00000001"]
    assert latest_checkpoint(tmp_path) == first


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match=r"run/checkpoints/step-00000002 cannot be written \(Not a directory"):
        Run().save(tmp_path / "run")


def test_an_old_one_that_cannot_be_removed_costs_room_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    run = Run()
    run.save(tmp_path, 1)
    monkeypatch.setattr(checkpoint_folders.shutil, "rmtree", fails)
    with caplog.at_level(logging.WARNING):
        path = run.save(tmp_path, 2, keep=1)
    assert latest_checkpoint(tmp_path) == path
    assert "cannot be removed (Permission denied)" in caplog.text


def test_a_checkpoint_that_is_a_link_is_removed_as_a_link(tmp_path: Path) -> None:
    run = Run()
    elsewhere = run.save(tmp_path / "other", 1)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000001").symlink_to(elsewhere)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-00000001"
    run.save(tmp_path, 2, keep=1)
    assert names_in(tmp_path) == ["step-00000002"]
    assert find_checkpoint(elsewhere) == elsewhere
