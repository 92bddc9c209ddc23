"""An error ends a run, not what it has reached: the last finished step is in a checkpoint, and the run goes on."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_help import assert_same_run, config, documents, lines, names_in, run, same_weights

from mamba_lab.training import loop, session
from mamba_lab.training.loop import train
from mamba_lab.training.metrics import StepMetrics
from mamba_lab.training.rescue import is_out_of_memory

OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
# What an operator in C++ says, of whatever call failed.
CALL = 'torch_call_dispatcher( "aten::{}", "", stack.data(), 0ULL + 2) API call failed at stable/ops.h, line 939'
PLACES = {
    "backward": (loop, "backward"),
    "validation": (session, "evaluate"),
    "gradient report": (loop, "gradient_report"),
}
SETTINGS: dict[str, Any] = {"training": {"eval_steps": 2}, "logging": {"gradient_report_steps": 1}}


def break_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, error: BaseException = OUT
) -> Callable[[], None]:
    """The n-th call of ``owner.name`` ends with ``error``."""
    real, calls = getattr(owner, name), [0]

    def breaks(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, breaks)
    return monkeypatch.undo


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [OUT, MemoryError(), RuntimeError("CUDA error: misaligned address"), KeyError("x")])
def test_the_last_finished_step_is_saved_and_the_run_goes_on_to_the_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    error: BaseException,
) -> None:
    whole = run(config(tmp_path, tmp_path / "whole", **SETTINGS))
    # The fifth validation follows step 10, the fifth gradient comes after step 4.
    step = 10 if place == "validation" else 4
    mended = break_at(monkeypatch, *PLACES[place], 5, error)
    with pytest.raises(type(error)):
        run(config(tmp_path, tmp_path / "part", **SETTINGS))
    mended()
    assert names_in(tmp_path / "part") == [f"step-{step:08}"]
    name = "out of memory" if isinstance(error, torch.OutOfMemoryError | MemoryError) else type(error).__name__
    said = f"{name} after step {step}, which is saved. --resume (in Python resume=True) goes on from"
    assert said in caplog.text
    rest = run(config(tmp_path, tmp_path / "part", **SETTINGS), resume=True)
    assert_same_run(tmp_path, whole, rest)


def test_a_callback_that_raises(tmp_path: Path) -> None:
    def on_step(step: StepMetrics) -> None:
        if step.step == 3:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        train(config(tmp_path, tmp_path / "part"), documents=documents(), on_step=on_step)
    assert names_in(tmp_path / "part") == ["step-00000003"]


@pytest.mark.parametrize("resumed", [False, True])
def test_half_an_update_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, resumed: bool
) -> None:
    settings = {"training": {"save_steps": 2}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    if resumed:
        run(config(tmp_path, tmp_path / "part", **settings), stop_at=2)
    mended = break_at(monkeypatch, torch.optim.AdamW, "step", 2 if resumed else 4)
    with pytest.raises(torch.OutOfMemoryError):
        run(config(tmp_path, tmp_path / "part", **settings), resume=resumed)
    mended()
    assert names_in(tmp_path / "part") == ["step-00000002"]
    assert "out of memory after step 3, in the middle of an update: the weights are of no step" in caplog.text
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert same_weights(rest.model, whole.model)
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")


def test_after_a_step_that_was_skipped_the_weights_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its update did nothing: an error before the place moves on leaves the weights of the step before."""
    monkeypatch.setattr(session, "update", lambda *_: False)
    break_at(monkeypatch, loop.BatchCounts, "of", 3)
    with pytest.raises(torch.OutOfMemoryError):
        run(config(tmp_path, tmp_path / "part"))
    assert names_in(tmp_path / "part") == ["step-00000002"]


@pytest.mark.parametrize("first", [True, False])
def test_where_nothing_can_be_kept_the_error_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    """Before the first step there is nothing to keep, and without a folder no place."""
    break_at(monkeypatch, loop, "backward", 1 if first else 3)
    caplog.set_level(logging.ERROR)
    with pytest.raises(torch.OutOfMemoryError):
        run(config(tmp_path, tmp_path / "part" if first else None))
    assert not caplog.messages
    assert not first or names_in(tmp_path / "part") == []


def test_a_save_that_fails_too_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_at(monkeypatch, loop, "backward", 4)

    def no_answer(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(session, "save_checkpoint", no_answer)
    with pytest.raises(torch.OutOfMemoryError):
        run(config(tmp_path, tmp_path / "part"))
    assert (
        "out of memory after step 3, and that step cannot be saved: CUDA error: an illegal memory access was "
        "encountered --resume" in caplog.text
    )


def test_a_second_ctrl_c_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_at(monkeypatch, loop, "backward", 4, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(config(tmp_path, tmp_path / "part"))
    assert names_in(tmp_path / "part") == []


def test_there_is_room_when_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, and what the failed step held, are gone before a byte is written."""
    real_backward, real_save, held, calls, seen = loop.backward, session.save_checkpoint, [], [0], []

    def backward(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        found = real_backward(model, *args, **kwargs)
        if calls[0] == 3:
            activations = torch.zeros(1000)
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    def save(*args: Any, **kwargs: Any) -> Any:
        gc.collect()
        seen.append(held[0]() is None and all(p.grad is None for p in kwargs["model"].parameters()))
        return real_save(*args, **kwargs)

    monkeypatch.setattr(loop, "backward", backward)
    monkeypatch.setattr(session, "save_checkpoint", save)
    with pytest.raises(torch.OutOfMemoryError):
        run(config(tmp_path, tmp_path / "part"))
    assert seen == [True]


def test_what_is_out_of_memory() -> None:
    hidden = RuntimeError("the documents raised MemoryError")
    hidden.__cause__ = MemoryError()
    assert all(map(is_out_of_memory, (OUT, MemoryError(), hidden)))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError(CALL.format("new_empty")))
    assert not is_out_of_memory(RuntimeError(CALL.format("narrow")))
    assert not any(map(is_out_of_memory, (None, RuntimeError("CUDA error"), ValueError("memory"))))


def test_an_operator_in_cpp_without_room() -> None:
    """What it raises when an allocation fails is what is taken for that, in this version of PyTorch."""
    code = (
        "import resource, torch\n"
        "from mamba_lab.ops import conv1d_pack\n"
        "from mamba_lab.training.rescue import is_out_of_memory\n"
        "weight = torch.ones(4096, 4)\n"
        "conv1d_pack(torch.ones(2, 4096), weight, backend='cpu')\n"
        "x = torch.ones(1, 4096).expand(65536, 4096)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "try:\n    conv1d_pack(x, weight, backend='cpu')\n"
        "except RuntimeError as error:\n    print(is_out_of_memory(error), error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("True "), done.stdout + done.stderr
