"""The CUDA side of the tool chain: the command line everywhere, a real compilation where nvcc is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from native_workshop import Workshop

from mamba_lab.ops import build, toolchain
from mamba_lab.ops.build import NativeUnavailable, build_library, load_library

PLAIN_CU = 'extern "C" int answer() { return 42; }\n__global__ void kernel(float* x) { *x = 1; }\n'


@pytest.fixture
def fake_nvcc(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA_HOME whose nvcc says its version and compiles nothing."""
    home = workshop.folder / "cuda"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "nvcc"
    program.write_text("#!/bin/sh\necho 'nvcc: NVIDIA (R) Cuda compiler driver'\necho 'tools, release 13.0, V13.0.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0;8.6+PTX")
    return program


def test_the_command_line(fake_nvcc: Path, workshop: Workshop) -> None:
    compiler = toolchain.find_nvcc()
    assert compiler.command == (str(fake_nvcc),)
    assert compiler.label == "nvcc: tools, release 13.0, V13.0.1"
    source = workshop.csrc / "cuda" / "kernel.cu"
    words = build.compile_command(compiler, source, Path("out.so"), "cuda")
    assert words[0] == str(fake_nvcc)
    for word in (
        *("-DUSE_CUDA", "-DTORCH_STABLE_ONLY", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-shared"),
        *("-Xcompiler=-fPIC", "-gencode=arch=compute_86,code=sm_86", "-gencode=arch=compute_90,code=sm_90"),
        *(f"-I{toolchain.torch_folder() / 'include'}", str(source), "-ltorch_cpu"),
    ):
        assert word in words
    assert "-march=native" not in words
    assert not [word for word in words if "torch_python" in word]


@pytest.mark.usefixtures("workshop")
def test_no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(NativeUnavailable, match=r"no nvcc in CUDA_HOME(.|\n)*Remedy: install the CUDA toolkit"):
        toolchain.find_nvcc()


def test_cuda_code_is_not_loaded_into_a_torch_without_cuda(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.csrc / "cuda" / "kernel.cu").write_text(PLAIN_CU)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(NativeUnavailable, match=r"build without CUDA(.|\n)*Remedy: "):
        load_library("kernel", "cuda")


def test_a_cuda_source_compiles_or_the_error_says_what_is_missing(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workshop.csrc / "cuda" / "kernel.cu").write_text(PLAIN_CU)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    has_nvcc = shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()
    if has_nvcc:
        built = build_library("kernel", "cuda")
        assert built.compiled
        assert built.path.parent == workshop.private / "native" / "cuda"
        assert not build_library("kernel", "cuda").compiled
    else:
        with pytest.raises(NativeUnavailable, match="no nvcc"):
            build_library("kernel", "cuda")
