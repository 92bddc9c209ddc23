"""`backends()` says what is true of this machine, and how to add what is missing."""

from __future__ import annotations

import logging
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from native_workshop import BROKEN, Workshop

from mamba_lab.log import log_once
from mamba_lab.ops import BackendStatus, NativeUnavailable, _resolve, _triton_ops, backends, build


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
    monkeypatch.setattr(_triton_ops, "_ready", False)
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


def no_nvcc(name: str, device: str) -> None:
    if device == "cuda":
        raise NativeUnavailable(f"the CUDA library {name!r}", "no nvcc", "install the CUDA toolkit")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU that only says its name and age, and a Triton that starts on it."""
    gpu = SimpleNamespace(capability=(9, 0), start=lambda: 0, load=no_nvcc)
    driver = SimpleNamespace(driver=SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: gpu.start())))
    monkeypatch.setattr(_triton_ops, "_ready", False)
    monkeypatch.setattr(_triton_ops, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: gpu.capability)
    monkeypatch.setattr(_triton_ops.importlib, "import_module", {"triton.runtime": driver}.__getitem__)
    monkeypatch.setattr(_triton_ops.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(metadata, "version", lambda name: "3.7.1")
    monkeypatch.setattr(_resolve, "_no_cuda", {})
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setattr(build, "load_library", lambda name, device="cpu": gpu.load(name, device))
    log_once.cache_clear()
    return gpu


def test_triton_on_a_gpu(a_gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    """auto takes it for tensors on the GPU, says so once, and never takes it for tensors on the CPU."""
    expected = BackendStatus("triton", True, "Triton 3.7.1 on NVIDIA H200", operators=("conv1d_pack", "ssm_pack"))
    assert by_name()["triton"] == expected
    with caplog.at_level(logging.INFO, "mamba_lab"):
        assert [_resolve.resolve("ssm_pack", "auto", "cuda") for _ in range(2)] == ["triton", "triton"]
    why = "the CUDA library 'ssm_pack' is not available: no nvcc\nRemedy: install the CUDA toolkit"
    assert caplog.messages == [f"ssm_pack on the GPU runs in Triton (backend 'triton'). {why}"]
    assert _resolve.resolve("ssm_pack", "auto", "cpu") != "triton"
    with pytest.raises(ValueError, match="backend 'triton' works on cuda tensors, these are on cpu"):
        _resolve.resolve("ssm_pack", "triton", "cpu")


def refused(caplog: pytest.LogCaptureFixture) -> BackendStatus:
    """What is said of a Triton that cannot run: by ``backends``, by a call that asks for it, by auto."""
    state = by_name()["triton"]
    assert not state.available
    assert not state.operators
    with pytest.raises(NativeUnavailable, match="ssm_pack on backend 'triton' is not available"):
        _resolve.resolve("ssm_pack", "triton", "cuda")
    log_once.cache_clear()
    caplog.clear()
    assert _resolve.resolve("ssm_pack", "auto", "cuda") == "reference"
    assert "ssm_pack on the GPU runs on the slow reference" in caplog.text
    assert f"Remedy: {state.remedy}" in caplog.text
    return state


def test_triton_that_is_not_installed(
    a_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_triton_ops.importlib.util, "find_spec", lambda name: None)
    state = refused(caplog)
    assert (state.why, state.remedy) == ("Triton is not installed", "pip install torch (its CUDA build brings Triton)")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "needs an NVIDIA GPU" in refused(caplog).remedy


def test_triton_without_a_gpu(
    a_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    state = refused(caplog)
    assert state.why == "Triton 3.7.1: there is no GPU"
    assert "needs an NVIDIA GPU" in state.remedy


def test_triton_that_does_not_start(a_gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    """It compiles a little C at first: without a compiler or Python's headers it fails only then."""

    def fails() -> int:
        raise RuntimeError("while compiling\nFailed to find C compiler.")

    a_gpu.start = fails
    state = refused(caplog)
    assert state.why == "Triton 3.7.1: Triton does not start: Failed to find C compiler."
    assert "apt-get install gcc python3-dev" in state.remedy


def test_a_gpu_that_is_too_old(a_gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    a_gpu.capability = (7, 5)
    assert refused(caplog).why == "Triton 3.7.1: NVIDIA H200 has compute capability 7.5, not 8.0"


def test_cuda_on_a_gpu(a_gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    """auto prefers it to Triton and says so once; a call that it cannot do exactly goes to Triton, and that is said."""
    a_gpu.load = lambda name, device: Path(name)
    with caplog.at_level(logging.INFO, "mamba_lab"):
        assert [_resolve.resolve("ssm_pack", "auto", "cuda") for _ in range(2)] == ["cuda", "cuda"]
        assert [_resolve.resolve("ssm_pack", "auto", "cuda", "float64") for _ in range(2)] == ["triton", "triton"]
    assert caplog.messages == [
        "ssm_pack on the GPU runs in CUDA C++ (backend 'cuda').",
        "ssm_pack on the GPU runs in Triton (backend 'triton'). Backend 'cuda' does not do float64.",
    ]
    assert _resolve.resolve("ssm_pack", "cuda", "cuda") == "cuda"
    with pytest.raises(
        ValueError, match=r"ssm_pack: backend 'cuda' does not do float64\. Use backend='auto' or 'triton'"
    ):
        _resolve.resolve("ssm_pack", "cuda", "cuda", "float64")
    with pytest.raises(ValueError, match="backend 'cuda' works on cuda tensors, these are on cpu"):
        _resolve.resolve("ssm_pack", "cuda", "cpu")


def test_a_search_for_the_cuda_kernels_is_not_repeated(a_gpu: SimpleNamespace) -> None:
    searches: list[str] = []

    def search(name: str, device: str) -> None:
        searches.append(name)
        no_nvcc(name, device)

    a_gpu.load = search
    for _ in range(3):
        assert _resolve.resolve("ssm_pack", "auto", "cuda") == "triton"
    assert searches == ["ssm_pack"]
    with pytest.raises(NativeUnavailable, match="no nvcc"):  # who asks by name may have installed it meanwhile
        _resolve.resolve("ssm_pack", "cuda", "cuda")


@pytest.mark.parametrize(
    ("operator", "dtype", "size", "expected"),
    [
        ("ssm_pack", torch.float32, 256, ""),
        ("ssm_pack", torch.bfloat16, 257, "more than 256 states"),
        ("ssm_pack", torch.float64, 1, "float64"),
        ("conv1d_pack", torch.bfloat16, 8, ""),
        ("conv1d_pack", torch.float32, 9, "more than 8 taps"),
    ],
)
def test_what_the_cuda_kernels_lack(operator: str, dtype: torch.dtype, size: int, expected: str) -> None:
    assert _resolve.lacks(operator, dtype, size) == expected
