"""One mean over the whole step, whatever it is cut into: cases 16, 17 and 18."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_help import each_alone, gradient_of, pack, small_model, some_sequences

from mamba_lab.batching.batch import IGNORE
from mamba_lab.training.loss import language_loss, scale_to_mean
from mamba_lab.training.step import backward


def losses_alone(lengths: list[int], seed: int = 1) -> list[torch.Tensor]:
    """By PyTorch's own cross-entropy, each sequence by itself: the losses of its targets."""
    model = small_model()
    found = []
    for ids in some_sequences(lengths, seed):
        row = torch.as_tensor(ids)[None]
        found.append(F.cross_entropy(model(row)[0, :-1], row[0, 1:], reduction="none"))
    return found


def test_micro_batches_with_1_and_9_targets_equal_one_batch_of_10() -> None:
    """Case 16."""
    two, ten = some_sequences([2, 10]), losses_alone([2, 10])
    model = small_model()
    together = backward(model, [pack(two, 12)])
    expected = gradient_of(model)
    apart = backward(model, each_alone(two))
    right, wrong = torch.cat(ten).mean().item(), (ten[0].mean() + ten[1].mean()).item() / 2
    assert together.weight == apart.weight == 10
    assert together.loss == pytest.approx(right, rel=1e-6)
    assert apart.loss == pytest.approx(right, rel=1e-6)
    assert abs(wrong - right) > 1e-3
    torch.testing.assert_close(gradient_of(model), expected, rtol=1e-5, atol=1e-7)


def test_token_mean_and_sequence_mean_of_lengths_7_and_2() -> None:
    """Case 17."""
    sequences, alone = some_sequences([7, 2]), losses_alone([7, 2])
    model = small_model()
    token = backward(model, [pack(sequences, 9)])
    assert token.loss == pytest.approx(torch.cat(alone).mean().item(), rel=1e-6)
    assert token.weight == 7
    means = [losses.mean() for losses in alone]
    sequence = backward(model, [pack(sequences, 9, weighted=True)])
    packed = gradient_of(model)
    assert sequence.loss == pytest.approx((means[0] + means[1]).item() / 2, rel=1e-6)
    assert sequence.weight == pytest.approx(2)
    assert abs(sequence.loss - token.loss) > 1e-3
    # And its gradient is the mean of the gradients of the two alone.
    each = []
    for batch in each_alone(sequences):
        backward(model, [batch])
        each.append(gradient_of(model))
    torch.testing.assert_close(packed, (each[0] + each[1]) / 2, rtol=1e-5, atol=1e-7)


def test_a_micro_batch_without_a_target_is_worth_nothing() -> None:
    """Case 18."""
    sequences = some_sequences([5, 6])
    full = pack(sequences[:1], 8)
    empty = pack(sequences[1:], 8)
    empty = replace(empty, targets=torch.full_like(empty.targets, IGNORE), n_target_tokens=0)
    model = small_model()
    expected = backward(model, [full])
    gradient = gradient_of(model)
    both = backward(model, [full, empty])
    assert (both.loss, both.weight) == (expected.loss, expected.weight)
    assert torch.equal(gradient_of(model), gradient)
    alone = backward(model, [empty])
    assert (alone.loss, alone.weight, alone.grad_norm) == (0.0, 0.0, 0.0)
    assert not gradient_of(model).any()


def test_weights_of_nothing_leave_zeros_and_no_nan() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.zeros(3)
    scale_to_mean([p], torch.zeros((), dtype=torch.float64))
    assert p.grad.tolist() == [0, 0, 0]
    p.grad = torch.full((3,), 6.0)
    scale_to_mean([p], torch.tensor(4.0, dtype=torch.float64))
    assert p.grad.tolist() == [1.5, 1.5, 1.5]
    scale_to_mean([torch.nn.Parameter(torch.ones(1))], torch.ones(()))


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), weighted=st.booleans(), data=st.data())
def test_any_split_is_one_batch(lengths: list[int], weighted: bool, data: st.DataObject) -> None:
    """Invariant 6: packs, single sequences and any grouping of either give one loss and one gradient."""
    sequences = some_sequences(lengths)
    cut = data.draw(st.integers(0, len(lengths)))
    model = small_model(n_layer=1)
    expected = backward(model, [pack(sequences, 80, weighted=weighted)])
    gradient = gradient_of(model)
    parts = [pack(part, 80, weighted=weighted) for part in (sequences[:cut], sequences[cut:]) if part]
    for split in (parts, each_alone(sequences, weighted=weighted)):
        found = backward(model, split)
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        assert found.weight == pytest.approx(expected.weight, rel=1e-6)
        torch.testing.assert_close(gradient_of(model), gradient, rtol=1e-4, atol=1e-6)


def test_the_language_loss_hands_on_targets_and_weights() -> None:
    batch = pack(some_sequences([4, 2, 3, 7]), 16, weighted=True)
    model = small_model()
    loss_sum, weight_sum = language_loss(model, batch)
    assert weight_sum.item() == pytest.approx(4)
    expected = [losses.mean() for losses in losses_alone([4, 2, 3, 7])]
    assert loss_sum.item() == pytest.approx(torch.stack(expected).sum().item(), rel=1e-6)
    assert math.isfinite(loss_sum.item())
