"""What the operators refuse, what they say then, and which backend runs a call."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import numpy as np
import pytest
import torch
from operator_cases import Tensors, normal
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.log import log_once
from mamba_lab.ops import NativeUnavailable, _resolve, backends, build, conv1d_pack, ssm_pack

T, D, N, W, S = 6, 3, 2, 4, 2
LENGTHS = [4, 2]
BACKENDS = ["reference", "cpu"]
OPERATORS = {"conv1d_pack": conv1d_pack, "ssm_pack": ssm_pack}


def good(name: str, dtype: torch.dtype = torch.float32) -> Tensors:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sizes = (
        {"x": (T, D), "weight": (D, W), "bias": (D,), "initial_state": (S, D, W - 1)}
        if name == "conv1d_pack"
        else {
            "u": (T, D),
            "delta": (T, D),
            "A": (D, N),
            "B": (T, N),
            "C": (T, N),
            "D": (D,),
            "z": (T, D),
            "delta_bias": (D,),
            "initial_state": (S, D, N),
        }
    )
    narrow = ("x", "u", "delta", "B", "C", "z")
    made = {
        key: normal(*size, seed=i, dtype=dtype if key in narrow else wide)
        for i, (key, size) in enumerate(sizes.items())
    }
    if "A" in made:
        made["A"] = -made["A"].exp()
    return made


def call(name: str, inputs: dict[str, Any], **options: Any) -> Any:
    return OPERATORS[name](**inputs, **{"boundaries": Boundaries.from_lengths(LENGTHS)} | options)


CONV = [
    ({"x": [1.0]}, r"x must be a tensor \[T, D\], got list"),
    ({"x": torch.zeros(2, T, D)}, r"x must be \[T, D\], tokens first, got \[2, 6, 3\].*flatten\(0, 1\)"),
    ({"x": torch.zeros(T, D, dtype=torch.float16)}, r"x is torch.float16, expected float32.*bfloat16"),
    ({"x": torch.zeros(T, D, dtype=torch.int64)}, r"x is torch.int64"),
    ({"weight": None}, r"weight must be a tensor, got NoneType"),
    ({"weight": torch.zeros(D, 1, W)}, r"weight must be \[D, W\], got \[3, 1, 4\]"),
    ({"weight": torch.zeros(D + 1, W)}, r"weight must be \[D, W\] with D = 3 as x says, got \[4, 4\]"),
    ({"weight": torch.zeros(D, W, dtype=torch.bfloat16)}, r"weight is torch.bfloat16, expected torch.float32 beside"),
    ({"weight": torch.zeros(D, 0), "initial_state": None}, r"weight has 0 taps \(W\), expected 1 to 256"),
    ({"weight": torch.zeros(D, 257), "initial_state": None}, r"weight has 257 taps"),
    ({"bias": torch.zeros(D + 1)}, r"bias must be \[D\] with D = 3"),
    ({"bias": torch.zeros(D, device="meta")}, r"bias is on meta, x is on cpu"),
    ({"x": torch.zeros(T, D).to_sparse()}, r"x has layout torch.sparse_coo, expected a dense tensor"),
    ({"weight": torch.zeros(D, W).to_sparse_csr()}, r"weight has layout torch.sparse_csr"),
    ({"x": torch.zeros(T, D, device="meta")}, r"x is on meta, which has no values"),
    (
        {"initial_state": torch.zeros(S + 1, D, W - 1)},
        r"initial_state must be \[S, D, W - 1\] with S = 2 as boundaries",
    ),
    (
        {"initial_state": torch.zeros(S, D, W)},
        r"initial_state must be .* with W - 1 = 3 as weight says, got \[2, 3, 4\]. A state holds the W - 1",
    ),
    ({"initial_state": torch.zeros(S, D, W - 1).double()}, r"initial_state is torch.float64, expected torch.float32"),
]
SSM = [
    ({"u": torch.zeros(T, D).to_sparse()}, r"u has layout torch.sparse_coo"),
    ({"z": torch.zeros(T, D).to_sparse()}, r"z has layout torch.sparse_coo"),
    ({"u": torch.zeros(T, D, device="meta")}, r"u is on meta, which has no values"),
    ({"delta_softplus": torch.ones(2)}, r"delta_softplus must be True or False, got tensor"),
    ({"u": torch.zeros(1, T, D)}, r"u must be \[T, D\]"),
    ({"delta": torch.zeros(T, D).bfloat16()}, r"delta is torch.bfloat16, expected torch.float32 beside u"),
    ({"delta": torch.zeros(T + 1, D)}, r"delta must be \[T, D\] with T = 6 as u says"),
    ({"A": torch.zeros(D, N).bfloat16()}, r"A is torch.bfloat16, expected torch.float32"),
    ({"A": torch.zeros(N, D)}, r"A must be \[D, N\] with D = 3 as u says, got \[2, 3\]"),
    ({"B": torch.zeros(T, N + 1)}, r"B must be \[T, N\] with N = 2 as A says"),
    ({"C": torch.zeros(N, T)}, r"C must be \[T, N\] with T = 6"),
    ({"C": None}, r"C must be a tensor"),
    ({"D": torch.zeros(D, 1)}, r"D must be \[D\], got \[3, 1\]"),
    ({"z": torch.zeros(T, 2 * D)}, r"z must be \[T, D\] with D = 3"),
    ({"delta_bias": torch.zeros(D, dtype=torch.float64)}, r"delta_bias is torch.float64"),
    ({"initial_state": torch.zeros(1, D, N)}, r"initial_state must be \[S, D, N\] with S = 2.*padding and empty ones"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "wrong", "message"), [("conv1d_pack", *row) for row in CONV] + [("ssm_pack", *row) for row in SSM]
)
def test_a_wrong_tensor_is_named(name: str, wrong: dict[str, Any], message: str, backend: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        call(name, {**good(name), **wrong}, backend=backend)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_word_is_no_flag(name: str) -> None:
    for wrong in ("no", 1, None, torch.ones(1)):
        with pytest.raises(ValueError, match=f"{name}: return_final_state must be True or False, got"):
            call(name, good(name), return_final_state=wrong)
    assert len(call(name, good(name), return_final_state=np.bool_(True))) == 2


@pytest.mark.parametrize(
    ("dtype", "name", "argument", "given", "expected"),
    [
        (torch.bfloat16, "ssm_pack", "A", torch.bfloat16, "torch.float32"),
        (torch.bfloat16, "ssm_pack", "delta_bias", torch.bfloat16, "torch.float32"),
        (torch.bfloat16, "ssm_pack", "z", torch.float32, "torch.bfloat16"),
        (torch.float64, "ssm_pack", "D", torch.float32, "torch.float64"),
        (torch.float64, "ssm_pack", "initial_state", torch.float32, "torch.float64"),
        (torch.bfloat16, "conv1d_pack", "initial_state", torch.bfloat16, "torch.float32"),
        (torch.bfloat16, "conv1d_pack", "weight", torch.float64, "torch.float32 or torch.bfloat16"),
    ],
)
def test_dtypes_that_do_not_go_together(
    dtype: torch.dtype, name: str, argument: str, given: torch.dtype, expected: str
) -> None:
    """A and the states stay as wide as the arithmetic."""
    inputs = good(name, dtype)
    inputs[argument] = inputs[argument].to(given)
    with pytest.raises(ValueError, match=f"{argument} is {given}, expected {expected} beside . in {dtype}. Cast it"):
        call(name, inputs)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ([0, 4, 6], r"boundaries must be Boundaries, an int32 cu_seqlens tensor or None, got list"),
        (Boundaries.from_lengths([4, 3]), r"boundaries cover 7 tokens, (x|u) has 6"),
        (
            Boundaries.from_lengths([4, 2]).to("meta"),
            r"boundaries are on meta, (x|u) is on cpu.*boundaries.to\('cpu'\)",
        ),
        (torch.tensor([0, 5, 3, 6], dtype=torch.int32), r"boundaries: cu_seqlens\[2\] is 3"),
        (torch.tensor([1, 6], dtype=torch.int32), r"boundaries: cu_seqlens\[0\] is 1"),
        (torch.tensor([0, 5], dtype=torch.int32), r"boundaries: .*5.*6"),
        (torch.tensor([0, 6]), r"boundaries: cu_seqlens must be int32, got torch.int64"),
        (torch.tensor([0.0, 6.0]), r"boundaries: cu_seqlens must be int32, got torch.float32"),
        (torch.tensor([0.0, float("nan")]), r"boundaries: cu_seqlens must be int32"),
        (torch.tensor([0, 1, 2, 3, 0, 1], dtype=torch.int32), r"boundaries: cu_seqlens\[4\]"),
        (torch.tensor([[0, 6]], dtype=torch.int32), r"boundaries: cu_seqlens must have one dimension"),
    ],
)
def test_wrong_boundaries_are_named(name: str, boundaries: Any, message: str) -> None:
    """Cases 5 and 6: also position_indices where boundaries belong."""
    inputs = good(name)
    del inputs["initial_state"]
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        call(name, inputs, boundaries=boundaries)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_boundaries_in_every_form(name: str, backend: str) -> None:
    """Case 6: an empty sequence is fine. None is one sequence."""
    inputs = good(name)
    del inputs["initial_state"]
    raw = torch.tensor([0, 4, 4, 6], dtype=torch.int32)
    y = call(name, inputs, backend=backend)
    assert torch.equal(call(name, inputs, boundaries=raw, backend=backend), y)
    assert torch.equal(call(name, inputs, boundaries=Boundaries.from_cu_seqlens(raw), backend=backend), y)
    spread = torch.stack((raw, -raw), 1)[:, 0]  # strided
    by_hand = Boundaries(spread, torch.tensor([0, 2, 1], dtype=torch.int32), 6, 3, 4)
    assert torch.equal(call(name, inputs, boundaries=by_hand, backend=backend), y)
    one = call(name, inputs, boundaries=None, backend=backend)
    assert torch.equal(one, call(name, inputs, boundaries=Boundaries.from_lengths([6]), backend=backend))
    assert torch.equal(one[:4], y[:4])
    assert not torch.equal(one, y)


@pytest.mark.parametrize("activation", ["relu", "SiLU", True, 1])
def test_an_unknown_activation_is_refused(activation: Any) -> None:
    with pytest.raises(ValueError, match="activation must be None, 'silu' or 'swish', got"):
        call("conv1d_pack", good("conv1d_pack"), activation=activation)


def test_swish_is_silu() -> None:
    inputs = good("conv1d_pack")
    assert torch.equal(call("conv1d_pack", inputs, activation="swish"), call("conv1d_pack", inputs, activation="silu"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_some_inputs_only(name: str, backend: str) -> None:
    """Case 27: what needs no gradient gets none, and the others are what they are together."""
    inputs = good(name, torch.float64)
    every = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    together = torch.autograd.grad(call(name, every, backend=backend).square().sum(), list(every.values()))
    for key, expected in zip(inputs, together, strict=True):
        leaf = inputs[key].clone().requires_grad_()
        y = call(name, {**inputs, key: leaf}, backend=backend)
        (grad,) = torch.autograd.grad(y.square().sum(), leaf)
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-13, msg=f"d{key} alone")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_states_are_optional_results(name: str, backend: str) -> None:
    inputs = good(name, torch.float64)
    y, final = call(name, inputs, return_final_state=True, backend=backend)
    assert isinstance(call(name, inputs, backend=backend), Tensor)
    assert torch.equal(call(name, inputs, backend=backend), y)
    assert final.shape == inputs["initial_state"].shape
    leaf = inputs["initial_state"].clone().requires_grad_()
    _, final = call(name, {**inputs, "initial_state": leaf}, return_final_state=True, backend=backend)
    (grad,) = torch.autograd.grad(final.sum(), leaf)  # nothing asks for a gradient through y
    assert grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_backward_as_users_expect(name: str, backend: str) -> None:
    """Case 27: twice with retain_graph, an error without, nothing recorded without gradients."""
    inputs = good(name)
    first = next(iter(inputs))
    leaf = inputs[first].clone().requires_grad_()
    y = call(name, {**inputs, first: leaf}, backend=backend)
    y.sum().backward(retain_graph=True)
    assert leaf.grad is not None
    once = leaf.grad.clone()
    y.sum().backward()
    assert torch.equal(leaf.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    with torch.no_grad():
        assert call(name, {**inputs, first: leaf}, backend=backend).grad_fn is None
    with torch.inference_mode():
        assert torch.equal(call(name, inputs, backend=backend), y.detach())
    assert not call(name, inputs, backend=backend).requires_grad


@pytest.mark.parametrize("name", OPERATORS)
def test_a_second_derivative_is_refused_where_it_would_be_wrong(name: str) -> None:
    inputs = good(name, torch.float64)
    first = next(iter(inputs))
    leaf = inputs[first].clone().requires_grad_()
    (grad,) = torch.autograd.grad(
        call(name, {**inputs, first: leaf}, backend="cpu").square().sum(), leaf, create_graph=True
    )
    with pytest.raises(RuntimeError, match=rf"{name}_cpu_backward has no derivative.*backend='reference'"):
        grad.sum().backward()
    (grad,) = torch.autograd.grad(
        call(name, {**inputs, first: leaf}, backend="reference").square().sum(), leaf, create_graph=True
    )
    assert torch.autograd.grad(grad.sum(), leaf)[0].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_autocast_changes_nothing(name: str, dtype: torch.dtype, backend: str) -> None:
    """Case 27: activations stay as given, A and the states float32."""
    inputs = good(name, dtype)
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            y, final = call(name, leaves, return_final_state=True, backend=backend)
        assert (y.dtype, final.dtype) == (dtype, torch.float32)
        grads = torch.autograd.grad((y.float().sum(), final.sum()), list(leaves.values()))
        assert [grad.dtype for grad in grads] == [value.dtype for value in inputs.values()]
        found.append((y, final, *grads))
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)


@pytest.mark.parametrize("name", OPERATORS)
def test_auto_takes_the_kernel_and_says_so_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "mamba_lab"):
        y = call(name, good(name))
        call(name, good(name))
    assert caplog.messages == [f"{name} on the CPU runs in C++ (backend 'cpu')."]
    assert torch.equal(y, call(name, good(name), backend="cpu"))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, device: str = "cpu") -> None:
        raise NativeUnavailable(f"the C++ library {name!r}", "no C++ compiler found", "install a C++20 compiler")

    monkeypatch.setattr(build, "load_library", fails)
    monkeypatch.setattr(build, "_loaded", {})
    log_once.cache_clear()


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", OPERATORS)
def test_without_a_compiler(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 29: auto runs the reference and says why; the backend asked for raises with the remedy."""
    y = call(name, good(name))
    call(name, good(name))
    assert torch.equal(y, call(name, good(name), backend="reference"))
    assert len(caplog.messages) == 1
    assert f"{name} runs on the reference, hundreds of times slower" in caplog.text
    assert "Remedy: install a C++20 compiler" in caplog.text
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler found\nRemedy: install"):
        call(name, good(name), backend="cpu")
    assert not next(state for state in backends() if state.name == "cpu").operators


