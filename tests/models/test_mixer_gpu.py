"""The block on a GPU, with each backend that has kernels there: the step in one piece, its layers in turn, the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.models import MambaConfig, MambaLM, mixer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
LENGTHS = [4, 2, 0, 3, 7, 1, 40, 130]


def run(device: str, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    config = MambaConfig(d_model=24, n_layer=1, vocab_size=9)
    block = MambaLM(config).backbone.layers[0].mixer.to(device, dtype)
    block.backend = block.conv1d.backend = backend
    boundaries = Boundaries.from_lengths(LENGTHS, device=device)
    values = torch.Generator().manual_seed(1)
    hidden, dout = (torch.randn(sum(LENGTHS), 24, generator=values).to(device, dtype) for _ in range(2))
    out = block(hidden.requires_grad_(), boundaries)
    out.backward(dout)
    found = {"out": out.detach(), "hidden": hidden.grad, **{name: p.grad for name, p in block.named_parameters()}}
    return {name: value.double().cpu() for name, value in found.items() if value is not None}


@pytest.mark.parametrize("one_step", [True, False])
def test_it_agrees_with_float64_on_the_cpu(one_step: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not one_step:
        monkeypatch.setattr(mixer, "fused_backends", lambda *_: None)
    exact = run("cpu", "cpu", torch.float64)
    got = run("cuda", backend, torch.float32)
    assert got.keys() == exact.keys()
    for name, value in got.items():
        assert ((value - exact[name]).norm() / exact[name].norm()).item() < 1e-5, name
