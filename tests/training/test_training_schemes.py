"""What each scheme makes of the same documents; packs teach what one sequence at a time does, and leaking does not."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from data_help import SCHEMES, Settings, contents, settings, texts
from hypothesis import given
from hypothesis import strategies as st
from loop_help import gradient_of, small_model

from mamba_lab.batching import pack_collate, pack_sequential
from mamba_lab.batching.packing import pack_greedy
from mamba_lab.log import log_once
from mamba_lab.training.planned import dealt
from mamba_lab.training.rearrange import joined, one_by_one
from mamba_lab.training.step import backward

__all__ = ["settings"]

LENGTHS = [5, 30, 1, 12, 23, 24, 60, 7, 9, 2, 18, 3, 40]


def losses(settings: Settings, scheme: str, **sections: Any) -> list[tuple[float, torch.Tensor]]:
    """Loss and gradient of every step of an epoch, with the same weights throughout."""
    model = small_model(vocab_size=settings.tokenizer.vocab_size)
    data = settings.data(texts(LENGTHS), scheme, **sections)
    return [(backward(model, step).loss, gradient_of(model)) for step in data.steps(0, 2)]


@pytest.mark.parametrize("weighting", ["token", "sequence"])
def test_packed_is_one_at_a_time_at_every_step_and_concat_is_not(settings: Settings, weighting: str) -> None:
    sections = {"loss": {"weighting": weighting}}
    packed, alone, leaking = (
        losses(settings, scheme, **sections) for scheme in ("packed-greedy", "one-at-a-time", "concat")
    )
    assert len(packed) > 2
    for (loss, gradient), (loss_alone, gradient_alone) in zip(packed, alone, strict=True):
        assert loss == pytest.approx(loss_alone, rel=1e-5)
        torch.testing.assert_close(gradient, gradient_alone, rtol=1e-4, atol=1e-5)
    for (loss, gradient), (leaking_loss, leaking_gradient) in zip(packed, leaking, strict=True):
        assert loss != pytest.approx(leaking_loss, rel=2e-5)
        assert (gradient - leaking_gradient).norm() > 0.01 * gradient.norm()


def test_the_sequences_of_a_pack_are_one_step(settings: Settings) -> None:
    packs = list(settings.data(texts(LENGTHS)).steps(0, 1))
    steps = list(settings.data(texts(LENGTHS), "one-at-a-time").steps(0, 1))
    assert len(packs) == len(steps)
    for (pack,), alone in zip(packs, steps, strict=True):
        assert [number for batch in alone for number in batch.sequence.tolist()] == [
            number for number in pack.sequence.tolist() if number >= 0
        ]
        assert all(batch.input_ids.shape == (1, batch.n_tokens) for batch in alone)
        assert sum(batch.n_target_tokens for batch in alone) == pack.n_target_tokens


sequences = st.lists(st.lists(st.integers(1, 9), min_size=0, max_size=8), min_size=0, max_size=7)


@given(sequences, st.integers(8, 12), st.booleans())
def test_one_by_one_has_everything_in_its_own_batch(ids: list[list[int]], capacity: int, weighted: bool) -> None:
    weights = [np.linspace(0, 1, len(one)) for one in ids] if weighted else None
    batch = pack_collate(pack_sequential([len(one) for one in ids], capacity), ids, pad_id=0, weights=weights)
    parts = one_by_one(batch)
    kept = [(number, one) for number, one in enumerate(ids) if one]
    if not kept:
        assert parts == [batch]
        return
    assert [(part.sequence.tolist(), part.input_ids.tolist()) for part in parts] == [([n], [one]) for n, one in kept]
    for part, (number, one) in zip(parts, kept, strict=True):
        assert part.targets.tolist() == [[*one[1:], -100]]
        assert (part.n_tokens, part.n_target_tokens, part.max_seqlen) == (len(one), len(one) - 1, len(one))
        assert part.boundaries.cu_seqlens.tolist() == [0, len(one)]
        if weights is None:
            assert part.weights is None
        else:
            assert part.weights is not None
            assert part.weights[0].tolist() == pytest.approx(weights[number].tolist())


@given(sequences, st.integers(8, 12))
def test_joined_is_what_the_collator_makes_without_isolation(ids: list[list[int]], capacity: int) -> None:
    plan = pack_greedy([len(one) for one in ids], capacity)
    found = joined(pack_collate(plan, ids, pad_id=0))
    wanted = pack_collate(plan, ids, pad_id=0, isolate=False)
    assert contents(found) == contents(wanted)
    assert found.boundaries.order.tolist() == wanted.boundaries.order.tolist()


def test_joined_keeps_a_row_of_padding() -> None:
    # The last step of an epoch on several ranks may have a row without any piece.
    batch = joined(pack_collate(pack_sequential([3], 4), [[1, 2, 3]], pad_id=0, rows=[0]))
    assert (batch.sequence.tolist(), batch.boundaries.cu_seqlens.tolist()) == ([0, -1], [0, 3, 4])


def test_fixed_is_chunks_of_every_document(settings: Settings) -> None:
    batches = list(settings.data(texts(LENGTHS), "fixed").epoch(0))
    assert all(batch.input_ids.shape[1] == 24 for batch in batches)
    assert [len(batch.input_ids) for batch in batches[:-1]] == [2] * (len(batches) - 1)
    rows = sorted(length for batch in batches for length in batch.boundaries.lengths[batch.sequence >= 0].tolist())
    tokens = [length + 1 for length in LENGTHS]
    assert rows == sorted(min(24, n - start) for n in tokens for start in range(0, n, 24))


def test_buckets_pad_less_than_a_random_order(settings: Settings) -> None:
    documents, packing = texts([1 + 37 * n % 22 for n in range(200)]), {"max_tokens": 192}
    ratio = {}
    for scheme in ("padded", "bucketed"):
        batches = list(settings.data(documents, scheme, packing=packing).epoch(0))
        assert all(batch.input_ids.numel() <= 192 for batch in batches)
        assert all(batch.input_ids.shape[1] == batch.max_seqlen for batch in batches)  # as wide as the longest
        ratio[scheme] = sum(batch.n_tokens for batch in batches) / sum(batch.input_ids.numel() for batch in batches)
        if scheme == "bucketed":
            assert all(batch.valid_ratio >= 0.8 for batch in batches)
    assert ratio["padded"] < 0.65 < 0.9 < ratio["bucketed"]


def test_sorted_batches_hold_neighbours_in_length_and_come_in_any_order(settings: Settings) -> None:
    documents = texts([1 + 37 * n % 22 for n in range(200)])
    for scheme in ("padded", "bucketed"):
        batches = list(settings.data(documents, scheme, packing={"sort": "sorted", "max_tokens": 192}).epoch(0))
        spans = [(int(own.min()), int(own.max())) for b in batches if len(own := b.boundaries.lengths[b.sequence >= 0])]
        assert max(high - low for low, high in spans) <= 3
        assert spans != sorted(spans)
        assert all(one[1] <= other[0] or other[1] <= one[0] for i, one in enumerate(spans) for other in spans[:i])


def test_packs_of_the_three_packers(settings: Settings) -> None:
    documents = texts([1 + 37 * n % 22 for n in range(200)])
    rows = {}
    for scheme in SCHEMES:
        batches = settings.data(documents, scheme, packing={"buffer_size": 50}).epoch(0)
        rows[scheme] = sum(len(batch.input_ids) for batch in batches)
    assert rows["packed-greedy"] == rows["packed-best-fit"] == rows["concat"]
    assert rows["packed-greedy"] < rows["packed-sequential"] < rows["fixed"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_row_lengths_are_multiples_where_asked(settings: Settings, scheme: str) -> None:
    for batch in settings.data(texts(LENGTHS), scheme, packing={"pad_to_multiple_of": 16}).epoch(0):
        if scheme != "one-at-a-time":
            assert batch.input_ids.shape[1] % 16 == 0
        assert batch.boundaries.n_tokens == batch.input_ids.numel() == batch.targets.numel()


def test_concat_warns_once(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "mamba_lab"):
        for _ in range(2):
            list(settings.data(texts(LENGTHS), "concat").epoch(0))
    assert [message for message in caplog.messages if "leaks" in message] == [
        'packing.scheme = "concat": each row is one sequence, so state leaks from one document into the next. This is '
        'for comparison only; train with "packed-greedy".'
    ]


@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 4))
def test_rows_are_dealt_evenly_and_each_once(n: int, rows: int, world_size: int) -> None:
    dealt_to = [dealt(np.arange(n), rows, rank, world_size, empty=-1) for rank in range(world_size)]
    assert {len(steps) for steps in dealt_to} == {-(-n // (rows * world_size))}
    for step in zip(*dealt_to, strict=True):
        assert len({len(own) for own in step}) == 1
        assert len(step[0]) <= rows
    assert sorted(row for steps in dealt_to for own in steps for row in own.tolist() if row >= 0) == list(range(n))
    # No step but the last has an empty row, and that has fewer than one a rank.
    empty = [int((own == -1).sum()) for steps in dealt_to for own in steps[:-1]]
    assert sum(empty) == 0
    assert sum(int((steps[-1] == -1).sum()) for steps in dealt_to if steps) < world_size


@pytest.mark.parametrize("scheme", ["packed-greedy", "packed-sequential", "packed-best-fit", "one-at-a-time", "concat"])
def test_rows_that_no_document_can_reach_are_refused(settings: Settings, scheme: str) -> None:
    """A million rows of padding took the machine's memory. A few cost nothing, and a small trial has them."""
    with pytest.raises(ValueError, match=r"packing.rows is 1,000,000, but all .* fill at most 4 rows of 24 tokens"):
        settings.data(texts([5, 30, 1]), scheme, packing={"rows": 1_000_000})
    assert len(list(settings.data(texts([5, 30, 1]), scheme, packing={"rows": 64}).steps(0, 1))) == 1
