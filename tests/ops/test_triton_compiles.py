"""Every Triton kernel compiles for the GPUs that it is meant for, without one: what the launches ask for, as they ask.

A launch is recorded instead of made, and its arguments' types and sizes are handed to the compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import made

from mamba_lab.batching import Boundaries

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter is on, which compiles nothing"
)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int32: "*i32"}
SHARED_BYTES = 100 * 1024
"""A block's shared memory on the smaller of the two GPUs compiled for, of compute capability 8.0 and 9.0."""
SPILLED = 1000
"""Bytes a thread that may live in local memory: what the fastest tiles need today."""
Launch = tuple[Any, dict[str, Any], dict[str, Any]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    found: list[Launch] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        values = dict(zip(self.arg_names, args, strict=False)) | kwargs
        options = {key: values.pop(key) for key in list(values) if key not in self.arg_names}
        found.append((self, values, options))

    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", record)
    return found


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


def call(name: str, D: int, size: int, dtype: torch.dtype, without: tuple[str, ...] = ()) -> None:
    """One forward and one backward call, whose launches are recorded."""
    from mamba_lab.ops import triton as kernels

    lengths = (5, 0, 9)
    inputs, dy, dfinal = made(name, lengths, D, size, dtype, without=without)
    order = {"conv1d_pack": ("x", "weight", "bias"), "ssm_pack": ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")}
    boundaries = Boundaries.from_lengths(lengths)
    given = [*(inputs.get(key) for key in order[name]), True, boundaries.cu_seqlens, boundaries._schedule]
    given.append(inputs.get("initial_state"))
    some = not without
    _, _, *checkpoints = getattr(kernels, name)(*given, some)
    getattr(kernels, f"{name}_backward")(dy, dfinal if some else None, *given, *checkpoints)


def compiled(launch: Launch, target: int) -> Any:
    kernel, values, options = launch
    constants = {
        key: value
        for key, value in values.items()
        if value is None or kernel.params[kernel.arg_names.index(key)].is_constexpr
    }
    signature = {
        key: "constexpr" if key in constants else TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        for key, value in values.items()
    }
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    gpu = triton.backends.compiler.GPUTarget("cuda", target, 32)
    return triton.compile(source, target=gpu, options=options)


def spilled_bytes(binary: Any, folder: Path) -> int | None:
    """Bytes of local memory a thread, as the tool beside Triton's assembler counts them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    said = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", said)
    return int(found[1]) if found else None


def check(launches: list[Launch], folder: Path, target: int = 90) -> None:
    assert launches
    for launch in launches:
        binary = compiled(launch, target)
        name = f"{launch[0].__name__} for sm_{target}"
        assert binary.metadata.shared <= SHARED_BYTES, name
        assert "atom" not in binary.asm["ptx"].replace("atomicity", ""), f"{name} uses atomics"
        stack = spilled_bytes(binary, folder)
        assert stack is None or stack <= SPILLED, f"{name} keeps {stack} bytes a thread in local memory"


@pytest.mark.parametrize("name", ["conv1d_pack", "ssm_pack"])
@pytest.mark.parametrize(("dtype", "target"), [(torch.bfloat16, 80), (torch.float64, 90)], ids=str)
def test_a_models_sizes(name: str, dtype: torch.dtype, target: int, launches: list[Launch], tmp_path: Path) -> None:
    """Float32 has the code of bfloat16, but for the loads and stores."""
    call(name, 1536, {"conv1d_pack": 4, "ssm_pack": 16}[name], dtype)
    check(launches, tmp_path, target)


@pytest.mark.parametrize("N", [1, 100])
def test_other_numbers_of_states(N: int, launches: list[Launch], tmp_path: Path) -> None:
    call("ssm_pack", 40, N, torch.bfloat16, without=("D", "z", "delta_bias", "initial_state"))
    check(launches, tmp_path)


@pytest.mark.parametrize("W", [1, 9])
def test_other_widths(W: int, launches: list[Launch], tmp_path: Path) -> None:
    call("conv1d_pack", 40, W, torch.bfloat16, without=("bias", "initial_state"))
    check(launches, tmp_path)


def test_nothing_is_known_of_numbers_and_addresses(launches: list[Launch]) -> None:
    """Other code for other lengths or addresses could add in another order: bits would depend on the pack."""
    for name in ("conv1d_pack", "ssm_pack"):
        call(name, 16, 3, torch.float32)
    for kernel, values, options in launches:
        assert options["enable_fp_fusion"] is False, kernel.__name__
        for parameter in kernel.params:
            if not parameter.is_constexpr and values[parameter.name] is not None:
                assert parameter.do_not_specialize, f"{kernel.__name__}: {parameter.name}"
                assert parameter.do_not_specialize_on_alignment, f"{kernel.__name__}: {parameter.name}"


def test_tiles_fit_any_size() -> None:
    from mamba_lab.ops.triton import tiles

    sizes: list[Callable[..., tiles.ScanTiles]] = [tiles.scan_forward_tiles, tiles.scan_backward_tiles]
    for choose in sizes:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for N in range(257):
                tile = choose(N, dtype)
                assert tile.states >= N
                assert all(value > 0 and value & (value - 1) == 0 for value in tile[:-1])
                assert tile.registers <= 255
                assert 16 % tile.tokens == 0
                # Otherwise tokens of a tile lie in different threads: right, but slow.
                assert tile.lanes * tile.states >= 32 * tile.warps or N < 1


def test_importing_the_operators_imports_no_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, mamba_lab.ops; print('mamba_lab.ops.triton' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
