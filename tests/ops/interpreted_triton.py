"""What test_triton_interpreter.py runs in a process of its own, with Triton's interpreter in place of a GPU.

Sizes are small, an interpreted loop is slow. Tiles are smaller there too, so these sizes still cross their edges.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kernel_cases import OPERATORS, OPTIONS, assert_agrees, assert_each_is_as_alone, assert_no_leak, exact, made, run_on
from operator_cases import assert_same_bits, poisoned_memory
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.ops import _resolve, backends

# The interpreter rounds float32 to bfloat16 by cutting bits off: one unit in the last of eight places.
TOLERANCES = {torch.float64: (0.0, 1e-14), torch.float32: (0.0, 2e-6), torch.bfloat16: (2**-7, 2e-6)}
CASES = {
    "conv1d_pack": [
        ((5, 17, 0, 1), 9, 4, torch.float64, ()),
        ((2, 1, 3, 0), 3, 1, torch.float64, ()),
        ((1, 2, 16), 8, 2, torch.float32, ("bias", "initial_state")),
        ((12, 2), 3, 9, torch.float64, ("bias",)),
        ((4, 3), 16, 3, torch.bfloat16, ()),
    ],
    "ssm_pack": [
        ((17, 0, 2), 9, 3, torch.float64, ()),
        ((3, 16), 4, 1, torch.float32, ("D", "z", "delta_bias", "initial_state")),
        ((4, 3), 16, 2, torch.bfloat16, ("initial_state",)),
        ((9,), 3, 4, torch.float64, ("z",)),
    ],
}


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    with poisoned_memory():
        yield


@pytest.mark.parametrize(("name", "place"), [(name, i) for name in OPERATORS for i in range(len(CASES[name]))])
def test_agrees_with_the_reference(name: str, place: int) -> None:
    lengths, D, size, dtype, without = CASES[name][place]
    case, options = made(name, lengths, D, size, dtype, without=without), OPTIONS[name][place % 2]
    got = run_on(name, "triton", lengths, case, **options)
    assert_agrees(got, exact(name, lengths, case, **options), *TOLERANCES[dtype])


@pytest.mark.parametrize("name", OPERATORS)
def test_a_sequence_in_a_pack_has_the_bits_it_has_alone(name: str) -> None:
    lengths = (3, 17)
    case = made(name, lengths, 5, 3, torch.float32)
    assert_each_is_as_alone(name, "triton", lengths, case, **OPTIONS[name][0])


@pytest.mark.parametrize("name", OPERATORS)
def test_no_other_sequence_sees_a_change(name: str) -> None:
    lengths = (2, 5, 0)
    case = made(name, lengths, 3, 3, torch.float32)
    assert_no_leak(name, "triton", lengths, case, float("nan"), **OPTIONS[name][0])


@pytest.mark.parametrize("name", OPERATORS)
def test_strides(name: str) -> None:
    """Halves of a projection, a gradient that is one number, and a row that does not start at 16 bytes."""
    lengths, D = (7,), 16
    inputs, _, dfinal = made(name, lengths, D, 3, torch.float32)
    one = torch.ones(())
    plain = run_on(name, "triton", lengths, (inputs, one.expand(7, D).contiguous(), dfinal), **OPTIONS[name][0])

    def shifted(value: Tensor) -> Tensor:
        wide = torch.full((7, 2 * value.shape[1] + 1), float("nan"))
        wide[:, 1 : value.shape[1] + 1] = value
        return wide[:, 1 : value.shape[1] + 1]

    other = {key: shifted(value) if value.shape[0] == 7 else value for key, value in inputs.items()}
    got = run_on(name, "triton", lengths, (other, one.expand(7, D), dfinal), **OPTIONS[name][0])
    for key, value in plain.items():
        assert_same_bits(got[key], value, key)


@pytest.mark.parametrize("name", OPERATORS)
def test_next_to_nothing(name: str) -> None:
    for lengths, D in (((), 3), ((0, 0), 3), ((1, 0), 0)):
        case = made(name, lengths, D, 3, torch.float32)
        got = run_on(name, "triton", lengths, case, **OPTIONS[name][0])
        assert_agrees(got, exact(name, lengths, case, **OPTIONS[name][0]), 0.0, 1e-6)


def test_ssm_pack_extreme_values() -> None:
    """Case 25: no step times an infinite decay, a shut gate, a step above softplus's threshold."""
    inputs, dy, dfinal = made("ssm_pack", (2,), 3, 2, torch.float32, without=("delta_bias",))
    extremes: list[dict[str, float]] = [
        {"A": -3.4e38},
        {"delta": -1e6},
        {"A": -1e30, "delta": 1e6},
        {"A": 0.0, "z": -1e4},
        {"delta": 20.001, "z": 1e4},
    ]
    for values in extremes:
        case = (inputs | {k: torch.full_like(inputs[k], v) for k, v in values.items()}, dy, dfinal)
        got = run_on("ssm_pack", "triton", (2,), case, delta_softplus=True)
        assert all(bool(v.isfinite().all()) for v in got.values()), values
        assert_agrees(got, exact("ssm_pack", (2,), case, delta_softplus=True), 0.0, 1e-5)


def test_ssm_pack_writes_every_checkpoint() -> None:
    """The slots that no sequence needs too: two calls have the same results."""
    lengths = (17, 0, 16, 2)
    inputs, _, _ = made("ssm_pack", lengths, 3, 2, torch.float32)
    boundaries = Boundaries.from_lengths(lengths)
    given = [inputs[key] for key in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    given += [True, boundaries.cu_seqlens, boundaries._schedule, inputs["initial_state"], False]
    _, _, checkpoints = torch.ops.mamba_lab.ssm_pack_triton.default(*given)
    first_slots, spare = (0, 2, 3, 5), (2, 4)
    assert checkpoints.shape[0] == 6
    assert bool(checkpoints.isfinite().all())
    assert [slot for slot in range(6) if not checkpoints[slot].any()] == list(spare)
    for s in (0, 2, 3):
        assert_same_bits(checkpoints[first_slots[s]].reshape(2, 3).t(), inputs["initial_state"][s])


@pytest.mark.parametrize("name", OPERATORS)
def test_only_when_asked(name: str) -> None:
    """The interpreter is for tests: auto never takes it."""
    assert _resolve.resolve(name, "auto", "cpu") == "cpu"
    assert _resolve.resolve(name, "triton", "cpu") == "triton"
    state = next(state for state in backends() if state.name == "triton")
    assert state.available
    assert state.why.endswith("on its interpreter, on CPU tensors")
