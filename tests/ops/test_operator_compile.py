"""The operators as PyTorch's compiler and its checks see them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from operator_cases import normal
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

from mamba_lab.batching import Boundaries
from mamba_lab.ops import build, conv1d_pack, ssm_pack

T, D, N, W = 48, 6, 3, 4


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    for name in ("conv1d_pack", "ssm_pack"):
        build.load_library(name)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block(x: Tensor, weights: dict[str, Tensor], boundaries: Boundaries | None, backend: str = "auto") -> Tensor:
    """What a Mamba block does around its two operators: halves of a projection in, a gated scan out."""
    u, z = (x @ weights["in"]).chunk(2, dim=-1)
    u = conv1d_pack(u, weights["conv"], activation="silu", boundaries=boundaries, backend=backend)
    delta, B, C = (u @ weights["x"]).split([D, N, N], dim=-1)
    y = ssm_pack(u, delta, -weights["A"].exp(), B, C, z=z, delta_softplus=True, boundaries=boundaries, backend=backend)
    return y @ weights["out"]


def make_weights() -> dict[str, Tensor]:
    shapes = {"in": (D, 2 * D), "conv": (D, W), "x": (D, D + 2 * N), "A": (D, N), "out": (D, D)}
    return {
        name: normal(*shape, seed=i, dtype=torch.float32).requires_grad_()
        for i, (name, shape) in enumerate(shapes.items())
    }


def results(f: Callable[..., Tensor], boundaries: Boundaries | None, n_tokens: int = T) -> list[Tensor]:
    x, weights = normal(n_tokens, D, seed=9, dtype=torch.float32).requires_grad_(), make_weights()
    y = f(x, weights, boundaries)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *weights.values()])]


def some_boundaries(n_sequences: int, seed: int) -> Boundaries:
    cuts = sorted(random.Random(seed).sample(range(1, T), n_sequences - 1))
    return Boundaries.from_lengths([b - a for a, b in zip([0, *cuts], [*cuts, T], strict=True)])


@pytest.mark.parametrize("first", [1, 7])
def test_a_block_compiles_at_most_twice(first: int) -> None:
    """Case 28: twenty batches, whatever the number of sequences, a single one and an empty one included."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    counts = [first, 5, 1, 2, 11, 1, 3, 40, 2, 8, 1, 6, 4, 9, 10, 12, 7, 1, 2]
    batches = [some_boundaries(n, seed) for seed, n in enumerate(counts)]
    batches[2] = Boundaries(batches[2].cu_seqlens, batches[2].order, T, 1, T)  # built by hand
    batches.append(Boundaries.from_lengths([10, 0, T - 10]))
    for boundaries in batches:
        for got, expected in zip(results(compiled, boundaries), results(block, boundaries), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert len(batches) == 20
    assert counter.frame_count <= 2


@pytest.mark.parametrize(("backend", "boundaries"), [("inductor", some_boundaries(3, 0)), ("aot_eager", None)])
def test_compiled_and_not(backend: str, boundaries: Boundaries | None) -> None:
    """The default compiler, which is free to choose strides; and no boundaries, which means one sequence."""
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for got, expected in zip(results(compiled, boundaries), results(block, boundaries), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_any_number_of_tokens() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    for n_tokens in (40, 48, 17, 33):
        boundaries = Boundaries.from_lengths([5, n_tokens - 5])
        for got, expected in zip(
            results(compiled, boundaries, n_tokens), results(block, boundaries, n_tokens), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert counter.frame_count <= 2


def test_a_raw_cu_seqlens_tensor_is_for_eager_code() -> None:
    weight = normal(D, W, dtype=torch.float32)
    compiled = torch.compile(conv1d_pack, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"Boundaries.from_cu_seqlens outside the compiled function"):
        compiled(normal(4, D, dtype=torch.float32), weight, boundaries=torch.tensor([0, 4], dtype=torch.int32))


def conv_arguments(full: bool, grad: bool) -> tuple[object, ...]:
    lengths = [5, 0, 1, 10]
    x, weight = normal(16, 2 * D, dtype=torch.float32)[:, D:], normal(D, W, dtype=torch.float32)
    bias, state = normal(D, dtype=torch.float32), normal(4, D, W - 1, dtype=torch.float32)
    tensors = [value.detach().requires_grad_(grad) for value in (x, weight, bias, state)]
    boundaries = Boundaries.from_lengths(lengths)
    optional = (tensors[2], tensors[3]) if full else (None, None)
    return (*tensors[:2], optional[0], full, boundaries.cu_seqlens, boundaries._schedule, optional[1])


def ssm_arguments(full: bool, grad: bool) -> tuple[object, ...]:
    def made(*shape: int) -> Tensor:
        return normal(*shape, seed=len(shape), dtype=torch.float32).requires_grad_(grad)

    boundaries = Boundaries.from_lengths([17, 5, 3])  # lengths that leave no checkpoint's slot unused
    tokens = boundaries.n_tokens
    A = (-normal(D, N, dtype=torch.float32).exp()).requires_grad_(grad)
    needed = (made(tokens, D), made(tokens, D), A, made(tokens, N), made(tokens, N))
    optional = (made(D), made(tokens, D), made(D)) if full else (None, None, None)
    state = made(3, D, N) if full else None
    return (*needed, *optional, full, boundaries.cu_seqlens, boundaries._schedule, state)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", ["conv1d_pack", "ssm_pack"])
def test_opcheck(name: str, full: bool) -> None:
    """PyTorch's own checks: the schema tells the truth, the fake agrees, autograd is registered and traceable."""
    arguments = conv_arguments if name == "conv1d_pack" else ssm_arguments
    forward = getattr(torch.ops.mamba_lab, f"{name}_cpu").default
    backward = getattr(torch.ops.mamba_lab, f"{name}_cpu_backward").default
    opcheck(forward, (*arguments(full, True), full))
    assert [out.requires_grad for out in forward(*arguments(full, True), full)][2:] in ([], [False])
    plain = arguments(full, False)
    y, final_state, *checkpoints = forward(*plain, full)
    dfinal = torch.ones_like(final_state) if full else None
    opcheck(backward, (torch.ones_like(y), dfinal, *plain, *checkpoints))


@pytest.mark.parametrize("name", ["conv1d_pack", "ssm_pack"])
def test_the_fake_agrees_in_every_dtype(name: str) -> None:
    """Shapes, dtypes and strides without the kernel are those with it, also for mixed dtypes."""
    arguments = conv_arguments if name == "conv1d_pack" else ssm_arguments
    wide_places = (1, 2, 6) if name == "conv1d_pack" else (2, 5, 7, 11)
    for dtype in (torch.float64, torch.bfloat16):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        given = tuple(
            value.to(wide if i in wide_places else dtype)
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for i, value in enumerate(arguments(True, False))
        )
        forward = getattr(torch.ops.mamba_lab, f"{name}_cpu").default
        backward = getattr(torch.ops.mamba_lab, f"{name}_cpu_backward").default
        opcheck(forward, (*given, True), test_utils="test_faketensor")
        y, final_state, *checkpoints = forward(*given, True)
        opcheck(backward, (y, final_state, *given, *checkpoints), test_utils="test_faketensor")
