"""The ladder's record: every rung is compared before it is timed. Its kernels need a GPU, so here stand-ins run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mamba_lab import cli
from mamba_lab.bench import ladder
from mamba_lab.bench.operator_cases import ours


def stand_in(wrong: int = 0) -> Any:
    def scan_ladder(*, boundaries: Any, version: int, tile: int, **inputs: Tensor) -> Tensor:
        lengths = boundaries.cu_seqlens.diff().tolist()
        return ours("ssm_pack", lengths)(inputs) * (1.1 if version == wrong else 1.0)

    return scan_ladder


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "CHANNELS", 8)
    monkeypatch.setattr(ladder, "TOKENS", (60, 90))
    monkeypatch.setattr(ladder, "scan_ladder", stand_in())
    monkeypatch.setattr(ladder, "ours", lambda operator, lengths, device, backend: ours(operator, lengths))


def test_every_rung_is_there_at_every_size() -> None:
    payload = ladder.measure("cpu", repeats=2)
    rungs = [(part["rung"], part["tile"]) for part in payload["timed"] if part["tokens"] == 60]
    tiled = [(f"version {v}", tile) for v in (2, 3) for tile in (4, 8, 16, 32)]
    assert rungs == [("version 1", None), *tiled, ("triton", None), ("cuda", None)]
    assert all(len(part["seconds"]) == 2 and part["off"] < 1e-2 for part in payload["timed"])
    lines = ladder.table(payload).splitlines()
    assert len(lines) == 1 + len(rungs)
    assert lines[0].split("  ")[0] == "rung"


def test_a_rung_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "scan_ladder", stand_in(wrong=3))
    with pytest.raises(RuntimeError, match=r"version 3: y is off by 1.0e-01; times of different things"):
        ladder.measure("cpu", repeats=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU is told")
def test_without_a_gpu_it_says_where_the_times_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "ladder"]) == 1
    assert "bench ladder needs a GPU" in capsys.readouterr().err
