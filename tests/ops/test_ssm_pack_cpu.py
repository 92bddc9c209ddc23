"""The C++ scan: equal to the reference, the same bits alone and packed, whatever the number of threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.ops import reference, ssm_pack

INPUTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
PER_TOKEN = ("u", "delta", "B", "C", "z")
PER_SEQUENCE = ("initial_state",)
Results = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One call: sequences, sizes, and which of the optional inputs it has."""

    lengths: tuple[int, ...]
    D: int
    N: int
    dtype: torch.dtype = torch.float64
    optional: tuple[str, ...] = ("D", "z", "delta_bias", "initial_state")
    softplus: bool = True

    @property
    def state_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)

    @functools.cached_property
    def inputs(self) -> Results:
        random = torch.Generator().manual_seed(0)

        def normal(*shape: int, dtype: torch.dtype = self.state_dtype) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

        T, S, D, N = sum(self.lengths), len(self.lengths), self.D, self.N
        made = {name: normal(T, N if name in "BC" else D, dtype=self.dtype) for name in PER_TOKEN}
        if not self.softplus:
            made["delta"] = made["delta"].abs() / 4
        made |= {"A": -torch.exp(normal(D, N) / 2), "D": normal(D), "delta_bias": normal(D) / 4}
        made |= {"initial_state": normal(S, D, N), "dy": normal(T, D, dtype=self.dtype), "dfinal": normal(S, D, N)}
        return {k: v for k, v in made.items() if k not in INPUTS[5:] or k in self.optional}


def run(case: Case, inputs: Results | None = None, wanted: tuple[str, ...] = INPUTS) -> Results:
    """y, the final states, and the gradient of each wanted input, by the kernel."""
    values = dict(case.inputs if inputs is None else inputs)
    dy, dfinal = values.pop("dy"), values.pop("dfinal", None)  # None: the loss does not look at the final states
    leaves = {k: v.detach().requires_grad_(k in wanted) for k, v in values.items()}
    y, final_state = ssm_pack(
        **leaves,
        delta_softplus=case.softplus,
        boundaries=Boundaries.from_cu_seqlens(case.cu_seqlens),
        return_final_state=True,
        backend="cpu",
    )
    names = [k for k in leaves if k in wanted]
    outputs, seeds = ((y,), (dy,)) if dfinal is None else ((y, final_state), (dy, dfinal))
    grads = torch.autograd.grad(outputs, [leaves[k] for k in names], seeds)
    return {"y": y.detach(), "final_state": final_state.detach(), **dict(zip(names, grads, strict=True))}


@functools.cache
def expected(case: Case) -> Results:
    """The same by the reference, in float64."""
    values = {k: v.double() for k, v in case.inputs.items()}
    dy, dfinal = values.pop("dy"), values.pop("dfinal")
    leaves = {k: v.requires_grad_() for k, v in values.items()}
    y, final_state = reference.ssm_pack(**leaves, delta_softplus=case.softplus, cu_seqlens=case.cu_seqlens)
    grads = torch.autograd.grad((y, final_state), list(leaves.values()), (dy, dfinal), allow_unused=True)
    zeros = (torch.zeros_like(v) if g is None else g for v, g in zip(leaves.values(), grads, strict=True))
    return {"y": y.detach(), "final_state": final_state.detach(), **dict(zip(leaves, zeros, strict=True))}


def error(got: Tensor, want: Tensor) -> float:
    """The largest error, as a part of the largest value."""
    assert got.shape == want.shape
    return 0.0 if want.numel() == 0 else float((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-300))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def alone(case: Case, inputs: Results, s: int) -> tuple[Case, Results]:
    start, stop = case.cu_seqlens[s : s + 2].tolist()
    part = {k: v[start:stop] if k in (*PER_TOKEN, "dy") else v for k, v in inputs.items()}
    part |= {k: v[s : s + 1] for k, v in part.items() if k in (*PER_SEQUENCE, "dfinal")}
    return replace(case, lengths=(stop - start,)), part


def one_sequence(case: Case, results: Results, s: int) -> Results:
    """What belongs to sequence s alone."""
    start, stop = case.cu_seqlens[s : s + 2].tolist()
    tokens = {k: results[k][start:stop] for k in ("y", *PER_TOKEN) if k in results}
    return tokens | {k: results[k][s : s + 1] for k in ("final_state", *PER_SEQUENCE) if k in results}


