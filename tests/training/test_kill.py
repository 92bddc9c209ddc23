"""kill -9: at every moment of a checkpoint, and at random moments of a run. Nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kill_help import Forks
from run_help import Run, config, lines, run, same_weights

from mamba_lab.training.checkpoint import find_checkpoint
from mamba_lab.training.manifest import verify
from mamba_lab.training.run_folder import open_run


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in the processes to kill: the last bits of a sum may depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as server:
        yield server


def attempts(folder: Path) -> dict[int, int]:
    """Of each checkpoint, all of them whole: which attempt wrote it."""
    found = {}
    for path in sorted((folder / "checkpoints").iterdir()):
        assert not path.name.startswith("."), "a leftover"
        values = json.loads((path / "trainer.json").read_text())
        found[verify(path)["step"]] = values["state"]["counters"]["attempt"]
    return found


def test_killed_at_every_moment_of_a_save(forks: Forks, tmp_path: Path) -> None:
    """Before, half-way and after every system call that a save makes, one process each."""
    for step in (1, 2):
        Run().save(tmp_path / "template", step, counters={"attempt": 1})
    # In this order: as before; step 2 is replaced; step 3 is there; step 1 is removed.
    stages = [{1: 1, 2: 1}, {1: 1, 2: 2}, {1: 1, 2: 2, 3: 2}, {2: 2, 3: 2}]
    seen, exit_code = [], -signal.SIGKILL
    while exit_code == -signal.SIGKILL:
        folder = tmp_path / f"run-{len(seen)}"
        shutil.copytree(tmp_path / "template", folder)
        forks.start("save_and_die", str(folder), len(seen))
        exit_code = forks.join()
        with open_run(folder, resume=True) as opened:
            found = attempts(folder)
            assert opened.checkpoint == folder / "checkpoints" / f"step-{max(found):08d}"
        seen.append(stages.index(found))
    assert exit_code == 0
    assert seen == sorted(seen), "a later moment has less"
    assert set(seen) == set(range(len(stages)))
    assert len(seen) > 60


def kill_at_random(
    forks: Forks, folder: Path, kills: int, draw: random.Random, settings: dict[str, Any]
) -> dict[str, int]:
    """Kill the run in ``folder/part`` so often, each time after a random while from when it has started to work.

    Returns:
        How often it was killed, and in a write; and how often it came to its end before.
    """
    counted = {"killed": 0, "finished": 0, "in a write": 0}
    metrics, root, last = folder / "part" / "metrics.jsonl", folder / "part" / "checkpoints", 0
    while counted["killed"] < kills and not counted["finished"]:
        before = metrics.stat().st_mtime_ns if metrics.exists() else 0
        process, until = forks.start("train_on", str(folder), settings), time.monotonic() + 60
        while time.monotonic() < until and not (metrics.exists() and metrics.stat().st_mtime_ns > before):
            time.sleep(0.001)
        time.sleep(draw.random() * 0.12)
        os.kill(process, signal.SIGKILL)
        code = forks.join()
        assert code in (0, -signal.SIGKILL)
        counted["finished" if code == 0 else "killed"] += 1
        if root.is_dir():
            counted["in a write"] += any(each.name.startswith(".step-") for each in root.iterdir())
            if any(each.name.startswith("step-") for each in root.iterdir()):
                step = verify(find_checkpoint(folder / "part"))["step"]
                assert step >= last, "steps were lost"
                last = step
    return counted


@pytest.mark.parametrize("scheme", ["packed-greedy", "bucketed"])
def test_killed_at_random_moments(forks: Forks, tmp_path: Path, scheme: str) -> None:
    settings = {
        "training": {"save_steps": 1, "eval_steps": 10, "num_train_epochs": 2},
        "packing": {"scheme": scheme, "workers": 1},
    }
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    counted = kill_at_random(forks, tmp_path, 4, random.Random(1), settings)
    assert counted["killed"] + counted["finished"] > 0
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert rest.steps == whole.steps
    assert same_weights(rest.model, whole.model)
    assert rest.validation == whole.validation
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")
