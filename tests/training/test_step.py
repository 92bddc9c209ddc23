"""One step: accumulation, ranks, clipping, numbers that are none, precision, checkpointing, compilation."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from loop_help import each_alone, gradient_of, pack, small_model, some_sequences
from torch import Tensor

from mamba_lab.batching import Batch
from mamba_lab.training.loss import language_loss
from mamba_lab.training.step import StepResult, backward, gradients, update

LENGTHS = [4, 2, 3, 7]


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def weights_of(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_two_ranks_are_one_process() -> None:
    """Each rank has half of the sequences, of unequal numbers of targets; sums and gradients are added up."""
    sequences = some_sequences([9, 2, 3, 7])
    model = small_model()
    expected = backward(model, [pack(sequences, 32)])
    gradient = gradient_of(model)
    halves = [[pack(sequences[:1], 16)], each_alone(sequences[1:])]
    given: list[list[Tensor]] = []

    def remember(tensors: Sequence[Tensor]) -> None:
        given.append([tensor.clone() for tensor in tensors])

    for half in halves:
        backward(model, half, sum_over_ranks=remember)

    def add(tensors: Sequence[Tensor]) -> None:
        for tensor, *others in zip(tensors, *given, strict=True):
            tensor.copy_(sum(others))

    for half in halves:
        found = backward(model, half, sum_over_ranks=add)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.weight == expected.weight == 17
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
        torch.testing.assert_close(gradient_of(model), gradient, rtol=1e-5, atol=1e-7)
    # The rank bug: the mean of the two means.
    means = [backward(model, half).loss for half in halves]
    assert abs(sum(means) / 2 - expected.loss) > 1e-3


def test_a_step_begins_without_old_gradients() -> None:
    model, batch = small_model(), pack(some_sequences(LENGTHS))
    backward(model, [batch])
    once = gradient_of(model)
    backward(model, [batch])
    assert torch.equal(gradient_of(model), once)


def test_the_norm_is_before_clipping_and_the_gradient_after_it() -> None:
    model, batch = small_model(), pack(some_sequences(LENGTHS))
    found = backward(model, [batch])
    assert found.grad_norm == pytest.approx(gradient_of(model).norm().item(), rel=1e-5)
    expected = gradient_of(model) * (0.01 / found.grad_norm)
    assert update(model, adamw(model), found, 0.01)
    torch.testing.assert_close(gradient_of(model), expected, rtol=1e-5, atol=1e-9)
    for off in (None, 0.0, 1e9):
        backward(model, [batch])
        before = gradient_of(model)
        assert update(model, adamw(model), found, off)
        assert torch.equal(gradient_of(model), before)


def poisoned(model: torch.nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    loss_sum, weight_sum = language_loss(model, batch)
    return loss_sum * (math.nan if 3 in batch.sequence.tolist() else 1.0), weight_sum


def test_a_step_that_is_no_number_changes_nothing() -> None:
    model, batches = small_model(), each_alone(some_sequences(LENGTHS))
    optimizer = adamw(model)
    backward(model, batches)
    assert update(model, optimizer, backward(model, batches))
    before, state = weights_of(model), copy.deepcopy(optimizer.state_dict())
    found = backward(model, batches, loss=poisoned)
    assert not found.finite
    assert [math.isfinite(value) for value in found.micro_losses] == [True, True, True, False]
    assert not update(model, optimizer, found, 1.0)
    assert torch.equal(weights_of(model), before)
    assert str(optimizer.state_dict()) == str(state)
    assert update(model, optimizer, backward(model, batches), 1.0)
    assert torch.isfinite(weights_of(model)).all()


@pytest.mark.parametrize(
    "result",
    [
        StepResult(1.0, 0.0, 0.0, [0.0]),
        StepResult(math.nan, 3.0, 1.0, [0.0]),
        StepResult(1.0, 3.0, math.inf, [0.0]),
        StepResult(math.inf, 3.0, 1.0, [0.0]),
    ],
)
def test_no_update_without_something_to_learn(result: StepResult) -> None:
    model = small_model()
    backward(model, [pack(some_sequences(LENGTHS))])
    before = weights_of(model)
    assert not update(model, adamw(model), result)
    assert torch.equal(weights_of(model), before)


def test_bfloat16_on_the_cpu_keeps_float32_weights_and_gradients() -> None:
    model, batch = small_model(), pack(some_sequences(LENGTHS))
    exact = backward(model, [batch])
    found = backward(model, [batch], bf16=True)
    assert found.loss == pytest.approx(exact.loss, rel=2e-2)
    assert found.loss != exact.loss
    assert {g.dtype for g in gradients(model.parameters())} == {torch.float32}
    assert update(model, adamw(model), found)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_gradient_checkpointing_changes_no_number() -> None:
    model, batches = small_model(), each_alone(some_sequences(LENGTHS))
    plain = backward(model, batches)
    gradient = gradient_of(model)
    model.set_gradient_checkpointing()
    assert backward(model, batches) == plain
    assert torch.equal(gradient_of(model), gradient)


def test_a_compiled_model_takes_the_same_step() -> None:
    model, batches = small_model(), [pack(some_sequences(LENGTHS)), *each_alone(some_sequences([5, 6]))]
    plain = backward(model, batches)
    gradient = gradient_of(model)
    compiled = torch.compile(model, backend="aot_eager")
    found = backward(compiled, batches)
    assert found.loss == pytest.approx(plain.loss, rel=1e-5)
    torch.testing.assert_close(gradient_of(model), gradient, rtol=1e-4, atol=1e-6)


def test_the_same_step_twice_has_the_same_bits() -> None:
    batches = each_alone(some_sequences(LENGTHS))
    runs = []
    for _ in range(2):
        model = small_model()
        found = backward(model, batches)
        update(model, adamw(model), found, 1.0)
        runs.append((found, weights_of(model)))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])


def test_frozen_parameters_are_no_part_of_the_step() -> None:
    model, batch = small_model(), pack(some_sequences(LENGTHS))
    for p in model.backbone.layers[0].parameters():
        p.requires_grad_(False)
    found = backward(model, [batch])
    assert found.grad_norm == pytest.approx(gradient_of(model).norm().item(), rel=1e-5)
    assert model.backbone.layers[0].mixer.D.grad is None


def test_weights_of_sequences_are_one_mean_over_all_micro_batches() -> None:
    sequences = some_sequences(LENGTHS)
    model = small_model()
    whole = backward(model, [pack(sequences, weighted=True)])
    halves = [pack(sequences[:3], weighted=True), pack(sequences[3:], weighted=True)]
    assert backward(model, halves).loss == pytest.approx(whole.loss, rel=1e-6)
    unweighted = [replace(half, weights=None) for half in halves]
    assert abs(backward(model, unweighted).loss - whole.loss) > 1e-4


def test_a_step_of_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batches is empty: a step needs at least one micro-batch"):
        backward(small_model(), [])


def test_loss_and_gradient_are_divided_by_the_same_weights() -> None:
    """Weights of one's own may add up to less than nothing, or to no number: the gradient is then no silent zero."""
    model, batch = small_model(), pack(some_sequences([5, 3]))
    for value in (-1.0, math.nan):
        weights = torch.full(batch.targets.shape, value)
        result = backward(model, [replace(batch, weights=weights)])
        gradient = gradient_of(model)
        assert bool(gradient.isfinite().all()) is result.finite is (value == -1.0)
    plain = backward(model, [batch])
    backward(model, [replace(batch, weights=torch.full(batch.targets.shape, -1.0))])
    assert plain.grad_norm > 0
    assert gradient_of(model).norm().item() == pytest.approx(plain.grad_norm, rel=1e-5)
