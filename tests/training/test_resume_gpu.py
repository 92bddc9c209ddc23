"""On a GPU: its random numbers and the fused optimiser come back, and a repeatable run goes on to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from run_help import Run, config, lines, run, same_weights

from mamba_lab.training.optim import Schedule, make_optimizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


def on_gpu(*, steps: int, seed: int) -> Run:
    made = Run(steps=0, seed=seed)
    made.model.cuda()
    made.optimizer = make_optimizer(made.model, made.config.training)
    made.schedule = Schedule(made.optimizer, made.config.training, 100)
    for number in range(steps):
        made.step(number)
    return made


def test_all_comes_back_to_the_bit(tmp_path: Path) -> None:
    made = on_gpu(steps=2, seed=1)
    assert made.optimizer.param_groups[0]["fused"] is True
    torch.rand(3, device="cuda")
    path, wanted = made.save(tmp_path), made.everything()
    drawn = torch.rand(5, device="cuda")
    other = on_gpu(steps=0, seed=5)
    other.load(path)
    assert other.everything() == wanted
    assert torch.equal(torch.rand(5, device="cuda"), drawn)
    devices = {value.device.type for entry in other.optimizer.state.values() for value in entry.values()}
    assert devices == {"cuda"}


def test_a_gpus_checkpoint_on_a_cpu(tmp_path: Path) -> None:
    made = on_gpu(steps=2, seed=1)
    path = made.save(tmp_path)
    other = Run(steps=0, seed=5)
    other.load(path)
    assert all(
        torch.equal(value.cpu(), other.model.state_dict()[name]) for name, value in made.model.state_dict().items()
    )
    other.step(2)  # the optimiser's own form of a step is this machine's


@pytest.mark.parametrize("bf16", [False, True])
def test_a_repeatable_run_goes_on_to_the_bit(tmp_path: Path, bf16: bool) -> None:
    settings: dict[str, Any] = {"training": {"device": "cuda", "deterministic": True, "bf16": bf16, "eval_steps": 5}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    run(config(tmp_path, tmp_path / "part", **settings), stop_at=9)
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert same_weights(whole.model, rest.model)
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")
