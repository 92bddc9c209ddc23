"""The machine in words and numbers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mamba_lab import machine


def test_this_machine() -> None:
    assert machine.cpu_model()
    assert "\n" not in machine.cpu_model()
    assert 1 <= machine.n_cores() <= (os.cpu_count() or 1)
    found = machine.memory_mib()
    assert found is not None
    assert 0 < found[1] <= found[0]


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    free = machine.disk_free_mib(tmp_path / "a" / "b")
    assert free is not None
    assert free > 0


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("NVIDIA H200, 580.159.04, 143771, 621\n", [machine.Gpu("NVIDIA H200", "580.159.04", 143_771, 621)]),
        (
            "NVIDIA A, 1, 10, 2\nNVIDIA B, 1, 20, 3\n",
            [machine.Gpu("NVIDIA A", "1", 10, 2), machine.Gpu("NVIDIA B", "1", 20, 3)],
        ),
        ("No devices were found\n", []),
        ("NVIDIA C, 1, [N/A], 3\n", []),
    ],
)
def test_gpus_are_read_from_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, expected: list[machine.Gpu]
) -> None:
    (tmp_path / "answer").write_text(output)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nwhile read -r line; do echo \"$line\"; done < '{tmp_path / 'answer'}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert machine.gpus() == expected


def test_no_driver_and_a_driver_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A, 1, 10, 2'\nexit 9\n")
    program.chmod(0o755)
    assert machine.gpus() == []
