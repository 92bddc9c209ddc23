"""The specification itself: held against formulas written out here, finite differences, and its own other form."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import Tensors, cu_seqlens, normal, positions
from torch import Tensor

from mamba_lab.ops import conv1d_pack, reference, ssm_pack

LENGTHS = (4, 2, 0, 3, 1, 7)
PER_TOKEN = ("x", "u", "delta", "B", "C", "z")


def conv_inputs(lengths: tuple[int, ...] | list[int] = LENGTHS, D: int = 2, W: int = 4) -> Tensors:
    T, S = sum(lengths), len(lengths)
    return {
        "x": normal(T, D),
        "weight": normal(D, W, seed=1),
        "bias": normal(D, seed=2),
        "initial_state": normal(S, D, W - 1, seed=3),
    }


def scan_inputs(lengths: tuple[int, ...] | list[int] = LENGTHS, D: int = 2, N: int = 3) -> Tensors:
    T, S = sum(lengths), len(lengths)
    return {
        "u": normal(T, D),
        "delta": normal(T, D, seed=1),
        "A": -normal(D, N, seed=2).exp(),
        "B": normal(T, N, seed=3),
        "C": normal(T, N, seed=4),
        "D": normal(D, seed=5),
        "z": normal(T, D, seed=6),
        "delta_bias": normal(D, seed=7),
        "initial_state": normal(S, D, N, seed=8),
    }


@pytest.mark.parametrize("activation", [None, "silu"])
def test_the_convolution_number_by_number(activation: str | None) -> None:
    """Written with one number at a time; what lies before a sequence is its initial state."""
    inputs, W = conv_inputs(), 4
    y, final = reference.conv1d_pack(**inputs, cu_seqlens=cu_seqlens(LENGTHS), activation=activation)
    x, weight, bias, state = (value.tolist() for value in inputs.values())
    for s, (start, stop) in enumerate(pairwise(cu_seqlens(LENGTHS).tolist())):
        for d in range(2):
            seen = state[s][d] + [x[t][d] for t in range(start, stop)]
            for t in range(stop - start):
                value = bias[d] + sum(weight[d][k] * seen[t + k] for k in range(W))
                value = value / (1 + math.exp(-value)) if activation else value
                assert y[start + t, d].item() == pytest.approx(value, abs=1e-13)
            assert final[s, d].tolist() == seen[len(seen) - (W - 1) :]


@pytest.mark.parametrize("softplus", [False, True])
def test_the_scan_number_by_number(softplus: bool) -> None:
    """The recurrence of the Mamba paper, one number at a time, each sequence from its own initial state."""
    inputs = scan_inputs()
    y, final = reference.ssm_pack(**inputs, delta_softplus=softplus, cu_seqlens=cu_seqlens(LENGTHS))
    u, delta, A, B, C, D, z, bias, state = (value.tolist() for value in inputs.values())
    for s, (start, stop) in enumerate(pairwise(cu_seqlens(LENGTHS).tolist())):
        for d in range(2):
            h = state[s][d]
            for t in range(start, stop):
                step = delta[t][d] + bias[d]
                step = math.log1p(math.exp(step)) if softplus else step
                h = [math.exp(step * A[d][n]) * h[n] + step * B[t][n] * u[t][d] for n in range(3)]
                value = sum(C[t][n] * h[n] for n in range(3)) + D[d] * u[t][d]
                value *= z[t][d] / (1 + math.exp(-z[t][d]))
                assert y[t, d].item() == pytest.approx(value, abs=1e-12)
            assert final[s, d].tolist() == pytest.approx(h, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), max_size=5), W=st.integers(1, 7), silu=st.booleans())
def test_positions_and_boundaries_state_the_same_convolution(lengths: list[int], W: int, silu: bool) -> None:
    inputs, activation = conv_inputs(lengths, W=W), "silu" if silu else None
    del inputs["initial_state"]
    y, _ = reference.conv1d_pack(**inputs, cu_seqlens=cu_seqlens(lengths), activation=activation)
    by_position = reference.conv1d_pack_by_position(
        **inputs, position_indices=positions(lengths), activation=activation
    )
    torch.testing.assert_close(by_position, y, rtol=0, atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), max_size=5), softplus=st.booleans(), plain=st.booleans())
def test_positions_and_boundaries_state_the_same_scan(lengths: list[int], softplus: bool, plain: bool) -> None:
    inputs = scan_inputs(lengths)
    for name in ["initial_state", *(["D", "z", "delta_bias"] if plain else [])]:
        del inputs[name]
    y, _ = reference.ssm_pack(**inputs, delta_softplus=softplus, cu_seqlens=cu_seqlens(lengths))
    by_position = reference.ssm_pack_by_position(**inputs, delta_softplus=softplus, position_indices=positions(lengths))
    torch.testing.assert_close(by_position, y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradients_of_the_convolution(activation: str | None) -> None:
    """Finite differences, for every input, through the outputs and the final states."""
    inputs = conv_inputs((3, 0, 2, 6))
    leaves = [value.requires_grad_() for value in inputs.values()]

    def call(*values: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(inputs, values, strict=True))
        return reference.conv1d_pack(**named, cu_seqlens=cu_seqlens((3, 0, 2, 6)), activation=activation)

    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("softplus", [False, True])
def test_gradients_of_the_scan(softplus: bool) -> None:
    """Finite differences, for every input, through the outputs and the final states."""
    inputs = scan_inputs((3, 0, 1, 4), N=2)
    leaves = [value.requires_grad_() for value in inputs.values()]

    def call(*values: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(inputs, values, strict=True))
        return reference.ssm_pack(**named, delta_softplus=softplus, cu_seqlens=cu_seqlens((3, 0, 1, 4)))

    assert torch.autograd.gradcheck(call, leaves)


def test_gradients_of_the_position_forms() -> None:
    """The reverse index of the paper's backward pass is what autograd makes of them."""
    conv, scan = conv_inputs(LENGTHS), scan_inputs(LENGTHS)
    for operator, inputs in ((reference.conv1d_pack, conv), (reference.ssm_pack, scan)):
        del inputs["initial_state"]
        leaves = [value.requires_grad_() for value in inputs.values()]
        y, _ = operator(**inputs, cu_seqlens=cu_seqlens(LENGTHS))
        by_position = getattr(reference, f"{operator.__name__}_by_position")
        same = by_position(**inputs, position_indices=positions(LENGTHS))
        dy = normal(*y.shape, seed=9)
        for got, expected in zip(
            torch.autograd.grad(same, leaves, dy), torch.autograd.grad(y, leaves, dy), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["boundaries", "positions"])
