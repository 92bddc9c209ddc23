"""The C++ convolution: equal to the reference, and the same bits alone, packed, and with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import (
    EDGES,
    Tensors,
    assert_close,
    assert_same_bits,
    cu_seqlens,
    each_alone,
    normal,
    poisoned_memory,
    run,
)
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.ops import conv1d_pack, reference

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 40)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    with poisoned_memory():
        yield


def made(
    lengths: tuple[int, ...] | list[int], D: int, W: int, *, dtype: torch.dtype = torch.float64, optional: bool = True
) -> tuple[Tensors, Tensor, Tensor]:
    """Inputs, and the gradients of y and of the final state."""
    T, S = sum(lengths), len(lengths)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = {"x": normal(T, D, dtype=dtype), "weight": normal(D, W, seed=1, dtype=wide)}
    if optional:
        inputs |= {"bias": normal(D, seed=2, dtype=wide), "initial_state": normal(S, D, W - 1, seed=3, dtype=wide)}
    return inputs, normal(T, D, seed=4, dtype=dtype), normal(S, D, W - 1, seed=5, dtype=wide)


def cpu(lengths: tuple[int, ...] | list[int], *args: object, **options: object) -> Tensors:
    inputs, dy, dfinal = args
    return run(
        conv1d_pack,
        inputs,
        dy,
        dfinal,
        boundaries=Boundaries.from_lengths(lengths),
        return_final_state=True,
        backend="cpu",
        **options,
    )


def exact(lengths: tuple[int, ...] | list[int], *args: object, **options: object) -> Tensors:
    """The reference in float64, of the very same inputs."""
    inputs, dy, dfinal = args
    wide = {name: value.double() for name, value in inputs.items()}
    return run(reference.conv1d_pack, wide, dy.double(), dfinal.double(), cu_seqlens=cu_seqlens(lengths), **options)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("W", WIDTHS)
def test_equals_the_reference(W: int, activation: str | None) -> None:
    case = made(EDGES, 3, W)
    assert_close(cpu(EDGES, *case, activation=activation), exact(EDGES, *case, activation=activation), tolerance=1e-13)


@pytest.mark.parametrize("D", [1, 31, 32, 33, 64, 70])
def test_any_number_of_channels(D: int) -> None:
    lengths = (5, 1, 66)
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        case = made(lengths, D, 4, dtype=dtype)
        assert_close(
            cpu(lengths, *case, activation="silu"), exact(lengths, *case, activation="silu"), tolerance=tolerance
        )


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 5e-3)])
def test_shorter_dtypes_compute_in_float32(dtype: torch.dtype, tolerance: float, activation: str | None) -> None:
    case = made(EDGES, 5, 4, dtype=dtype)
    got, expected = cpu(EDGES, *case, activation=activation), exact(EDGES, *case, activation=activation)
    assert got["y"].dtype == got["dx"].dtype == dtype
    assert got["dweight"].dtype == got["final_state"].dtype == torch.float32
    assert_close(got, expected, tolerance=tolerance)
    narrow = {"y", "dx"}
    wide = [{k: v for k, v in side.items() if k not in narrow} for side in (got, expected)]
    assert_close(wide[0], wide[1], tolerance=2e-6)


def test_bfloat16_is_rounded_to_nearest() -> None:
    x = normal(64, 40, dtype=torch.bfloat16)
    weight = torch.full((40, 1), 1.0 / 3)
    assert_same_bits(conv1d_pack(x, weight, backend="cpu"), (x.float() * weight[:, 0]).bfloat16())
    special = torch.tensor([[float("nan"), float("inf"), -float("inf"), -0.0]], dtype=torch.bfloat16)
    got = conv1d_pack(special, torch.ones(4, 1), torch.full((4,), -0.0), backend="cpu")
    assert got.isnan().tolist() == [[True, False, False, False]]
    assert got[0, 1:].tolist() == [float("inf"), -float("inf"), 0.0]
    all_bits = torch.tensor([0x7FFFFFFF, 0x7F800001], dtype=torch.int32).view(
        torch.float32
    )  # NaN that a cut would lose
    assert conv1d_pack(torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(2, 1), all_bits, backend="cpu").isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_and_bias_in_the_inputs_dtype(dtype: torch.dtype) -> None:
    inputs, dy, dfinal = made((7, 3), 6, 4, dtype=dtype)
    inputs["weight"], inputs["bias"] = inputs["weight"].to(dtype), inputs["bias"].bfloat16().to(dtype)
    got = cpu((7, 3), inputs, dy, dfinal)
    assert got["dweight"].dtype == got["dbias"].dtype == dtype
    assert_close(got, exact((7, 3), inputs, dy, dfinal), tolerance=5e-3)


def test_float64_with_a_float32_weight() -> None:
    inputs, dy, dfinal = made((7, 3), 6, 4)
    inputs["weight"] = inputs["weight"].float()
    got = cpu((7, 3), inputs, dy, dfinal)
    assert got["dweight"].dtype == torch.float32
    assert_close(got, exact((7, 3), inputs, dy, dfinal), tolerance=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9) | st.sampled_from([63, 64, 65]), max_size=6),
    W=st.sampled_from(WIDTHS),
    D=st.integers(1, 5),
    silu=st.booleans(),
    optional=st.booleans(),
)
def test_any_boundaries(lengths: list[int], W: int, D: int, silu: bool, optional: bool) -> None:
    """Cases 6, 8, 10: empty sequences, one token, fewer than W; no sequence at all."""
    case, activation = made(lengths, D, W, optional=optional), "silu" if silu else None
    assert_close(
        cpu(lengths, *case, activation=activation), exact(lengths, *case, activation=activation), tolerance=1e-12
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("W", [4, 9])
def test_a_sequence_in_a_pack_has_the_bits_it_has_alone(dtype: torch.dtype, W: int) -> None:
    """Cases 8, 9 and 34: invariant 1, at every place of a tile and over 2,048 tokens."""
    lengths = (3, 2049, *EDGES, 2047, 1, 2048, *[1] * 70, 2200)
    inputs, dy, dfinal = made(lengths, 35, W, dtype=dtype)
    packed = cpu(lengths, inputs, dy, dfinal, activation="silu")
    seen = set()
    for s, tokens, _ in each_alone(lengths):
        length = tokens.stop - tokens.start
        if length in seen and s > 20:  # the many one-token sequences
            continue
        seen.add(length)
        own = {**inputs, "x": inputs["x"][tokens], "initial_state": inputs["initial_state"][s : s + 1]}
        alone = cpu([length], own, dy[tokens], dfinal[s : s + 1], activation="silu")
        for name in ("y", "dx"):
            assert_same_bits(packed[name][tokens], alone[name], f"{name} of sequence {s}")
        for name in ("final_state", "dinitial_state"):
            assert_same_bits(packed[name][s : s + 1], alone[name], f"{name} of sequence {s}")


def test_a_thousand_one_token_sequences() -> None:
    """Case 8: each sees itself only."""
    x, weight, bias = normal(1000, 3), normal(3, 4, seed=1), normal(3, seed=2)
    y = conv1d_pack(x, weight, bias, boundaries=Boundaries.from_lengths([1] * 1000), backend="cpu")
    torch.testing.assert_close(y, x * weight[:, 3] + bias, rtol=0, atol=1e-14)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_no_other_sequence_sees_a_change(poison: float) -> None:
    """Case 2: invariant 2, also when what leaks would be NaN."""
    lengths = (5, 70, 1, 64, 3)
    inputs, dy, dfinal = made(lengths, 9, 4, dtype=torch.float32)
    before = cpu(lengths, inputs, dy, dfinal, activation="silu")
    for s, tokens, _ in each_alone(lengths):
        x, state, grad = inputs["x"].clone(), inputs["initial_state"].clone(), dy.clone()
        x[tokens], state[s], grad[tokens] = poison, poison, poison
        after = cpu(lengths, {**inputs, "x": x, "initial_state": state}, grad, dfinal, activation="silu")
        others = torch.ones(len(x), dtype=torch.bool)
        others[tokens] = False
        for name in ("y", "dx"):
            assert_same_bits(after[name][others], before[name][others], f"{name} beside sequence {s}")
            assert not torch.equal(after[name][tokens], before[name][tokens])
        others = torch.arange(len(lengths)) != s
        for name in ("final_state", "dinitial_state"):
            assert_same_bits(after[name][others], before[name][others], f"{name} beside sequence {s}")


def test_without_its_reset_the_first_outputs_would_differ() -> None:
    """Case 3: what the reset changes is exactly the first W - 1 outputs of the second sequence."""
    inputs, _, _ = made((6, 8), 4, 4, optional=False)
    reset = conv1d_pack(**inputs, boundaries=cu_seqlens((6, 8)), backend="cpu")
    leaky = conv1d_pack(**inputs, backend="cpu")
    differs = (reset != leaky).any(1).tolist()
    assert differs == [False] * 6 + [True] * 3 + [False] * 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_in_every_run_with_any_number_of_threads(dtype: torch.dtype) -> None:
    """Invariant 3."""
    lengths = (700, 3, 0, 1, 500, 130)
    case = made(lengths, 70, 4, dtype=dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = cpu(lengths, *case, activation="silu")
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            again = cpu(lengths, *case, activation="silu")
            for name, value in first.items():
                assert_same_bits(again[name], value, f"{name} with {count} threads")
    finally:
        torch.set_num_threads(threads)


def strided_variants(t: Tensor) -> dict[str, Tensor]:
    """Tensors equal to ``t`` [T, D] that lie in memory in other ways."""
    T, D = t.shape
    halves = torch.full((T, 2 * D), float("nan"), dtype=t.dtype)
    halves[:, D:] = t
    spread = torch.full((T, 3 * D), float("nan"), dtype=t.dtype)
    spread[:, ::3] = t
    backwards = torch.full((2 * T, D), float("nan"), dtype=t.dtype)
    backwards[::2] = t
    return {
        "half of a projection": halves[:, D:],
        "channels first": t.t().contiguous().t(),
        "every third channel": spread[:, ::3],
        "every second row": backwards[::2],
    }


def test_strides() -> None:
    """Case 24: whatever lies between the entries is not read."""
    lengths = (5, 70, 1)
    inputs, dy, dfinal = made(lengths, 37, 4, dtype=torch.float32)
    plain = cpu(lengths, inputs, dy, dfinal, activation="silu")
    for how, x in strided_variants(inputs["x"]).items():
        for what, grad in (strided_variants(dy) | {"plain": dy}).items():
            got = cpu(lengths, {**inputs, "x": x}, grad, dfinal, activation="silu")
            for name, value in plain.items():
                assert_same_bits(got[name], value, f"{name}: x is {how}, dy {what}")
    turned = {
        "weight": inputs["weight"].t().contiguous().t(),
        "bias": torch.stack((inputs["bias"], inputs["bias"]), 1)[:, 1],
        "initial_state": inputs["initial_state"].permute(2, 1, 0).contiguous().permute(2, 1, 0),
    }
    got = cpu(lengths, {**inputs, **turned}, dy, dfinal.transpose(0, 2).contiguous().transpose(0, 2), activation="silu")
    for name, value in plain.items():
        assert_same_bits(got[name], value, name)


def test_one_number_for_all_gradients() -> None:
    """y.sum() sends a gradient that is a single number in memory."""
    x = normal(9, 5, dtype=torch.float32).requires_grad_()
    weight = normal(5, 4, dtype=torch.float32)
    conv1d_pack(x, weight, backend="cpu").sum().backward()
    assert x.grad is not None
    expected = torch.stack([weight[:, max(0, 4 - (9 - t)) :].sum(1) for t in range(9)])
    torch.testing.assert_close(x.grad, expected)


def test_half_of_a_projection_is_not_copied() -> None:
    """Case 24: rows may lie apart; entries of a row may not, and that costs a copy."""

    def copies(x: Tensor) -> bool:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            conv1d_pack(x, torch.ones(8, 4), boundaries=Boundaries.from_lengths([len(x)]), backend="cpu")
        return any(event.key in ("aten::clone", "aten::contiguous", "aten::copy_") for event in profile.key_averages())

    assert not copies(torch.zeros(16, 16)[:, 8:])
    assert copies(torch.zeros(8, 16).t())


def test_a_state_carries_a_cut_sequence_on() -> None:
    """Two halves with the state handed over are the whole, outputs and gradients."""
    x, weight = normal(11, 3), normal(3, 4, seed=1)
    dy, dlast = normal(11, 3, seed=2), normal(1, 3, 3, seed=3)
    for cut in (0, 1, 2, 3, 7, 11):
        found = []
        for pieces in ([x], [x[:cut], x[cut:]]):
            leaves = [piece.clone().requires_grad_() for piece in pieces]
            w, state, ys = weight.clone().requires_grad_(), None, []
            for leaf in leaves:
                y, state = conv1d_pack(leaf, w, initial_state=state, return_final_state=True, backend="cpu")
                ys.append(y)
            grads = torch.autograd.grad((torch.cat(ys), state), [*leaves, w], (dy, dlast))
            found.append((torch.cat(ys), torch.cat(grads[:-1]), grads[-1], state))
        for name, whole, cut_up in zip(("y", "dx", "dweight", "state"), *found, strict=True):
            torch.testing.assert_close(cut_up, whole, rtol=0, atol=1e-13, msg=f"{name}, cut at {cut}")


def test_an_empty_sequence_hands_its_state_through() -> None:
    """Case 10, with the gradient too."""
    state, weight = normal(1, 3, 3).requires_grad_(), normal(3, 4)
    empty = torch.zeros(0, 3, dtype=torch.float64)
    y, final = conv1d_pack(empty, weight, initial_state=state, return_final_state=True, backend="cpu")
    (grad,) = torch.autograd.grad(final, state, torch.ones_like(final) * 2)
    assert y.shape == (0, 3)
    assert torch.equal(final, state)
    assert torch.equal(grad, torch.full_like(grad, 2))


def test_long_and_short() -> None:
    """Case 26: T = 1 and T = 131,072."""
    weight = normal(3, 4, seed=1, dtype=torch.float32)
    for T in (1, 131_072):
        x = normal(T, 3, dtype=torch.float32)
        y = conv1d_pack(x, weight, activation="silu", backend="cpu")
        expected = F.silu(F.conv1d(F.pad(x.t()[None], (3, 0)), weight[:, None], groups=3))[0].t()
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_values_stay_finite(dtype: torch.dtype) -> None:
    """silu of a large negative number is zero, with gradient zero."""
    large = torch.tensor([[-1e30], [1e30], [-100.0], [100.0], [-88.0], [0.0]], dtype=dtype)
    found = []
    for silu in (lambda x: conv1d_pack(x, torch.ones(1, 1, dtype=dtype), activation="silu", backend="cpu"), F.silu):
        x = large.clone().requires_grad_()
        y = silu(x)
        found.append((y.detach(), torch.autograd.grad(y.sum(), x)[0]))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_exponentials_are_right_over_the_whole_range() -> None:
    """silu, to one and a half units in the last place, at any size of its argument."""
    exact = np.longdouble if np.finfo(np.longdouble).eps < 1e-18 else np.float64
    for dtype, limit in ((torch.float32, 86.0), (torch.float64, 700.0)):
        x = torch.linspace(-limit, limit, 20_001, dtype=torch.float64).to(dtype)
        y = conv1d_pack(x[:, None], torch.ones(1, 1, dtype=dtype), activation="silu", backend="cpu")[:, 0]
        wide = x.numpy().astype(exact)
        expected = wide / (1 + np.exp(-wide))
        units = np.abs(y.numpy() - expected) / np.abs(expected).clip(1e-300) / torch.finfo(dtype).eps
        assert units.max() < (1.5 if exact is np.longdouble else 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_silu_far_out(dtype: torch.dtype) -> None:
    """Where e^-x leaves the numbers: a large negative input gives nothing, and an infinite one what PyTorch gives."""
    far = torch.tensor([-3e38, -1e4, -710.0, -200.0, -104.0, -89.0, -88.0, 0.0, 88.0, 1e4, 3e38, -torch.inf])
    found = []
    for backend in ("reference", "cpu"):
        x = far.to(dtype)[:, None].requires_grad_()
        y = conv1d_pack(x, torch.ones(1, 1), activation="silu", backend=backend)
        found.append((y.detach(), torch.autograd.grad(y.sum(), x)[0]))
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-36, equal_nan=True)