def unequal_to_alone(case: Case, packed: Results, s: int, one: Results) -> list[str]:
    """What of sequence s differs between the pack and the sequence alone."""
    return [k for k, v in one_sequence(case, packed, s).items() if not same_bits(v, one[k])]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """New memory is filled with NaN: an element that nobody writes shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


EVERYTHING = Case((5, 17, 0, 1, 16, 33, 15), 33, 16)
CASES = {
    "everything": EVERYTHING,
    "no options": replace(EVERYTHING, optional=(), softplus=False),
    "softplus, no bias": replace(EVERYTHING, optional=("z",)),
    "bias, no softplus": replace(EVERYTHING, optional=("delta_bias", "D"), softplus=False),
    "states only": replace(EVERYTHING, optional=("initial_state",)),
    "one channel, one state": Case((40, 3), 1, 1),
    "7 channels, 8 states": Case((31, 32), 7, 8),
    "16 channels, 32 states": Case((20, 1), 16, 32),
    "512 channels": Case((18,), 512, 16, torch.float32),
    "5 channels, 64 states": Case((12, 7), 5, 64),
    "odd numbers of states": Case((19,), 3, 31),
    "256 states": Case((17,), 2, 256),
    "float32": replace(EVERYTHING, dtype=torch.float32),
    "bfloat16": replace(EVERYTHING, dtype=torch.bfloat16),
    "one-token sequences": Case((1,) * 40, 3, 4),
    "many channels in bfloat16": Case((3, 2), 100, 5, torch.bfloat16),
    "no tokens": Case((0, 0), 5, 3),
}
TOLERANCE = {torch.float64: 2e-14, torch.float32: 4e-6, torch.bfloat16: 2**-8}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, id=f"{title}, {name}")
        for title, case in CASES.items()
        for name in ("y", "final_state", *INPUTS[:5], *case.optional)
    ],
)
def test_agrees_with_the_reference(case: Case, name: str) -> None:
    got, want = run(case, wanted=(name if name in INPUTS else "u",)), expected(case)
    dtype = case.state_dtype if got[name].dtype == case.state_dtype else case.dtype
    assert error(got[name], want[name]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("length", [2047, 2048, 2049])
def test_long_sequences_agree_with_the_reference(length: int) -> None:
    case = Case((3, length), 2, 3)
    got, want = run(case), expected(case)
    assert {k: v for k in want if (v := error(got[k], want[k])) > 1e-13} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("D", [1, 7, 33, 70])
def test_a_pack_gives_the_bits_of_each_sequence_alone(D: int, dtype: torch.dtype) -> None:
    case = Case((1, 15, 16, 17, 0, 31, 1, 1, 33, 100, 300, 2), D, 16, dtype)
    without_states = {k: v for k, v in case.inputs.items() if k not in ("initial_state", "dfinal")}
    for inputs in (case.inputs, without_states):
        packed = run(case, inputs)
        for s in range(len(case.lengths)):
            assert unequal_to_alone(case, packed, s, run(*alone(case, inputs, s))) == []


@pytest.mark.parametrize("N", [1, 5, 8, 64])
def test_bits_alone_and_packed_for_other_numbers_of_states(N: int) -> None:
    case = Case((20, 1, 37), 20, N, torch.float32)
    packed = run(case)
    for s in range(3):
        assert unequal_to_alone(case, packed, s, run(*alone(case, case.inputs, s))) == []


@pytest.mark.parametrize("before", [0, 1, 15, 16, 700])
def test_the_place_of_a_long_sequence_changes_nothing(before: int) -> None:
    """Lengths around every edge of a tile and beyond 2,048, at places that are no multiple of anything."""
    for length in (2047, 2048, 2049, 2065, 4099):
        case = Case((before, length, 3), 3, 4, torch.float32)
        assert unequal_to_alone(case, run(case), 1, run(*alone(case, case.inputs, 1))) == []


def test_a_channels_bits_do_not_depend_on_its_neighbours() -> None:
    """A block of channels may end anywhere: every channel is computed in the same way."""
    case = Case((21, 18), 40, 16, torch.float32)
    whole = run(case)
    for d in (0, 1, 15, 16, 31, 32, 39):
        part = {k: v[:, d : d + 1] if k in ("u", "delta", "z", "dy") else v for k, v in case.inputs.items()}
        part |= {k: part[k][d : d + 1] for k in ("A", "D", "delta_bias")}
        part |= {k: part[k][:, d : d + 1] for k in ("initial_state", "dfinal")}
        one = run(replace(case, D=1), part)
        assert all(same_bits(whole[k][:, d : d + 1], one[k]) for k in ("y", "u", "delta", "z", "final_state"))
        assert all(same_bits(whole[k][d : d + 1], one[k]) for k in ("A", "D", "delta_bias"))


@pytest.mark.parametrize("states", [False, True], ids=["from zeros", "from states"])
@pytest.mark.parametrize("broken", ["u", "delta", "B", "C", "z", "dy", "initial_state", "dfinal"])
def test_nothing_of_a_broken_sequence_reaches_another(broken: str, states: bool) -> None:
    case = Case((20, 33, 0, 17), 19, 16, torch.float32)
    given = case.inputs
    if not states and broken not in ("initial_state", "dfinal"):
        given = {k: v for k, v in given.items() if k not in ("initial_state", "dfinal")}
    clean = run(case, given)
    for s in (0, 1, 3):
        inputs = {k: v.clone() for k, v in given.items()}
        start, stop = case.cu_seqlens[s : s + 2].tolist()
        if broken in ("initial_state", "dfinal"):
            inputs[broken][s] = float("nan")
        else:
            inputs[broken][start:stop] = float("nan")
        dirty = run(case, inputs)
        assert unequal_to_alone(case, dirty, s, one_sequence(case, clean, s)) != []
        for other in {0, 1, 2, 3} - {s}:
            assert unequal_to_alone(case, dirty, other, one_sequence(case, clean, other)) == []
            assert all(bool(torch.isfinite(v).all()) for v in one_sequence(case, dirty, other).values())


@pytest.mark.parametrize("lengths", [(20, 33, 0, 17, 600), (0, 1, 1)])
def test_a_loss_of_y_alone_is_one_whose_final_states_weigh_nothing(lengths: tuple[int, ...]) -> None:
    case = Case(lengths, 19, 16, torch.float32)
    none = run(case, {k: v for k, v in case.inputs.items() if k != "dfinal"})
    zero = run(case, case.inputs | {"dfinal": torch.zeros_like(case.inputs["dfinal"])})
    assert [k for k, v in none.items() if not same_bits(v, zero[k])] == []


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "case",
    [
        Case((400, 3, 250, 300, 1, 1, 0, 40), 70, 16, torch.float32),
        Case((1,) * 900, 33, 4, torch.bfloat16),
        Case((700,), 200, 8, torch.float32),
    ],
    ids=["mixed", "one-token sequences", "one sequence"],
)
def test_the_number_of_threads_changes_no_bit(case: Case) -> None:
    torch.set_num_threads(1)
    first = run(case)
    for number in (1, 2, 3, 5, 2):
        torch.set_num_threads(number)
        again = run(case)
        assert [k for k, v in first.items() if not same_bits(v, again[k])] == []


def test_long_sequences_can_be_cut_where_a_tile_ends() -> None:
    """131,072 tokens in one go, and in two with the state handed on: the same bits, forward and backward."""
    case = Case((131_072,), 2, 4, torch.float32)
    whole = run(case)
    half = replace(case, lengths=(65_536,))

    def part(at: slice, **states: Tensor) -> Results:
        return {k: v[at] if k in (*PER_TOKEN, "dy") else v for k, v in case.inputs.items()} | states

    first, second = slice(0, 65_536), slice(65_536, None)
    middle = run(half, part(first), ("u",))["final_state"]
    later = run(half, part(second, initial_state=middle))
    earlier = run(half, part(first, dfinal=later["initial_state"]))
    for name in ("y", *PER_TOKEN):
        assert same_bits(torch.cat((earlier[name], later[name])), whole[name])
    assert same_bits(later["final_state"], whole["final_state"])
    assert same_bits(earlier["initial_state"], whole["initial_state"])
    assert error(earlier["A"] + later["A"], whole["A"].double()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strided_inputs_give_the_same_bits(dtype: torch.dtype) -> None:
    case = Case((20, 9), 24, 16, dtype)
    plain = run(case)
    values = dict(case.inputs)
    halves = torch.cat((values["u"], values["z"]), dim=1)
    projected = torch.cat((values["delta"], values["B"], values["C"]), dim=1)
    values["u"], values["z"] = halves.chunk(2, dim=1)
    values["delta"], values["B"], values["C"] = projected.split((24, 16, 16), dim=1)
    assert not values["z"].is_contiguous()
    strided = run(case, values)
    assert [k for k, v in plain.items() if not same_bits(v, strided[k])] == []


def test_inputs_with_any_strides_give_the_same_bits() -> None:
    case = Case((20, 9), 24, 16, torch.float32)
    backwards = {k: v.permute(*range(v.dim())[::-1]).contiguous() for k, v in case.inputs.items()}
    other = run(case, {k: v.permute(*range(v.dim())[::-1]) for k, v in backwards.items()})
    assert [k for k, v in run(case).items() if not same_bits(v, other[k])] == []
    ones = case.inputs | {"dy": torch.ones(()).expand(29, 24)}
    dense = case.inputs | {"dy": torch.ones(29, 24)}
    assert same_bits(run(case, ones)["delta"], run(case, dense)["delta"])


EXTREMES = {
    "A = 0": {"A": 0.0},
    "A very negative": {"A": -1e30},
    "A at the edge of float32": {"A": -3.4e38},
    "steps very large": {"delta": 1e6},
    "steps of zero": {"delta": -1e6},
    "steps near the softplus threshold": {"delta": 20.0},
    "steps just above it": {"delta": 20.001},
    "both very large": {"A": -1e30, "delta": 1e6},
    "gates shut": {"z": -1e4},
    "gates open": {"z": 1e4},
}


@pytest.mark.parametrize("values", list(EXTREMES.values()), ids=list(EXTREMES))
def test_extreme_values(values: dict[str, float]) -> None:
    case = Case((18, 3), 5, 4, torch.float32, ("z", "D", "initial_state"))
    inputs = case.inputs | {k: torch.full_like(case.inputs[k], v) for k, v in values.items()}
    got = run(case, inputs)
    leaves = {k: v.double().requires_grad_() for k, v in inputs.items()}
    dy, dfinal = leaves.pop("dy").detach(), leaves.pop("dfinal").detach()
    want = reference.ssm_pack(**leaves, delta_softplus=True, cu_seqlens=case.cu_seqlens)
    grads = torch.autograd.grad(want, list(leaves.values()), (dy, dfinal))
    for name, value in zip(("y", "final_state", *leaves), (*want, *grads), strict=True):
        assert bool(torch.isfinite(got[name]).all()), name
        assert error(got[name], value.detach()) < 1e-5, name


def test_states_that_grow() -> None:
    """A positive A is legal: the scan has no opinion about it."""
    case = Case((30,), 5, 4)
    inputs = case.inputs | {"A": case.inputs["A"].abs() / 8}
    got = run(case, inputs)["y"]
    leaves = {k: v for k, v in inputs.items() if k not in ("dy", "dfinal")}
    y, _ = reference.ssm_pack(**leaves, delta_softplus=True, cu_seqlens=case.cu_seqlens)
    assert error(got, y) < 1e-12


def test_an_empty_sequence_hands_its_state_through() -> None:
    case = Case((0, 5, 0), 9, 16, torch.float32)
    got = run(case)
    for s in (0, 2):
        assert same_bits(got["final_state"][s], case.inputs["initial_state"][s])
        assert same_bits(got["initial_state"][s], case.inputs["dfinal"][s])


@pytest.mark.usefixtures("poisoned")
def test_without_channels_the_projections_get_a_gradient_of_zero() -> None:
    got = run(Case((3, 17), 0, 16))
    for name in ("B", "C"):
        assert got[name].shape == (20, 16)
        assert bool((got[name] == 0).all())


@pytest.mark.parametrize("shape", [((), 4, 3), ((0,), 4, 3), ((3,), 0, 3), ((3,), 4, 0)])
def test_nothing_at_all(shape: tuple[tuple[int, ...], int, int]) -> None:
    lengths, D, N = shape
    case = Case(lengths, D, N, torch.float32)
    got = run(case)
    assert got["y"].shape == (sum(lengths), D)
    assert all(got[k].shape == case.inputs[k].shape for k in INPUTS)
    assert all(bool(torch.isfinite(v).all()) for v in got.values())


@pytest.mark.usefixtures("poisoned")
def test_checkpoints_lie_where_the_schema_says() -> None:
    case = Case((0, 17, 16, 1), 5, 3, torch.float32)
    values = [case.inputs[k] for k in INPUTS[:8]]
    bounds = Boundaries.from_cu_seqlens(case.cu_seqlens)
    outputs = torch.ops.mamba_lab.ssm_pack_cpu(*values, True, bounds.cu_seqlens, bounds.order, None, False)
    assert outputs[1].numel() == 0  # no final state asked for, none written
    slots = outputs[2]
    assert slots.shape == (34 // 16 + 4, 5, 3)
    assert bool(torch.isfinite(slots).all())  # also the unused ones are written: equal inputs give equal outputs
    firsts = [start // 16 + s for s, (start, _) in enumerate(pairwise([0, *accumulate(case.lengths)]))]
    assert all(not slots[firsts[s]].any() for s in (1, 2, 3))  # zero before a first token
    assert same_bits(slots[firsts[2] - 1].flatten().sort().values, _state_after(case, 16).flatten().sort().values)


def _state_after(case: Case, tokens: int) -> Tensor:
    cut, part = alone(replace(case, optional=case.optional[:3]), case.inputs, 1)
    part = {k: v[:tokens] if k in (*PER_TOKEN, "dy") else v for k, v in part.items() if k != "initial_state"}
    return run(replace(cut, lengths=(tokens,)), part)["final_state"]
