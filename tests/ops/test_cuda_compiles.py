"""Every CUDA source compiles for the GPUs that it is meant for, without one, and its fast kernels stay in registers."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from mamba_lab.ops import build, toolchain
from mamba_lab.paths import csrc_dir

ARCHITECTURES = ("80", "90")
PASSES = sorted(path for path in (csrc_dir() / "cuda").glob("*_*ward.cu"))
# One thread a channel, any width: the convolution's slow path. A scan's kernels for any size say so in their names.
SLOW = re.compile(r"tilesI\w+?Li1ELi0E|generic|initial_states")


class Kernel(NamedTuple):
    """One line of the compiler's resource report."""

    name: str
    stack: int
    spilled: int
    registers: int


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Kernel]]:
    """Of each pass, for each architecture. A source is compiled to a GPU's code only: no host code, no linking."""
    try:
        nvcc = toolchain.find_nvcc()
    except toolchain.NativeUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("cubins")
    flags = [flag for flag in nvcc.flags if not flag.startswith(("-gencode", "-shared", "-Xcompiler", "--threads"))]

    def compiled(source: Path, architecture: str) -> list[Kernel]:
        output = folder / f"{source.stem}-{architecture}.cubin"
        target = [f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-cubin", "-Xptxas=-v"]
        command = [*nvcc.command, *flags, *target, f"-I{csrc_dir()}", str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return read_report(done.stderr)

    jobs = [(source, architecture) for source in PASSES for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda job: compiled(*job), jobs)
        return {
            (source.name, architecture): kernels for (source, architecture), kernels in zip(jobs, found, strict=True)
        }


REPORT = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


def read_report(text: str) -> list[Kernel]:
    return [
        Kernel(name, int(stack), int(stores) + int(loads), int(registers))
        for name, stack, stores, loads, registers in REPORT.findall(text)
    ]


def test_there_is_a_forward_and_a_backward_pass_of_each_operator() -> None:
    operators = ("conv1d_pack", "ssm_pack")
    assert [path.name for path in PASSES] == [
        f"{name}_{way}.cu" for name in operators for way in ("backward", "forward")
    ]
    assert set(operators) <= set(build.sources("cuda"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", [path.name for path in PASSES])
def test_fast_kernels_stay_in_registers(
    source: str, architecture: str, reports: dict[tuple[str, str], list[Kernel]]
) -> None:
    """No spills and no stack frame: either would be traffic that the file's cost does not count."""
    fast = [kernel for kernel in reports[source, architecture] if not SLOW.search(kernel.name)]
    assert fast
    for kernel in fast:
        assert kernel.stack == kernel.spilled == 0, kernel


def test_a_kernel_that_spills_is_seen() -> None:
    """The report of one that does, as ptxas words it."""
    text = (
        "ptxas info    : Compiling entry function '_Z4fastPf' for 'sm_90'\n"
        "ptxas info    : Function properties for _Z4fastPf\n"
        "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 96 registers, used 0 barriers, 16 bytes cumulative stack size\n"
        "ptxas info    : Compiling entry function '_Z4slowPf' for 'sm_90'\n"
        "ptxas info    : Function properties for _Z4slowPf\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n"
    )
    assert read_report(text) == [Kernel("_Z4fastPf", 16, 32, 96), Kernel("_Z4slowPf", 0, 0, 8)]
