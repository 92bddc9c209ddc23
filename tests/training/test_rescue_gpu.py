"""On a GPU without a free byte: the last finished step is saved all the same, and the run goes on from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_help import config, documents, lines, names_in, run, same_weights

from mamba_lab.training.loop import train
from mamba_lab.training.metrics import StepMetrics

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

GIB = 2**30


@pytest.fixture
def small_gpu() -> Iterator[None]:
    """A GPU of 1 GiB, whatever is there."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(GIB / torch.cuda.get_device_properties(0).total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def fill() -> list[torch.Tensor]:
    """All that is left, down to blocks of 512 bytes, the smallest there are."""
    held, size = [], GIB
    while size >= 512:
        with contextlib.suppress(torch.OutOfMemoryError):
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            continue
        size //= 2
    return held


@pytest.mark.usefixtures("small_gpu")
@pytest.mark.parametrize("tied", [True, False])
def test_a_full_gpu(tmp_path: Path, caplog: pytest.LogCaptureFixture, tied: bool) -> None:
    settings: dict[str, Any] = {
        "training": {"device": "cuda", "deterministic": True},
        "model": {"d_model": 8, "n_layer": 1, "d_state": 4, "tie_embeddings": tied},
    }
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    held: list[torch.Tensor] = []

    def on_step(step: StepMetrics) -> None:
        if step.step == 4:
            torch.cuda.synchronize()
            held.extend(fill())

    with pytest.raises(torch.OutOfMemoryError):
        train(config(tmp_path, tmp_path / "part", **settings), documents=documents(), on_step=on_step)
    assert names_in(tmp_path / "part") == ["step-00000004"]
    assert "out of memory after step 4, which is saved." in caplog.text
    held.clear()
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert same_weights(rest.model, whole.model)
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")
