"""The residual stream's and the loss's kernels on a GPU: PyTorch's operators agree, and the same bits come twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.models import MambaConfig, MambaLM, cross_entropy, residual
from mamba_lab.models.norm import RMSNorm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.fixture
def norm_case() -> tuple[Tensor, Tensor, RMSNorm]:
    torch.manual_seed(0)
    norm = RMSNorm(2048, 1e-5).cuda()
    norm.weight.data = torch.rand(2048, device="cuda")
    x = torch.randn(1003, 2048, device="cuda", requires_grad=True)
    return x, torch.randn(1003, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=True), norm


def test_sum_and_norm(norm_case: tuple[Tensor, Tensor, RMSNorm]) -> None:
    x, branch, norm = norm_case
    got = residual.add_norm(x, branch, norm)
    wide = [value.detach().double().requires_grad_() for value in (x, branch, norm.weight)]
    total = wide[0] + wide[1]
    normed = F.rms_norm(total, (2048,), wide[2], 1e-5)
    assert off(got[0], normed) < 1e-6
    assert off(got[1], total) < 1e-6
    weights = torch.randn(2, 1003, 2048, device="cuda")
    leaves = (x, branch, norm.weight)
    found = torch.autograd.grad(got, leaves, tuple(weights), retain_graph=True)
    wanted = torch.autograd.grad((normed, total), wide, tuple(weights.double()))
    for value, want in zip(found, wanted, strict=True):
        assert off(value, want) < (3e-3 if value.dtype == torch.bfloat16 else 1e-6)
    for value, again in zip(found, torch.autograd.grad(got, leaves, tuple(weights)), strict=True):
        assert torch.equal(value, again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_a_chunk(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    vocab, rows = 50_277, 50_280
    logits = torch.randn(100, rows, device="cuda").mul(4).to(dtype)
    targets, share = torch.randint(0, vocab, (100, 1), device="cuda"), torch.rand(100, device="cuda")
    real = logits[:, :vocab].double().requires_grad_()
    each = F.cross_entropy(real, targets[:, 0], reduction="none") * share
    (wanted,) = torch.autograd.grad(each.sum(), real)
    again = logits.clone()
    loss, found = cross_entropy._of_chunk(logits, targets, share, vocab, True)
    torch.testing.assert_close(loss.double(), each.sum().detach(), rtol=1e-6, atol=1e-4)
    assert off(found[:, :vocab], wanted) < (3e-3 if dtype == torch.bfloat16 else 1e-5)
    assert not found[:, vocab:].any()
    assert torch.equal(cross_entropy._of_chunk(again, targets, share, vocab, True)[1], found)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_model_is_the_same_without_them(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = MambaLM(MambaConfig(d_model=64, n_layer=3, vocab_size=500)).cuda()
    lengths = [40, 1, 0, 59]
    ids = torch.randint(0, 500, (1, 100), device="cuda")
    calls: list[str] = []
    original = residual.add_norm
    monkeypatch.setattr("mamba_lab.models.mamba.add_norm", lambda *given: calls.append("") or original(*given))

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss, _ = model(ids, Boundaries.from_lengths(lengths, device="cuda"), targets=ids)
        loss.backward()
        return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}

    one = gradients()
    assert len(calls) == 4
    monkeypatch.setattr("mamba_lab.models.mamba.fusable", lambda *_: False)
    monkeypatch.setattr(cross_entropy, "_has_kernel", lambda *_: False)
    two = gradients()
    assert len(calls) == 4
    for name, value in two.items():
        assert off(one[name], value) < (3e-2 if autocast else 1e-4), name
