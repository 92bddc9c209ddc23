"""`backends()` says what is true of this machine, and how to add what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from native_workshop import BROKEN, Workshop

from mamba_lab.ops import BackendStatus, backends, build


def by_name() -> dict[str, BackendStatus]:
    return {state.name: state for state in backends()}


def test_names_and_order() -> None:
    assert [state.name for state in backends()] == ["reference", "cpu", "triton", "cuda"]


def test_every_missing_backend_has_a_reason_and_a_remedy() -> None:
    for state in backends():
        assert state.why
        assert state.available or state.remedy, state


def test_cpu_is_available_when_its_libraries_load(workshop: Workshop) -> None:
    state = by_name()["cpu"]
    assert state == BackendStatus("cpu", True, "1 library ready: plain")
    workshop.write("other", 'extern "C" int other() { return 1; }\n')
    assert by_name()["cpu"].why == "2 libraries ready: other, plain"
    assert workshop.compilations == 2


def test_cpu_is_not_available_when_one_does_not_build(workshop: Workshop) -> None:
    workshop.write("broken", BROKEN)
    state = by_name()["cpu"]
    assert not state.available
    assert "fortytwo" in state.why
    assert "compiler" in state.remedy


@pytest.mark.usefixtures("no_compiler")
def test_cpu_without_a_compiler() -> None:
    state = by_name()["cpu"]
    assert not state.available
    assert "no C++ compiler" in state.why
    assert "apt-get install g++" in state.remedy


def test_no_sources_yet_is_said(workshop: Workshop) -> None:
    (workshop.csrc / "cpu" / "plain.cpp").unlink()
    assert by_name()["cpu"].why.endswith("no kernels yet")


def test_gpu_backends_without_a_gpu(monkeypatch: pytest.MonkeyPatch, workshop: Workshop) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    found = by_name()
    assert not found["triton"].available
    assert not found["cuda"].available
    assert "without CUDA" in found["cuda"].why
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "sees no GPU" in by_name()["cuda"].why
    assert "driver" in by_name()["cuda"].remedy


def test_cuda_with_a_gpu_and_no_nvcc(monkeypatch: pytest.MonkeyPatch, workshop: Workshop, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    state = by_name()["cuda"]
    assert not state.available
    assert "no nvcc" in state.why
    assert "CUDA toolkit" in state.remedy
    assert build.sources("cuda") == []
