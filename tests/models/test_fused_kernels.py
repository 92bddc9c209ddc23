"""The residual stream and the loss in kernels of their own: the same numbers, and out of the way where they must be."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mamba_lab.models import MambaConfig, MambaLM, residual
from mamba_lab.models.cross_entropy import chunk_tokens
from mamba_lab.models.norm import LayerNorm
from mamba_lab.models.residual import fusable

TESTS = Path(__file__).with_name("interpreted_kernels.py")


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def test_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    if version(metadata.version("triton")) < (3, 7) and version(np.__version__) >= (2, 4):
        pytest.skip("Triton 3.6 does not interpret loops with NumPy 2.4: it takes an array of one number for an index")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(TESTS)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual._triton_ops, "INTERPRETED", True)
    monkeypatch.setattr(residual._triton_ops, "missing", lambda title: None)


def fuses(model: MambaLM, x: torch.Tensor | None = None) -> bool:
    return model.backbone._fused(torch.zeros(3, model.config.d_model) if x is None else x)


def make(**sizes: Any) -> MambaLM:
    return MambaLM(MambaConfig(**{"d_model": 8, "n_layer": 2, "vocab_size": 9, **sizes}), backend="cpu")


def test_on_a_cpu_the_blocks_run_as_they_are() -> None:
    assert not fuses(make())


def test_a_plain_backbone_is_fused(as_on_a_gpu: None) -> None:
    assert fuses(make())


def test_what_stands_in_the_way(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fuses(make(rms_norm=False))
    assert not fuses(make(), torch.zeros(3, 8, dtype=torch.bfloat16))
    assert not fuses(make(), torch.zeros(3, 8, dtype=torch.float64))
    assert not fuses(MambaLM(make().config, backend="reference"))
    checkpointed = make()
    checkpointed.set_gradient_checkpointing()
    assert not fuses(checkpointed)
    for place in ("layers.1", "layers.0.norm", "norm_f"):
        hooked = make()
        hooked.backbone.get_submodule(place).register_forward_hook(lambda *_: None)
        assert not fuses(hooked), place
    other = make()
    other.backbone.norm_f = LayerNorm(8, 1e-5)
    assert not fuses(other)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not fuses(make())


def test_without_triton_nothing_is_fused(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual._triton_ops, "missing", lambda title: RuntimeError("no Triton"))
    assert not fusable(torch.zeros(3, 8), [])


def test_a_chunk_of_the_loss_is_whole_tiles_on_a_gpu() -> None:
    assert chunk_tokens(50_280, "cuda") == 2560
    assert chunk_tokens(10**6, "cuda") == 134
    assert chunk_tokens(10**7, "cuda") == 64


@pytest.mark.parametrize("kernel", ["loss", "norm forward", "norm backward"])
def test_kernels_compile_for_a_gpu_and_move_16_bytes_at_once(kernel: str) -> None:
    triton = pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter is on, which compiles nothing")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mamba_lab.ops.triton import add_norm, cross_entropy

    types = {"logits": "*bf16", "targets": "*i64", "branch": "*bf16", "normed": "*bf16", "dnormed": "*bf16"}
    types |= {"dbranch": "*bf16", "eps": "fp32", "tokens": "i32"}
    # A vocabulary that is odd, as mamba-1.4b's is, in rows that are not.
    function, constants = {
        "loss": (cross_entropy.cross_entropy_row, {"V": 50_277, "WIDTH": 50_280, "GRADIENT": True, "BLOCK": 4096}),
        "norm forward": (add_norm.add_norm_forward, {"D": 2048, "HAS_BRANCH": True, "BLOCK": 2048}),
        "norm backward": (
            add_norm.add_norm_backward,
            {"D": 2048, "HAS_DTOTAL": True, "HAS_BRANCH": True, "ROWS": 16, "BLOCK": 2048},
        ),
    }[kernel]
    signature = {n: "constexpr" if n in constants else types.get(n, "*fp32") for n in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(signature) if signature[n].startswith("*")}
    source = ASTSource(function, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": 8, "enable_fp_fusion": False}
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    wide = [line for line in ptx.splitlines() if ".global" in line and ".v4.b32" in line]
    assert any("ld.global" in line for line in wide)
    assert any("st.global" in line for line in wide)
