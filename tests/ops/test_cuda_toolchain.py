"""The CUDA side of the tool chain: the command line everywhere, a real compilation where nvcc is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from native_workshop import Workshop

from mamba_lab.ops import build, compiling, toolchain
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
    words = compiling.compile_command(compiler, source, Path("out.so"), "cuda")
    assert words[0] == str(fake_nvcc)
    for word in (
        *("-DUSE_CUDA", "-DTORCH_STABLE_ONLY", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-shared"),
        *("-Xcompiler=-fPIC", "-gencode=arch=compute_86,code=sm_86", "-gencode=arch=compute_90,code=sm_90"),
        *(f"-I{toolchain.torch_folder() / 'include'}", str(source), "-ltorch_cpu"),
    ):
        assert word in words
    assert "-march=native" not in words
    assert not [word for word in words if "torch_python" in word]


def test_the_parts_of_a_library_are_compiled_with_it(fake_nvcc: Path, workshop: Workshop) -> None:
    """Each pass is a file of its own. It is no library, and a change of it builds the library again."""
    folder = workshop.csrc / "cuda"
    for name in ("scan", "scan_forward", "scan_backward", "scanner"):
        (folder / f"{name}.cu").write_text(PLAIN_CU)
    assert build.sources("cuda") == ["scan", "scanner"]
    words = compiling.compile_command(toolchain.find_nvcc(), folder / "scan.cu", Path("out.so"), "cuda")
    assert [Path(word).name for word in words if word.endswith(".cu")] == [
        "scan.cu",
        "scan_backward.cu",
        "scan_forward.cu",
    ]
    digests = [build._digest_what_must_match(folder / "scan.cu", "cuda")]
    (folder / "scan_forward.cu").write_text(PLAIN_CU + "// edited\n")
    digests.append(build._digest_what_must_match(folder / "scan.cu", "cuda"))
    (folder / "shared.h").write_text("#pragma once\n")
    digests.append(build._digest_what_must_match(folder / "scan.cu", "cuda"))
    assert len(set(digests)) == 3
    plain = build._digest_what_must_match(workshop.csrc / "cpu" / "plain.cpp", "cpu")
    (folder / "shared.h").write_text("#pragma once\nconst int n = 1;\n")
    assert build._digest_what_must_match(workshop.csrc / "cpu" / "plain.cpp", "cpu") == plain


@pytest.mark.parametrize(
    ("built", "gpus", "fits"),
    [
        (["90"], ["90"], True),
        (["80"], ["86"], True),
        (["86"], ["80"], False),
        (["80"], ["90"], False),
        (["80", "90"], ["80", "90"], True),
        (["90"], ["80", "90"], False),
        (["120"], ["121"], True),
        (["90"], [], True),
    ],
)
def test_code_runs_on_gpus_of_its_generation(
    built: list[str], gpus: list[str], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "gpu_architectures", lambda: gpus)
    assert toolchain.fits_gpus([f"-gencode=arch=compute_{code},code=sm_{code}" for code in built]) is fits


def test_a_gpu_that_is_too_old(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.csrc / "cuda" / "kernel.cu").write_text(PLAIN_CU)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(build, "gpu_architectures", lambda: ["75", "90"])
    with pytest.raises(NativeUnavailable, match=r"compute capability 7\.5, not 8\.0"):
        load_library("kernel", "cuda")


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
