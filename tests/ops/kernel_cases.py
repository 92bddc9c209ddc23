"""Calls of both operators in one form, for tests that hold a backend's kernels to the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from operator_cases import Tensors, assert_same_bits, cu_seqlens, each_alone, normal, run
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.ops import conv1d_pack, reference, ssm_pack

OPERATORS = {"conv1d_pack": conv1d_pack, "ssm_pack": ssm_pack}
REFERENCES = {"conv1d_pack": reference.conv1d_pack, "ssm_pack": reference.ssm_pack}
PER_TOKEN = {"x", "u", "delta", "B", "C", "z", "y"}
PER_SEQUENCE = {"initial_state", "final_state"}
OPTIONS = {
    "conv1d_pack": ({"activation": "silu"}, {"activation": None}),
    "ssm_pack": ({"delta_softplus": True}, {"delta_softplus": False}),
}
Case = tuple[Tensors, Tensor, Tensor]


def made(
    name: str,
    lengths: Sequence[int],
    D: int,
    size: int,
    dtype: torch.dtype = torch.float64,
    *,
    without: Sequence[str] = (),
    device: str = "cpu",
) -> Case:
    """Inputs, and the gradients of y and of the final state. ``size`` is W or N."""
    T, S = sum(lengths), len(lengths)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if name == "conv1d_pack":
        inputs = {"x": normal(T, D, dtype=dtype), "weight": normal(D, size, seed=1, dtype=wide)}
        inputs |= {"bias": normal(D, seed=2, dtype=wide)}
        state = (S, D, size - 1)
    else:
        names = ("u", "delta", "z", "B", "C")
        inputs = {
            key: normal(T, size if key in "BC" else D, seed=i, dtype=dtype) for i, key in enumerate(names, start=10)
        }
        inputs |= {"A": -normal(D, size, seed=20, dtype=wide).div(2).exp(), "D": normal(D, seed=21, dtype=wide)}
        inputs |= {"delta_bias": normal(D, seed=22, dtype=wide) / 4}
        state = (S, D, size)
    inputs |= {"initial_state": normal(*state, seed=3, dtype=wide)}
    given = {key: value.to(device) for key, value in inputs.items() if key not in without}
    return given, normal(T, D, seed=4, dtype=dtype).to(device), normal(*state, seed=5, dtype=wide).to(device)


def run_on(name: str, backend: str, lengths: Sequence[int], case: Case, **options: Any) -> Tensors:
    inputs, dy, dfinal = case
    boundaries = Boundaries.from_lengths(list(lengths), device=dy.device)
    return run(
        OPERATORS[name], inputs, dy, dfinal, boundaries=boundaries, return_final_state=True, backend=backend, **options
    )


def exact(name: str, lengths: Sequence[int], case: Case, *, fast: bool = False, **options: Any) -> Tensors:
    """The same in float64: by the reference, or with ``fast`` in C++, which is held to the reference elsewhere."""
    inputs, dy, dfinal = case
    wide = ({k: v.double().cpu() for k, v in inputs.items()}, dy.double().cpu(), dfinal.double().cpu())
    if fast:
        return run_on(name, "cpu", lengths, wide, **options)
    return run(REFERENCES[name], *wide, cu_seqlens=cu_seqlens(list(lengths)), **options)


def assert_agrees(got: Tensors, expected: Tensors, narrow: float, wide: float) -> None:
    """Each tensor alone, relative to its own largest entry; ``narrow`` for what is stored in bfloat16."""
    assert got.keys() == expected.keys()
    for key, value in got.items():
        want = expected[key]
        assert value.shape == want.shape, key
        if value.numel() == 0:
            continue
        error = ((value.double().cpu() - want).abs().max() / want.abs().max().clamp(min=1e-300)).item()
        tolerance = narrow if value.dtype == torch.bfloat16 else wide
        assert error <= tolerance, f"{key} is off by {error:.1e}, more than {tolerance:.1e}"


def of_sequence(results: Tensors, s: int, tokens: slice) -> Tensors:
    """What of a pack's results belongs to sequence s alone."""
    found = {}
    for key, value in results.items():
        plain = key if key in PER_TOKEN | PER_SEQUENCE else key.removeprefix("d")
        if plain in PER_TOKEN:
            found[key] = value[tokens]
        elif plain in PER_SEQUENCE:
            found[key] = value[s : s + 1]
    return found


def assert_each_is_as_alone(name: str, backend: str, lengths: Sequence[int], case: Case, **options: Any) -> None:
    """Invariant 1: outputs and input gradients of a sequence have the bits that it has without the pack."""
    packed = run_on(name, backend, lengths, case, **options)
    inputs, dy, dfinal = case
    seen: dict[int, int] = {}
    for s, tokens, _ in each_alone(list(lengths)):
        length = tokens.stop - tokens.start
        seen[length] = seen.get(length, 0) + 1
        if seen[length] > 3:
            continue
        own = {k: v[tokens] if k in PER_TOKEN else v[s : s + 1] if k in PER_SEQUENCE else v for k, v in inputs.items()}
        alone = run_on(name, backend, [length], (own, dy[tokens], dfinal[s : s + 1]), **options)
        for key, value in of_sequence(packed, s, tokens).items():
            assert_same_bits(value, of_sequence(alone, 0, slice(None))[key], f"{key} of sequence {s}, {length} tokens")


def assert_no_leak(name: str, backend: str, lengths: Sequence[int], case: Case, poison: float, **options: Any) -> None:
    """Invariant 2: whatever is in one sequence, no bit of another's outputs or gradients changes."""
    before = run_on(name, backend, lengths, case, **options)
    inputs, dy, dfinal = case
    for s, tokens, _ in each_alone(list(lengths)):
        if tokens.start == tokens.stop:
            continue
        changed = {k: v.clone() for k, v in inputs.items()}
        grad, last = dy.clone(), dfinal.clone()
        for key, value in changed.items():
            if key in PER_TOKEN:
                value[tokens] = poison
            elif key in PER_SEQUENCE:
                value[s] = poison
        grad[tokens], last[s] = poison, poison
        after = run_on(name, backend, lengths, (changed, grad, last), **options)
        for other, place, _ in each_alone(list(lengths)):
            pair = (of_sequence(after, other, place), of_sequence(before, other, place))
            if other == s:
                assert not torch.equal(pair[0]["y"], pair[1]["y"])
                continue
            for key, value in pair[0].items():
                assert_same_bits(value, pair[1][key], f"{key} of sequence {other} beside {s}")
