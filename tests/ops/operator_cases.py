"""What the tests of both operators share: runs that keep every gradient, comparisons, poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from mamba_lab.batching import Boundaries

Tensors = dict[str, Tensor]
Operator = Callable[..., tuple[Tensor, Tensor]]
EDGES = (1, 1, 2, 0, 3, 63, 64, 65, 5, 0, 1)
"""Lengths around the convolution's tile, shorter than its window, of one token, and empty."""


def cu_seqlens(lengths: tuple[int, ...] | list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def positions(lengths: tuple[int, ...] | list[int]) -> Tensor:
    return torch.tensor([p for length in lengths for p in range(length)], dtype=torch.int64)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def run(operator: Operator, inputs: Mapping[str, Tensor], dy: Tensor, dfinal: Tensor, **options: Any) -> Tensors:
    """``operator(**inputs, **options)``: its results y and final_state, and the gradient of each input as d<name>."""
    leaves = {name: value.detach().requires_grad_() for name, value in inputs.items()}
    y, final_state = operator(**leaves, **options)
    pairs = [(out, grad) for out, grad in ((y, dy), (final_state, dfinal)) if out.requires_grad]
    outs, given = zip(*pairs, strict=True)
    grads = torch.autograd.grad(outs, list(leaves.values()), given, allow_unused=True)
    found = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"y": y.detach(), "final_state": final_state.detach()} | {
        name: torch.zeros_like(inputs[name[1:]]) if grad is None else grad for name, grad in found.items()
    }


def assert_close(got: Tensors, expected: Tensors, *, tolerance: float) -> None:
    """Each tensor alone, relative to its own largest entry."""
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert value.shape == expected[name].shape, name
        scale = max(1.0, expected[name].double().abs().max().item() if value.numel() else 1.0)
        error = (value.double() - expected[name].double()).abs()
        assert bool((error <= tolerance * scale).all()), f"{name} is off by {error.max().item() / scale:.1e}"


def assert_same_bits(got: Tensor, expected: Tensor, what: str = "") -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape, what
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    different = (got.contiguous().view(whole) != expected.contiguous().view(whole)).nonzero()
    assert different.numel() == 0, f"{what} differs first at {different[0].tolist()}"


def each_alone(lengths: tuple[int, ...] | list[int]) -> Iterator[tuple[int, slice, Boundaries]]:
    """Number, tokens and boundaries of each sequence of a pack as a pack of its own."""
    for s, (start, stop) in enumerate(pairwise(cu_seqlens(lengths).tolist())):
        yield s, slice(start, stop), Boundaries.from_lengths([stop - start])


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """New tensors are full of NaN, so an entry that a kernel forgets to write shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before)
