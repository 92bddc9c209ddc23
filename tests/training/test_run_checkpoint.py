"""Checkpoints: all comes back to the bit, and the last ones are kept."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_help import FILES, Run, names_in

from mamba_lab.models.checkpoint import from_pretrained
from mamba_lab.training.checkpoint import (
    CheckpointError,
    TrainState,
    find_checkpoint,
    latest_checkpoint,
)
from mamba_lab.training.optim import make_optimizer

# What comes back


def test_all_comes_back_to_the_bit(tmp_path: Path) -> None:
    run = Run()
    random.random()
    random.gauss(0, 1)  # leaves a second number for the next call
    np.random.standard_normal(3)  # noqa: NPY002
    state: dict[str, Any] = {
        "epoch": 3,
        "stream_state": {"document": 4, "name": "ä", "load": [1, 2], "crc32": None},
        "counters": {"tokens": 12, "seconds": 0.1 + 0.2},
        "watch": {"norms": [1e-300, float("inf"), 0.1], "said": True},
        "validation": [(1, 2.5), (2, 1 / 3)],
    }
    path = run.save(tmp_path, **state)
    wanted, drawn = run.everything(), (random.gauss(0, 1), np.random.standard_normal(), torch.rand(1))  # noqa: NPY002

    other = Run(steps=0, seed=5)
    assert other.everything() != wanted
    assert other.load(path) == TrainState(step=2, **state)
    assert other.everything() == wanted
    assert (random.gauss(0, 1), np.random.standard_normal(), torch.rand(1)) == drawn  # noqa: NPY002


def test_what_follows_is_what_would_have_followed(tmp_path: Path) -> None:
    run = Run()
    path = run.save(tmp_path)
    run.step(2)
    other = Run(steps=0, seed=5)
    other.load(path)
    other.step(2)
    assert other.everything() == run.everything()


def test_a_number_that_is_not_finite_comes_back(tmp_path: Path) -> None:
    path = Run().save(tmp_path, validation=[(1, float("nan"))])
    assert repr(Run().load(path).validation) == "[(1, nan)]"


def test_nothing_of_the_run_hangs_on_the_files_afterwards(tmp_path: Path) -> None:
    """Weights and moments are copies: a file that is removed or overwritten later takes nothing with it."""
    run = Run()
    path, wanted = run.save(tmp_path), run.everything()
    other = Run(steps=0, seed=5)
    other.load(path)
    for name in ("model.safetensors", "optimizer.safetensors"):
        (path / name).write_bytes(bytes((path / name).stat().st_size))
    assert other.everything() == wanted


@pytest.mark.parametrize(
    "sizes",
    [{}, {"tie_embeddings": False}, {"rms_norm": False, "norm_epsilon": 1e-6, "bias": True}],
    ids=["tied", "untied", "LayerNorm"],
)
def test_from_pretrained_reads_a_checkpoint(tmp_path: Path, sizes: dict[str, Any]) -> None:
    run = Run(**sizes)
    path, wanted = run.save(tmp_path), run.everything()
    model = from_pretrained(path)
    state = run.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.config.norm_epsilon == run.model.config.norm_epsilon
    other = Run(steps=0, seed=5, **sizes)
    other.load(path)
    assert other.everything() == wanted


def test_two_layers_that_share_a_weight_stay_together(tmp_path: Path) -> None:
    def shared(steps: int) -> Run:
        torch.manual_seed(steps)
        run = Run(steps=0)
        first, second = (layer.mixer.in_proj for layer in run.model.backbone.layers)
        second.weight = first.weight
        run.optimizer = make_optimizer(run.model, run.config.training)
        for number in range(steps):
            run.step(number)
        return run

    run = shared(2)
    path, wanted = run.save(tmp_path), run.everything()
    other = shared(0)
    other.load(path)
    assert other.everything() == wanted
    assert from_pretrained(path).state_dict().keys() == run.model.state_dict().keys()


def test_a_compiled_model_is_saved_as_what_it_wraps(tmp_path: Path) -> None:
    run = Run()
    plain, run.model = run.model, torch.compile(run.model)  # type: ignore[assignment]
    assert find_checkpoint(run.save(tmp_path)) == tmp_path / "checkpoints" / "step-00000002"
    assert torch.equal(from_pretrained(tmp_path / "checkpoints/step-00000002").lm_head.weight, plain.lm_head.weight)


def test_others_may_read_the_files_as_the_users_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = Run().save(tmp_path)
    finally:
        os.umask(before)
    assert {oct((path / name).stat().st_mode & 0o777) for name in FILES} == {"0o640"}


def test_an_optimiser_with_a_learning_rate_in_a_tensor(tmp_path: Path) -> None:
    run = Run(steps=0)
    run.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    path = run.save(tmp_path)
    other = Run(steps=0)
    other.optimizer.param_groups[0]["lr"] = torch.tensor(0.7)
    other.load(path)
    assert torch.equal(other.optimizer.param_groups[0]["lr"], torch.tensor(0.1))
    assert isinstance(other.optimizer.param_groups[0]["betas"], tuple)


def test_how_a_step_is_computed_stays_as_it_is_here(tmp_path: Path) -> None:
    run = Run()
    run.optimizer.param_groups[0]["foreach"] = True
    path = run.save(tmp_path)
    other = Run()
    other.load(path)
    assert other.optimizer.param_groups[0]["foreach"] is None


def test_a_schedule_of_pytorchs_comes_back_and_another_kind_does_not(tmp_path: Path) -> None:
    def scheduled(steps: int) -> Run:
        run = Run(steps=1)
        schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 1 / (1 + step))
        for _ in range(steps):
            run.optimizer.step()
            schedule.step()
        run.schedule = schedule  # type: ignore[assignment]
        return run

    run, other = scheduled(3), scheduled(0)
    other.load(run.save(tmp_path))
    assert other.schedule.state_dict() == run.schedule.state_dict()
    assert other.optimizer.param_groups[0]["lr"] == run.optimizer.param_groups[0]["lr"]
    with pytest.raises(CheckpointError, match=r"the schedule has .*last_epoch.* it is another kind"):
        Run().load(tmp_path / "checkpoints" / "step-00000002")


# Which are there


def test_the_last_ones_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    run = Run()
    for step in (8, 9, 10, 11):
        run.save(tmp_path, step, keep=2)
        (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
        (tmp_path / "checkpoints" / "step-best").mkdir(exist_ok=True)
    assert names_in(tmp_path) == ["notes.txt", "step-00000010", "step-00000011", "step-best"]
    run.save(tmp_path, 12, keep=None)
    assert len(names_in(tmp_path)) == 5
    run.save(tmp_path, 13, keep=1)
    assert names_in(tmp_path) == ["notes.txt", "step-00000013", "step-best"]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        run.save(tmp_path, 14, keep=0)


def test_a_step_of_nine_digits_is_newer_than_one_of_eight(tmp_path: Path) -> None:
    run = Run()
    run.save(tmp_path, 99_999_999)
    assert latest_checkpoint(tmp_path) != run.save(tmp_path, 100_000_000) == latest_checkpoint(tmp_path)
    run.save(tmp_path, 100_000_000, keep=1)
    assert names_in(tmp_path) == ["step-100000000"]


def test_a_step_that_is_there_is_replaced(tmp_path: Path) -> None:
    run = Run()
    run.save(tmp_path)
    run.step(2)
    path, wanted = run.save(tmp_path), run.everything()
    other = Run()
    other.load(path)
    assert other.everything() == wanted
    assert names_in(tmp_path) == ["step-00000002"]


def test_the_newest_whole_one_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None
    run = Run()
    first, second, third = (run.save(tmp_path, step) for step in (1, 2, 3))
    assert latest_checkpoint(tmp_path) == find_checkpoint(tmp_path) == third
    os.truncate(third / "optimizer.safetensors", 1000)
    (second / "manifest.json").unlink()
    assert latest_checkpoint(tmp_path) == find_checkpoint(tmp_path) == first
    assert "step-00000003: optimizer.safetensors has" in caplog.text
    assert "step-00000002 has no manifest.json" in caplog.text
    shutil.rmtree(first)
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors has"):
        find_checkpoint(third)
