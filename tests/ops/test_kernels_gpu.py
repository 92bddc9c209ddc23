"""The kernels on a real GPU, every backend that has its own there: cases 2-9, 24-28 and 34, invariants 1-4."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from kernel_cases import (
    OPERATORS,
    OPTIONS,
    assert_agrees,
    assert_each_is_as_alone,
    assert_no_leak,
    exact,
    made,
    run_on,
)
from operator_cases import assert_same_bits, normal, poisoned_memory
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

from mamba_lab.batching import Boundaries
from mamba_lab.ops import _resolve, conv1d_pack, ssm_pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
TOLERANCES = {torch.float64: (0.0, 2e-13), torch.float32: (0.0, 1e-5), torch.bfloat16: (2**-8, 2e-5)}
EDGES = (7, 8, 9, 15, 16, 17, 0, 1, 31, 32, 33, 63, 64, 65, 1, 1, 2, 3)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    with poisoned_memory():
        yield


def lacks(name: str, backend: str, dtype: torch.dtype, size: int = 1) -> str:
    """What the backend cannot do of such a call."""
    return _resolve.lacks(name, dtype, size) if backend == "cuda" else ""


def check(name: str, backend: str, lengths: tuple[int, ...], D: int, size: int, dtype: torch.dtype, **kw: Any) -> None:
    """It agrees with float64, or it is refused and ``auto`` does it elsewhere."""
    slack, without = kw.pop("slack", 1), kw.pop("without", ())
    options = kw or OPTIONS[name][0]
    case = made(name, lengths, D, size, dtype, without=without, device="cuda")
    if missing := lacks(name, backend, dtype, size):
        with pytest.raises(ValueError, match=f"{name}: backend 'cuda' does not do {missing}"):
            run_on(name, backend, lengths, case, **options)
        assert _resolve.resolve(name, "auto", "cuda", missing) == "triton"
        return
    got, (narrow, wide) = run_on(name, backend, lengths, case, **options), TOLERANCES[dtype]
    assert_agrees(got, exact(name, lengths, case, fast=True, **options), narrow, slack * wide)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [1, 5, 31, 33, 64, 100, 528])
@pytest.mark.parametrize("name", OPERATORS)
def test_any_number_of_channels(name: str, D: int, dtype: torch.dtype, backend: str) -> None:
    check(name, backend, EDGES, D, {"conv1d_pack": 4, "ssm_pack": 16}[name], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("N", [1, 2, 3, 4, 8, 31, 32, 64, 100, 128, 256])
def test_any_number_of_states(N: int, dtype: torch.dtype, backend: str) -> None:
    check("ssm_pack", backend, (5, 17, 0, 40), 37, N, dtype)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("W", [1, 2, 3, 4, 5, 6, 7, 8, 9, 40, 256])
def test_any_width(W: int, activation: str | None, backend: str) -> None:
    for dtype in (torch.float32,) if W in (5, 6, 7) else DTYPES:  # Triton compiles each anew: half a minute
        check("conv1d_pack", backend, EDGES, 48, W, dtype, activation=activation)


@pytest.mark.parametrize("softplus", [True, False])
@pytest.mark.parametrize(
    "without", [("D",), ("z",), ("delta_bias",), ("initial_state",), ("D", "z", "delta_bias", "initial_state")]
)
def test_optional_inputs(without: tuple[str, ...], softplus: bool, backend: str) -> None:
    for dtype in DTYPES if softplus or backend == "cuda" else (torch.float32,):
        check("ssm_pack", backend, (20, 0, 33), 40, 16, dtype, without=without, delta_softplus=softplus)


@pytest.mark.parametrize("without", [("bias",), ("initial_state",), ("bias", "initial_state")])
def test_optional_inputs_of_the_convolution(without: tuple[str, ...], backend: str) -> None:
    for dtype in DTYPES:
        check("conv1d_pack", backend, (20, 0, 33), 40, 4, dtype, without=without, activation="silu")


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("length", [2047, 2048, 2049, 131_072])
def test_long_sequences(name: str, length: int, backend: str) -> None:
    """Cases 9 and 26. Sums over 131,072 tokens in float32 have a wider tolerance."""
    for dtype in DTYPES:
        check(name, backend, (3, length), 6, 4, dtype, slack=10 if length > 10_000 else 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [33, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_sequence_in_a_pack_has_the_bits_it_has_alone(name: str, D: int, dtype: torch.dtype, backend: str) -> None:
    """Cases 8, 9, 34; sequences that start at addresses of any alignment."""
    if missing := lacks(name, backend, dtype):
        pytest.skip(f"{backend} does not do {missing}")
    lengths = (3, 2049, *EDGES, 2047, 1, 2048, *[1] * 70, 4100)
    case = made(name, lengths, D, {"conv1d_pack": 4, "ssm_pack": 16}[name], dtype, device="cuda")
    assert_each_is_as_alone(name, backend, lengths, case, **OPTIONS[name][0])


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 32, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_bits_alone_and_packed_for_other_sizes(name: str, size: int, backend: str) -> None:
    lengths = (20, 1, 37, 0, 65)
    for dtype in DTYPES:
        if lacks(name, backend, dtype, size):
            continue
        case = made(name, lengths, 20, size, dtype, device="cuda")
        assert_each_is_as_alone(name, backend, lengths, case, **OPTIONS[name][0])


def test_bits_of_few_blocks_and_of_many(backend: str) -> None:
    """The scan's backward pass gives threads fewer registers where more blocks are under way than fit with many: here
    packed, not alone."""
    D, channels_of_block, blocks_of_processor = 2048, 64, 3
    most = blocks_of_processor * torch.cuda.get_device_properties("cuda").multi_processor_count
    sequences = most // (D // channels_of_block) + 1
    lengths = tuple(1 + 37 * i % 70 for i in range(sequences))
    case = made("ssm_pack", lengths, D, 16, torch.bfloat16, device="cuda")
    assert_each_is_as_alone("ssm_pack", backend, lengths, case, **OPTIONS["ssm_pack"][0])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", OPERATORS)
def test_no_other_sequence_sees_a_change(name: str, poison: float, backend: str) -> None:
    lengths = (5, 70, 1, 0, 64, 3)
    for dtype in (torch.float32, torch.bfloat16):
        case = made(name, lengths, 33, 4, dtype, device="cuda")
        assert_no_leak(name, backend, lengths, case, poison, **OPTIONS[name][0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_same_bits_in_every_run(name: str, dtype: torch.dtype, backend: str) -> None:
    """Invariant 3, with far more programs than the GPU runs at once, in an order that it chooses."""
    if missing := lacks(name, backend, dtype):
        pytest.skip(f"{backend} does not do {missing}")
    lengths = (700, 3, 0, 1, 500, 130, *[17] * 100)
    case = made(name, lengths, 1000, {"conv1d_pack": 4, "ssm_pack": 16}[name], dtype, device="cuda")
    first = run_on(name, backend, lengths, case, **OPTIONS[name][0])
    for _ in range(5):
        for key, value in run_on(name, backend, lengths, case, **OPTIONS[name][0]).items():
            assert_same_bits(value, first[key], key)


EXTREMES = {
    "A = 0": {"A": 0.0},
    "A very negative": {"A": -1e30},
    "A at the edge of float32": {"A": -3.4e38},
    "steps very large": {"delta": 1e6},
    "steps of zero": {"delta": -1e6},
    "steps just above the softplus threshold": {"delta": 20.001},
    "both very large": {"A": -1e30, "delta": 1e6},
    "gates shut": {"z": -1e4},
    "gates open": {"z": 1e4},
}


@pytest.mark.parametrize("values", list(EXTREMES.values()), ids=list(EXTREMES))
def test_extreme_values(values: dict[str, float], backend: str) -> None:
    """Case 25."""
    inputs, dy, dfinal = made("ssm_pack", (18, 3), 33, 4, torch.float32, without=("delta_bias",), device="cuda")
    case = (inputs | {k: torch.full_like(inputs[k], v) for k, v in values.items()}, dy, dfinal)
    got = run_on("ssm_pack", backend, (18, 3), case, delta_softplus=True)
    assert all(bool(v.isfinite().all()) for v in got.values())
    assert_agrees(got, exact("ssm_pack", (18, 3), case, delta_softplus=True), 0.0, 2e-5)


def variants(t: Tensor) -> dict[str, Tensor]:
    """Tensors equal to ``t`` [T, n] that lie in memory in other ways, between entries that may not be read."""
    T, n = t.shape
    halves, spread = t.new_full((T, 2 * n), float("nan")), t.new_full((T, 3 * n), float("nan"))
    halves[:, n:], spread[:, ::3] = t, t
    odd = t.new_full((T * (n + 1) + 1,), float("nan"))[1:].view(T, n + 1)
    odd[:, :n] = t
    return {"half": halves[:, n:], "channels first": backwards(t), "spread": spread[:, ::3], "odd": odd[:, :n]}


def backwards(t: Tensor) -> Tensor:
    """Equal to ``t``, its last dimension outermost in memory."""
    order = list(range(t.dim()))[::-1]
    return t.permute(order).contiguous().permute(order)


@pytest.mark.parametrize("D", [37, 48])
@pytest.mark.parametrize("name", OPERATORS)
def test_strides(name: str, D: int, backend: str) -> None:
    """Case 24."""
    lengths = (5, 70, 1)
    for dtype in (torch.float32, torch.bfloat16):
        inputs, dy, dfinal = case = made(name, lengths, D, 4, dtype, device="cuda")
        plain = run_on(name, backend, lengths, case, **OPTIONS[name][0])
        matrices = {key: variants(value) for key, value in inputs.items() if value.shape[0] == 76}
        for how, grad in variants(dy).items():
            other = {key: matrices[key][how] if key in matrices else value for key, value in inputs.items()}
            got = run_on(name, backend, lengths, (other, grad, dfinal), **OPTIONS[name][0])
            for key, value in plain.items():
                assert_same_bits(got[key], value, f"{key}, {how}")
        turned = {key: backwards(value) for key, value in inputs.items()}
        one = dy.new_ones(()).expand(dy.shape)
        got = run_on(name, backend, lengths, (turned, one, dfinal), **OPTIONS[name][0])
        dense = run_on(name, backend, lengths, (inputs, torch.ones_like(dy), dfinal), **OPTIONS[name][0])
        for key, value in dense.items():
            assert_same_bits(got[key], value, key)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0), (1,), (0, 4, 0)])
@pytest.mark.parametrize("name", OPERATORS)
def test_next_to_nothing(name: str, lengths: tuple[int, ...], backend: str) -> None:
    for D, size in ((5, 3), (0, 3), (5, 1)):
        case = made(name, lengths, D, size, torch.float32, device="cuda")
        got = run_on(name, backend, lengths, case, **OPTIONS[name][0])
        assert_agrees(got, exact(name, lengths, case, **OPTIONS[name][0]), 0.0, 1e-5)


def test_a_state_carries_a_cut_sequence_on(backend: str) -> None:
    """The scan cut where a tile ends: the same bits; a convolution's outputs anywhere."""
    for name, size in (("ssm_pack", 16), ("conv1d_pack", 4)):
        whole = made(name, (4096,), 40, size, torch.float32, without=("initial_state",), device="cuda")
        (inputs, dy, dfinal), options = whole, OPTIONS[name][0]
        expected = run_on(name, backend, (4096,), whole, **options)
        first = {k: v[:2048] if len(v) == 4096 else v for k, v in inputs.items()}
        second = {k: v[2048:] if len(v) == 4096 else v for k, v in inputs.items()}
        earlier = run_on(name, backend, (2048,), (first, dy[:2048], dfinal), **options)
        carried = second | {"initial_state": earlier["final_state"]}
        later = run_on(name, backend, (2048,), (carried, dy[2048:], dfinal), **options)
        earlier = run_on(name, backend, (2048,), (first, dy[:2048], later["dinitial_state"]), **options)
        assert_same_bits(torch.cat((earlier["y"], later["y"])), expected["y"])
        key = "du" if name == "ssm_pack" else "dx"
        torch.testing.assert_close(torch.cat((earlier[key], later[key])), expected[key], rtol=1e-6, atol=1e-6)
        assert_same_bits(later["final_state"], expected["final_state"])


