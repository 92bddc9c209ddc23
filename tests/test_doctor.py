"""The doctor: every finding has a state and a remedy, exit codes follow, nothing gives a folder away."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from mamba_lab import doctor, machine
from mamba_lab.doctor import Report, Row, checks
from mamba_lab.machine import Gpu
from mamba_lab.ops.backends import BackendStatus, backends
from mamba_lab.ops.toolchain import NativeUnavailable

PYPROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text()
H200 = Gpu("NVIDIA H200", "580.1", 143_771, 4)


def test_the_bounds_are_those_of_the_package() -> None:
    python = f">={'.'.join(map(str, checks.PYTHON_FROM))},<{'.'.join(map(str, checks.PYTHON_BELOW))}"
    assert f'requires-python = "{python}"' in PYPROJECT
    torch_bounds = f"torch>={'.'.join(map(str, checks.TORCH_FROM))},<{'.'.join(map(str, checks.TORCH_BELOW))}"
    assert f'"{torch_bounds}"' in PYPROJECT
    assert torch_bounds in checks.TORCH_REMEDY


def test_the_report_covers_everything_and_this_machine_runs_the_course(capsys: pytest.CaptureFixture[str]) -> None:
    report = doctor.report()
    parts = [row.part for row in report]
    assert parts == [
        *("Python", "PyTorch", "extra train", "extra course", "data", "processor", "GPU", "C++ compiler", "nvcc"),
        *("Triton", "backend reference", "backend cpu", "backend triton", "backend cuda", "cache"),
        *("peer mamba-ssm", "peer causal-conv1d", "peer mambapy", "peer trl", "peer numba", "peer transformers"),
    ]
    assert report.ok, [row for row in report if row.state == "broken"]
    for row in report:
        assert row.found
        assert row.state == "ok" or row.remedy or row.part == "GPU", row
    assert doctor.run() == 0
    assert str(report) == capsys.readouterr().out.rstrip("\n")


def test_nothing_gives_a_folder_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))  # there is none: the finding quotes it
    assert "g++" in str(doctor.report())
    for folder in (tmp_path / "cache", Path("/dev/null/cache")):
        monkeypatch.setenv("MAMBA_LAB_CACHE", str(folder))
        text = str(doctor.report()) + doctor.one_line() + doctor.show()._repr_html_().replace("</", "")
        assert not re.findall(r"(?<![\w.~…/])/[\w.-]+/[\w./-]+", text)
        assert str(Path.home()) not in text or len(str(Path.home())) < 3
        assert sys.prefix not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/usr/bin/g++ failed", "…/g++ failed"),
        ("(/home/ada/.cache/x: no)", "(…/x: no)"),
        ("https://pytorch.org/get-started/", "https://pytorch.org/get-started/"),
        ("see ~/.cache/mamba_lab and my/", "see ~/.cache/mamba_lab and my/"),
        ("'/a b/c'", "'/a b/c'"),
    ],
)
def test_folders_are_hidden(text: str, shown: str) -> None:
    assert checks._without_folders(text) == shown


def test_a_wrong_python_and_a_wrong_torch_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.sys, "version_info", (3, 14, 0))
    assert checks._python().state == "broken"
    monkeypatch.setattr(checks.sys, "version_info", (3, 9, 0))
    assert checks._python().state == "broken"
    monkeypatch.setattr(checks.sys, "version_info", (3, 13, 9))
    assert checks._python().state == "ok"
    for version, state in (("2.9.1", "broken"), ("2.10.0+cpu", "ok"), ("2.13.1+cu130", "ok"), ("2.14.0", "broken")):
        monkeypatch.setattr(checks, "version_of", lambda _, version=version: version)
        row = checks._torch()
        assert row.state == state, version
        assert row.remedy == ("" if state == "ok" else checks.TORCH_REMEDY)
    monkeypatch.setattr(checks, "version_of", lambda _: None)
    assert checks._torch() == Row("PyTorch", "broken", "not installed", checks.TORCH_REMEDY)


def test_a_torch_that_does_not_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    row = checks._torch()
    assert row.state == "broken"
    assert "does not import" in row.found
    assert [state.available for state in backends()] == [False] * 4
    assert not doctor.report().ok
    assert doctor.run() == 1


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = checks.version_of
    monkeypatch.setattr(checks, "version_of", lambda name: None if name == "jupyterlab" else real(name))
    train, course = checks._packages()
    assert train.state == "ok"
    assert (course.state, course.found) == ("broken", "missing: jupyterlab")
    assert course.remedy.startswith("pip install")
    assert "course" in course.remedy


def test_what_this_python_does_not_ask_for_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        "nowhere-old>=2; (python_version < '3.0') and extra == 'train'",
        "nowhere-new>=2; (python_version >= '3.0') and extra == 'train'",
        "nowhere-else; extra == 'course'",
    ]
    monkeypatch.setattr(checks.metadata, "requires", lambda name: asked)
    train, course = checks._packages()
    assert train.found == "missing: nowhere-new"
    assert course.found == "missing: nowhere-else"


def test_missing_data_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "data_dir", lambda: tmp_path)
    assert checks._data().found == "data/ lacks tokenizer.json and corpus/"
    (tmp_path / "tokenizer.json").touch()
    row = checks._data()
    assert (row.state, row.found) == ("broken", "data/ lacks corpus/")


def test_gpu_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert checks._gpu().found.startswith("none")
    monkeypatch.setattr(machine, "gpus", lambda: [H200])
    monkeypatch.setattr(torch.version, "cuda", None)
    row = checks._gpu()
    assert row.state == "note"
    assert "build without CUDA" in row.found
    assert row.remedy.startswith("pip install --force-reinstall 'torch")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    row = checks._gpu()
    assert "cannot use it" in row.found
    assert row.remedy == "install a driver for CUDA 13.0"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert checks._gpu() == Row("GPU", "ok", "NVIDIA H200, 140 GiB, driver 580.1")


def test_no_compiler_is_a_note_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    row = checks._compiler()
    assert row.state == "note"
    assert "no-such-compiler" in row.found
    assert row.remedy.startswith("unset CXX")
    assert checks._nvcc().state == "note"


def test_a_failed_backend_shows_the_compilers_error_in_one_line() -> None:
    why = "g++ failed with exit code 1:\nIn file included\na.cpp:3:5: error: no\nmore"
    row = checks._backend(BackendStatus("cpu", False, why, "mend it"))
    assert row == Row("backend cpu", "note", "g++ failed with exit code 1: a.cpp:3:5: error: no", "mend it")


def test_an_unwritable_cache_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("MAMBA_LAB_CACHE", raising=False)
    row = checks._cache()
    assert row.state == "note"
    assert "cannot be made" in row.found
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(tmp_path / "shared"))
    row = checks._cache()
    assert row.state == "ok"
    assert row.found.startswith("MAMBA_LAB_CACHE (writable, 0 libraries)")
    assert list((tmp_path / "shared").rglob("*.lock")) == []  # looking leaves nothing behind


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "version_of", {"mambapy": "1.2.0"}.get)
    assert checks._peer("mambapy", "x") == Row("peer mambapy", "ok", "1.2.0")
    assert checks._peer("mamba-ssm", "x").state == "note"


def test_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = [BackendStatus(name, name in ("reference", "cpu"), "") for name in ("reference", "cpu", "triton", "cuda")]
    monkeypatch.setattr(checks, "backends", lambda: ready)
    monkeypatch.setattr(checks, "version_of", lambda _: "2.13.0+cpu")
    monkeypatch.setattr(machine, "n_cores", lambda: 2)
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    assert doctor.one_line() == f"{python} · torch 2.13 · CPU, 2 cores · C++ kernels ready"
    ready[1] = BackendStatus("cpu", False, "")
    assert doctor.one_line().endswith("no C++ kernels, Python instead (run: mamba-lab doctor)")
    ready[3] = BackendStatus("cuda", True, "")
    monkeypatch.setattr(machine, "gpus", lambda: [H200])
    assert "· NVIDIA H200 ·" in doctor.one_line()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["machine"][0]["part"] == "Python"
    assert set(found["machine"][0]) == {"part", "state", "found", "remedy"}


def test_a_report_reads_in_a_terminal_and_escapes_in_html(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    report = Report("title", [Row("one", "ok", "word " * 40), Row("second", "broken", "<b>", "do & mend")], "verdict")
    text = str(report)
    assert max(map(len, text.splitlines())) <= 60
    assert "→ do & mend" in text
    assert text.endswith("verdict")
    page = report._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "do &amp; mend" in page
    assert not report.ok
    assert len(report) == 2
    assert report[1].part == "second"


def test_native_unavailable_reaches_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    from mamba_lab.ops import build

    def fails(*_: object) -> Path:
        raise NativeUnavailable("x", "the reason", "the remedy")

    monkeypatch.setattr(build, "load_library", fails)
    cpu = backends()[1]
    assert (cpu.name, cpu.available, cpu.why, cpu.remedy) == ("cpu", False, "the reason", "the remedy")