@pytest.mark.parametrize("name", ["conv1d_pack", "ssm_pack"])
def test_a_broken_sequence_does_not_reach_the_others(name: str, form: str) -> None:
    """A reset that multiplied by zero would pass NaN on: 0 * NaN is NaN. Values and gradients."""
    lengths = (3, 2, 4)
    inputs = conv_inputs(lengths) if name == "conv1d_pack" else scan_inputs(lengths)
    del inputs["initial_state"]
    per_token = [value for key, value in inputs.items() if key in PER_TOKEN]
    for value in per_token:
        value[3:5] = float("nan")
        value.requires_grad_()
    if form == "boundaries":
        y, _ = getattr(reference, name)(**inputs, cu_seqlens=cu_seqlens(lengths))
    else:
        y = getattr(reference, f"{name}_by_position")(**inputs, position_indices=positions(lengths))
    whole = [0, 1, 2, 5, 6, 7, 8]
    assert y.isnan().all(1).nonzero().flatten().tolist() == [3, 4]
    assert y[whole].isfinite().all()
    for grad in torch.autograd.grad(y.sum(), per_token):
        assert grad[whole].isfinite().all()


@pytest.mark.parametrize("operator", [reference.conv1d_pack, reference.ssm_pack])
def test_a_sequence_in_a_pack_has_the_bits_it_has_alone(operator: object) -> None:
    inputs = conv_inputs(D=5) if operator is reference.conv1d_pack else scan_inputs(D=5)
    per_sequence = ("initial_state",)
    y, final = operator(**inputs, cu_seqlens=cu_seqlens(LENGTHS))
    for s, (start, stop) in enumerate(pairwise(cu_seqlens(LENGTHS).tolist())):
        own = {
            name: value[start:stop] if name in PER_TOKEN else value[s : s + 1] if name in per_sequence else value
            for name, value in inputs.items()
        }
        alone, own_final = operator(**own, cu_seqlens=cu_seqlens([stop - start]))
        assert torch.equal(alone, y[start:stop])
        assert torch.equal(own_final[0], final[s])


def test_narrow_inputs_are_computed_in_float32() -> None:
    conv = {name: value.bfloat16() if name == "x" else value.float() for name, value in conv_inputs().items()}
    y, final = reference.conv1d_pack(**conv, cu_seqlens=cu_seqlens(LENGTHS))
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    wide, _ = reference.conv1d_pack(**{k: v.float() for k, v in conv.items()}, cu_seqlens=cu_seqlens(LENGTHS))
    assert torch.equal(y, wide.bfloat16())
    narrow = ("u", "delta", "B", "C", "z")
    scan = {name: value.bfloat16() if name in narrow else value.float() for name, value in scan_inputs().items()}
    y, final = reference.ssm_pack(**scan, delta_softplus=True, cu_seqlens=cu_seqlens(LENGTHS))
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    wide, _ = reference.ssm_pack(
        **{k: v.float() for k, v in scan.items()}, delta_softplus=True, cu_seqlens=cu_seqlens(LENGTHS)
    )
    assert torch.equal(y, wide.bfloat16())


def test_extreme_steps_stay_finite() -> None:
    """Case 25: A = 0, A very negative, steps very large and very small: no 0 * inf, in values and gradients."""
    T, D, N = 6, 2, 2
    for A in (0.0, -1e20):
        for step in (1e20, -1e20, 50.0, -50.0):
            inputs = {
                "u": normal(T, D),
                "delta": torch.full((T, D), step, dtype=torch.float64),
                "A": torch.full((D, N), A, dtype=torch.float64),
                "B": normal(T, N, seed=1),
                "C": normal(T, N, seed=2),
            }
            leaves = [value.requires_grad_() for value in inputs.values()]
            y = ssm_pack(**inputs, delta_softplus=True, boundaries=cu_seqlens((4, 2)), backend="reference")
            assert y.isfinite().all()
            for grad in torch.autograd.grad(y.sum(), leaves):
                assert grad.isfinite().all(), (A, step)


def test_no_tokens_at_all() -> None:
    """Case 10."""
    nothing, weight, A = normal(0, 3), normal(3, 4), -normal(3, 2).exp()
    for cu in ([0], [0, 0], [0, 0, 0]):
        boundaries = torch.tensor(cu, dtype=torch.int32)
        y, final = conv1d_pack(nothing, weight, boundaries=boundaries, return_final_state=True, backend="reference")
        assert (y.shape, final.shape) == ((0, 3), (len(cu) - 1, 3, 3))
        y, final = ssm_pack(
            nothing,
            nothing,
            A,
            normal(0, 2),
            normal(0, 2),
            boundaries=boundaries,
            return_final_state=True,
            backend="reference",
        )
        assert (y.shape, final.shape) == ((0, 3), (len(cu) - 1, 3, 2))
        assert not final.any()
