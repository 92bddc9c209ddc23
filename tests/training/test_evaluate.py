"""Validation is one mean over every target, whatever batch it lies in."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_help import chunks, each_alone, pack, small_model, some_sequences
from torch import nn

from mamba_lab.batching import pad_collate
from mamba_lab.batching.batch import IGNORE
from mamba_lab.training.evaluate import Validation, evaluate


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 14), min_size=1, max_size=7), capacity=st.integers(14, 40))
def test_packs_padding_and_one_at_a_time_agree(lengths: list[int], capacity: int) -> None:
    sequences, model = some_sequences(lengths), small_model(n_layer=1)
    losses = [
        F.cross_entropy(model(torch.as_tensor(ids)[None])[0, :-1], torch.as_tensor(ids)[1:], reduction="sum").item()
        for ids in sequences
    ]
    targets = sum(lengths) - len(lengths)
    forms = ([pack(sequences, capacity)], [pad_collate(sequences, pad_id=0)], each_alone(sequences))
    for batches in forms:
        found = evaluate(model, batches)
        assert found.weight == targets
        assert found.batches == len(batches)
        if targets:
            assert found.loss == pytest.approx(sum(losses) / targets, rel=1e-5)
            assert found.perplexity == pytest.approx(math.exp(found.loss))
        else:
            assert math.isnan(found.loss)


def test_a_perplexity_that_no_float_holds_is_infinite() -> None:
    assert Validation(1e4, 1, 1).perplexity == math.inf


def test_fixed_chunks_cut_contexts_and_so_have_another_loss() -> None:
    sequences, model = some_sequences([20, 30]), small_model(n_layer=1)
    whole, cut = evaluate(model, [pack(sequences, 50)]), evaluate(model, [chunks(sequences)])
    assert whole.weight == cut.weight == 48
    assert abs(whole.loss - cut.loss) > 1e-4


def test_a_last_small_batch_counts_for_what_it_holds() -> None:
    sequences, model = some_sequences([30, 2]), small_model(n_layer=1)
    alone = each_alone(sequences)
    means = [evaluate(model, [batch]).loss for batch in alone]
    both = evaluate(model, alone).loss
    assert both == pytest.approx((29 * means[0] + means[1]) / 30, rel=1e-6)
    assert abs(both - sum(means) / 2) > 1e-3


def test_weights_count() -> None:
    sequences, model = some_sequences([9, 3]), small_model(n_layer=1)
    means = [evaluate(model, [batch]).loss for batch in each_alone(sequences)]
    found = evaluate(model, [pack(sequences, 12, weighted=True)])
    assert found.loss == pytest.approx(sum(means) / 2, rel=1e-6)
    assert found.weight == pytest.approx(2)


def test_model_and_gradients_stay_as_they_are() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.seen: list[tuple[bool, bool]] = []

        def forward(self) -> torch.Tensor:
            self.seen.append((self.training, torch.is_grad_enabled()))
            return self.weight * 3

    model = Dropped().train()
    model.weight.grad = torch.tensor(5.0)
    batch = pack(some_sequences([3]))
    assert evaluate(model, [batch], loss=lambda m, b: (m(), torch.tensor(2.0))).loss == 1.5
    assert model.seen == [(False, False)]
    assert model.training
    assert model.weight.grad == 5
    with pytest.raises(ZeroDivisionError):
        evaluate(model, [batch], loss=lambda m, b: 1 / 0)
    assert model.training
    model.eval()
    evaluate(model, [batch], loss=lambda m, b: (m(), torch.tensor(2.0)))
    assert not model.training


def test_nothing_to_validate_on() -> None:
    model = small_model(n_layer=1)
    found = evaluate(model, [])
    assert math.isnan(found.loss)
    assert (found.weight, found.batches) == (0, 0)
    batch = pack(some_sequences([4]))
    masked = replace(batch, targets=torch.full_like(batch.targets, IGNORE), n_target_tokens=0)
    assert math.isnan(evaluate(model, [masked]).loss)


def test_bfloat16_is_near() -> None:
    sequences, model = some_sequences([20, 30]), small_model(n_layer=1)
    exact, rough = (evaluate(model, [pack(sequences, 50)], bf16=on).loss for on in (False, True))
    assert rough == pytest.approx(exact, rel=2e-2)
    assert rough != exact