@pytest.fixture
def most_of_the_memory() -> Iterator[None]:
    """One test at a time may ask for it, of all processes that run tests on this machine."""
    with (Path(tempfile.gettempdir()) / "mamba-lab-large-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        torch.cuda.empty_cache()


@pytest.mark.usefixtures("most_of_the_memory")
def test_offsets_beyond_32_bits(backend: str) -> None:
    """T times D above 2**31: the last sequence has the bits it has alone."""
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of free memory")
    tail, D = 70, 4096
    lengths = (*[4096] * 129, tail)
    T = sum(lengths)
    assert T * D > 2**31
    boundaries = Boundaries.from_lengths(lengths, device="cuda")
    with torch.no_grad():
        x = torch.full((T, D), 0.5, dtype=torch.bfloat16, device="cuda")
        x[-tail:] = normal(tail, D, dtype=torch.bfloat16).cuda()
        own = x[-tail:].contiguous()
        weight = normal(D, 4, dtype=torch.float32).cuda()
        A, BC = -normal(D, 1, dtype=torch.float32).exp().cuda(), x[:, :1].contiguous()
    found = []
    for value, states, where in ((x, BC, boundaries), (own, BC[-tail:].contiguous(), None)):
        leaf = value.requires_grad_()
        y = conv1d_pack(leaf, weight, activation="silu", boundaries=where, backend=backend)
        (dx,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        found.append([y[-tail:].detach().clone(), dx[-tail:].clone()])
        del y, dx
        y = ssm_pack(leaf, leaf, A, states, states, delta_softplus=True, boundaries=where, backend=backend)
        (du,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        found[-1] += [y[-tail:].detach().clone(), du[-tail:].clone()]
        del y, du
    for got, expected in zip(*found, strict=True):
        assert_same_bits(got, expected)


@pytest.mark.parametrize("name", OPERATORS)
def test_as_users_of_autograd_expect(name: str, backend: str) -> None:
    """Case 27: gradients of some inputs only, a second backward, no_grad, autocast."""
    lengths = (9, 20)
    inputs, dy, dfinal = made(name, lengths, 33, 4, torch.float32, device="cuda")
    both = {"boundaries": Boundaries.from_lengths(lengths, device="cuda"), "return_final_state": True}
    call, options = OPERATORS[name], OPTIONS[name][0] | both | {"backend": backend}
    full = run_on(name, backend, lengths, (inputs, dy, dfinal), **OPTIONS[name][0])
    for key in inputs:
        leaves = {k: v.clone().requires_grad_(k == key) for k, v in inputs.items()}
        outputs = call(**leaves, **options)
        for _ in range(2):
            (grad,) = torch.autograd.grad(outputs, leaves[key], (dy, dfinal), retain_graph=True)
            assert_same_bits(grad, full[f"d{key}"], key)
    with torch.no_grad():
        y, final = call(**inputs, **options)
    assert not y.requires_grad
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cast = call(**inputs, **options)
    assert_same_bits(cast[0], y)
    assert_same_bits(cast[1], final)


def block(x: Tensor, weights: dict[str, Tensor], boundaries: Boundaries | None, backend: str) -> Tensor:
    u, z = (x @ weights["in"]).chunk(2, dim=-1)
    u = conv1d_pack(u, weights["conv"], activation="silu", boundaries=boundaries, backend=backend)
    delta, B, C = (u @ weights["x"]).split([48, 16, 16], dim=-1)
    A = -weights["A"].exp()
    y = ssm_pack(u, delta, A, B, C, z=z, delta_softplus=True, boundaries=boundaries, backend=backend)
    return y @ weights["out"]


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_a_block_compiles_at_most_twice(compiler: str, backend: str) -> None:
    """Case 28."""
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    shapes = {"in": (24, 96), "conv": (48, 4), "x": (48, 80), "A": (48, 16), "out": (48, 24)}
    weights = {
        key: normal(*shape, seed=i, dtype=torch.float32).mul(0.2).cuda().requires_grad_()
        for i, (key, shape) in enumerate(shapes.items())
    }
    x = normal(64, 24, dtype=torch.float32).cuda()
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    for count in (1, 5, 1, 2, 11, 3, 40, 8, 1, 6):
        boundaries = Boundaries.from_lengths([1] * (count - 1) + [64 - count + 1], device="cuda")
        found = []
        for f in (compiled, block):
            y = f(x, weights, boundaries, backend)
            found.append((y, *torch.autograd.grad(y.square().sum(), list(weights.values()))))
        for got, expected in zip(*found, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name: str, full: bool, backend: str) -> None:
    torch.use_deterministic_algorithms(False)
    # The check compares whole results, and a checkpoint that belongs to no sequence is never written. Lengths whose
    # remainders add up to less than a tile leave none, here neither with 16 tokens a checkpoint nor with 32.
    lengths = (5, 1, 72)
    inputs, dy, dfinal = made(name, lengths, 24, 4, torch.float32, device="cuda")
    boundaries = Boundaries.from_lengths(lengths, device="cuda")
    order = {"conv1d_pack": ("x", "weight", "bias"), "ssm_pack": ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")}
    optional = ("bias", "D", "z", "delta_bias")
    given = [inputs[key] if full or key not in optional else None for key in order[name]]
    given += [full, boundaries.cu_seqlens, boundaries._schedule, inputs["initial_state"] if full else None]
    forward = getattr(torch.ops.mamba_lab, f"{name}_{backend}").default
    backward = getattr(torch.ops.mamba_lab, f"{name}_{backend}_backward").default
    leaves = [
        value.clone().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in given
    ]
    opcheck(forward, (*leaves, full))
    _, _, *checkpoints = forward(*given, full)
    opcheck(backward, (dy, dfinal if full else None, *given, *checkpoints))


@pytest.mark.parametrize("D", [33, 64])
def test_the_backward_passes_of_the_fused_block(D: int, backend: str) -> None:
    """They write where they are told, with the bits of the plain ones, and nothing beside it."""
    if backend != "cuda":
        pytest.skip("only the CUDA kernels have them")
    lengths = (20, 0, 65, 1)
    boundaries = Boundaries.from_lengths(lengths, device="cuda")
    where = (boundaries.cu_seqlens, boundaries._schedule)
    ops = torch.ops.mamba_lab
    for dtype in (torch.float32, torch.bfloat16):
        given, dy, _ = made("conv1d_pack", lengths, D, 4, dtype, without=("initial_state",), device="cuda")
        inputs = (given["x"], given["weight"], given["bias"], True, *where, None)
        ops.conv1d_pack_cuda(*inputs, False)
        dx, *plain = ops.conv1d_pack_cuda_backward(dy, None, *inputs)
        dxz = torch.full((len(dy), 2 * D), 7, dtype=dtype, device="cuda")
        into = ops.conv1d_pack_cuda_backward_into(dy, None, *inputs, dxz[:, :D])
        for got, expected in zip((dxz[:, :D], *into), (dx, *plain), strict=True):
            assert_same_bits(got, expected)
        assert bool((dxz[:, D:] == 7).all())

        given, dy, _ = made("ssm_pack", lengths, D, 16, dtype, without=("initial_state",), device="cuda")
        names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
        inputs = (*(given[name] for name in names), True, *where)
        y, _, checkpoints = ops.ssm_pack_cuda(*inputs, None, False)
        *plain, ddelta_bias, _ = ops.ssm_pack_cuda_backward(dy, None, *inputs, None, checkpoints)
        *inner, dxz, inner_bias, again = ops.ssm_pack_cuda_backward_inner(dy, *inputs, checkpoints)
        for got, expected in zip((*inner, dxz[:, D:], inner_bias), (*plain, ddelta_bias), strict=True):
            assert_same_bits(got, expected)
        torch.testing.assert_close(again, y, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-5)


def test_auto_takes_the_fastest_kernel(backend: str) -> None:
    for name in OPERATORS:
        assert _resolve.resolve(name, "auto", "cuda") in ("cuda", backend)