@pytest.mark.parametrize("name", OPERATORS)
def test_a_backend_that_cannot_be(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: backend must be 'auto' or one of reference, cpu.*got 'cudnn'"):
        call(name, good(name), backend="cudnn")
    for backend in ("triton", "cuda"):
        with pytest.raises(ValueError, match=f"{name}: backend '{backend}' works on cuda tensors, these are on cpu"):
            call(name, good(name), backend=backend)
    with pytest.raises(ValueError, match="backend 'cpu' works on cpu tensors, these are on cuda"):
        _resolve.resolve(name, "cpu", "cuda")
    with pytest.raises(NativeUnavailable, match=r"there is no such kernel\nRemedy: use backend='auto'"):
        _resolve.resolve("another_pack", "cuda", "cuda")
    assert _resolve.resolve(name, "auto", "mps") == "reference"


def test_the_signatures_are_the_promised_ones() -> None:
    """Names and defaults are those of causal_conv1d_fn and selective_scan_fn."""

    def form(operator: Any) -> str:
        kinds = inspect.signature(operator).parameters.values()
        return ", ".join(str(p.replace(annotation=p.empty)) for p in kinds)

    assert form(conv1d_pack) == (
        "x, weight, bias=None, boundaries=None, activation=None, initial_state=None, return_final_state=False, "
        "backend='auto'"
    )
    assert form(ssm_pack) == (
        "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, boundaries=None, "
        "initial_state=None, return_final_state=False, backend='auto'"
    )
    with pytest.raises(TypeError):
        conv1d_pack(*good("conv1d_pack").values())  # boundaries and what follows go by name


def test_backends_say_which_operators_they_run() -> None:
    found = {state.name: state.operators for state in backends()}
    assert found["reference"] == found["cpu"] == ("conv1d_pack", "ssm_pack")
    for name in OPERATORS:
        for backend in ("reference", "cpu"):
            assert _resolve.resolve(name, backend, "cpu") == backend
