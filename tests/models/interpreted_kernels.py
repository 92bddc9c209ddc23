"""What test_fused_kernels.py runs in a process of its own: the model's two kernels in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.models import MambaConfig, MambaLM, cross_entropy, residual
from mamba_lab.models.norm import RMSNorm
from mamba_lab.ops.triton import add_norm as norm_kernels

LENGTHS = [5, 7, 1]


@pytest.fixture
def model() -> MambaLM:
    torch.manual_seed(0)
    found = MambaLM(MambaConfig(d_model=12, n_layer=3, vocab_size=30), backend="cpu")
    for value in found.parameters():  # norms of one are no test
        value.data += 0.1 * torch.randn_like(value)
    return found


def gradients(model: MambaLM, fused: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    ids = torch.randint(0, 30, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    targets = ids.roll(-1, 1)
    targets[0, 4] = -100
    model.zero_grad()
    with monkeypatch.context() as patch:
        if not fused:
            patch.setattr(residual._triton_ops, "INTERPRETED", False)
        loss, _ = model(ids, Boundaries.from_lengths(LENGTHS), targets=targets)
        (2 * loss).backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}


def test_the_model_is_the_same_with_and_without(model: MambaLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for module, name in ((residual, "add_norm"), (cross_entropy, "_has_kernel")):
        original = getattr(module, name)

        def watched(*arguments: object, name: str = name, original: object = original) -> object:
            calls.append(name)
            return original(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(
            f"mamba_lab.models.mamba.{name}" if name == "add_norm" else module.__name__ + "." + name, watched
        )
    one = gradients(model, True, monkeypatch)
    assert calls == ["add_norm"] * 4 + ["_has_kernel"]
    two = gradients(model, False, monkeypatch)
    assert one.keys() == two.keys()
    for name, value in two.items():
        torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("tokens", "d"), [(1, 16), (33, 7), (17, 40)])
@pytest.mark.parametrize("with_branch", [False, True])
def test_sum_and_norm_are_exact(tokens: int, d: int, with_branch: bool) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(d, 1e-5)
    norm.weight.data = torch.randn(d)
    x, branch = torch.randn(tokens, d, requires_grad=True), torch.randn(tokens, d, requires_grad=with_branch)
    wide = [value.detach().double().requires_grad_() for value in (x, branch, norm.weight)]
    total = wide[0] + wide[1] if with_branch else wide[0] * 1
    normed = F.rms_norm(total, (d,), wide[2], 1e-5)
    got = residual.add_norm(x, branch if with_branch else None, norm)
    for found, want in zip(got, (normed, total), strict=True):
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    weights = torch.randn(2, tokens, d)
    leaves = [x, branch, norm.weight] if with_branch else [x, norm.weight]
    wanted = [wide[0], wide[1], wide[2]] if with_branch else [wide[0], wide[2]]
    for used in ((0, 1), (0,), (1,)):
        found = torch.autograd.grad([got[i] for i in used], leaves, [weights[i] for i in used], True, allow_unused=True)
        want = torch.autograd.grad(
            [(normed, total)[i] for i in used], wanted, [weights[i].double() for i in used], True, allow_unused=True
        )
        for a, b in zip(found, want, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_every_token_has_a_part_in_the_weights_gradient() -> None:
    """Programs add up several tokens each, the last one fewer."""
    tokens = norm_kernels.ROWS * 2 + 3
    ones = torch.ones(tokens, 4)
    *_, dweight = norm_kernels.backward(ones, None, ones, torch.ones(tokens), torch.ones(4), None)
    assert dweight.tolist() == [tokens] * 4


def test_the_norm_answers_as_autocast_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = RMSNorm(8, 1e-5), torch.randn(3, 8)
    assert residual.add_norm(x, None, norm)[0].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert residual.add_norm(x, None, norm)[0].dtype == torch.bfloat16
    assert residual.add_norm(x, x.bfloat16(), norm.bfloat16())[0].dtype == torch.bfloat16


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="the norm's kernel has no second derivative"):
        torch.autograd.grad(residual.add_norm(x, None, RMSNorm(8, 1e-5))[0].sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "rows"), [(50, 56), (70, 70), (3, 4)])
def test_the_loss_of_a_chunk(dtype: torch.dtype, vocab: int, rows: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, rows).mul(5).to(dtype)
    logits[1] = 0
    logits[3] = 80.0  # exp of it overflows
    targets, share = torch.randint(0, vocab, (6, 1)), torch.rand(6)
    share[2] = 0
    real = logits[:, :vocab].double().requires_grad_()
    each = F.cross_entropy(real, targets[:, 0], reduction="none") * share
    (wanted,) = torch.autograd.grad(each.sum(), real)
    kept = logits.clone()
    loss, untouched = cross_entropy._of_chunk(logits, targets, share, vocab, False)
    torch.testing.assert_close(loss.double(), each.sum().detach(), rtol=1e-5, atol=1e-5)
    assert torch.equal(untouched, kept)
    loss, found = cross_entropy._of_chunk(logits, targets, share, vocab, True)
    torch.testing.assert_close(loss.double(), each.sum().detach(), rtol=1e-5, atol=1e-5)
    assert found.data_ptr() == logits.data_ptr()
    off = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found[:, :vocab].double(), wanted, rtol=off, atol=1e-5)
    assert not found[:, vocab:].any()


def test_a_target_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        cross_entropy._of_chunk(torch.zeros(1, 8), torch.tensor([[6]]), torch.ones(1), 6, True)
