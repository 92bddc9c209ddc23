"""Sequence weights: made on whole sequences, cut and packed with their targets, and what a loss makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from data_help import SCHEMES, Settings, chat, settings, texts
from hypothesis import given
from hypothesis import strategies as st
from loop_help import gradient_of, small_model

from mamba_lab.batching import Batch, PackedStream, chunk_fixed, make_targets, pack_collate, pack_greedy, pad_collate
from mamba_lab.training.step import backward
from mamba_lab.training.weights import sequence_weights

__all__ = ["settings"]


def test_by_hand() -> None:
    weights = sequence_weights(np.array([5, -100, 7, 9, 2, -100]))
    assert weights.dtype == np.float32
    assert weights.tolist() == [0.25, 0, 0.25, 0.25, 0.25, 0]
    # Nothing to divide by: no weight, and no NaN.
    assert sequence_weights(np.array([-100, -100])).tolist() == [0, 0]
    assert sequence_weights(np.array([], np.int64)).tolist() == []


@given(st.lists(st.booleans(), max_size=200))
def test_a_sequence_weighs_one(taught: list[bool]) -> None:
    targets = np.where(taught, 1, -100)
    weights = sequence_weights(targets)
    assert float(weights.sum(dtype=np.float64)) == pytest.approx(1.0 if any(taught) else 0.0, abs=1e-5)
    assert ((weights > 0) == taught).all()


def by_sequence(batches: list[Batch]) -> dict[int, list[float]]:
    """The weights of each sequence's targets, in the order of the batches."""
    found: dict[int, list[float]] = {}
    for batch in batches:
        assert batch.weights is not None
        weights, targets = batch.weights.flatten(), batch.targets.flatten()
        owner = batch.sequence[batch.boundaries.seq_idx.long()]
        assert (weights[targets == -100] == 0).all()
        for number in owner[targets != -100].unique().tolist():
            found.setdefault(number, []).extend(weights[(owner == number) & (targets != -100)].tolist())
    return found


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "concat"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_piece_has_the_weights_of_its_whole_sequence(settings: Settings, scheme: str, world_size: int) -> None:
    lengths = [5, 30, 1, 12, 70, 24, 3]
    sections: dict[str, Any] = {"loss": {"weighting": "sequence"}, "packing": {"workers": 1}}
    batches = [
        batch
        for rank in range(world_size)
        for batch in settings.data(texts(lengths), scheme, rank=rank, world_size=world_size, **sections).epoch(0)
    ]
    # A document of 70 bytes has 70 targets, its end among them, though no row is longer than 24.
    assert by_sequence(batches) == {n: pytest.approx([1 / length] * length) for n, length in enumerate(lengths)}
    assert all(batch.weights is None for batch in settings.data(texts(lengths), scheme).epoch(0))


def test_concat_has_the_same_weights_at_the_same_places(settings: Settings) -> None:
    sections: dict[str, Any] = {"loss": {"weighting": "sequence"}}
    packed, leaking = (
        list(settings.data(texts([5, 9, 3, 30]), scheme, **sections).epoch(0)) for scheme in ("packed-greedy", "concat")
    )
    for one, other in zip(packed, leaking, strict=True):
        assert torch.equal(one.weights, other.weights)


def test_validation_is_weighed_too(settings: Settings) -> None:
    data = settings.data(
        texts([5, 30, 9, 12, 70]), loss={"weighting": "sequence"}, data={"validation_share": 0.6, "seed": 1}
    )
    assert by_sequence(list(data.validation())) == {
        number: pytest.approx([1 / length] * length)
        for number, length in enumerate([5, 30, 9, 12, 70])
        if number not in by_sequence(list(data.epoch(0)))
    }


def test_a_conversation_that_teaches_nothing_weighs_nothing(settings: Settings) -> None:
    documents = chat("hi|yes", "all of this is asked", "a|b")
    data = settings.data(documents, loss={"weighting": "sequence"}, data={"corpus": "own", "teach": "assistant"})
    assert set(by_sequence(list(data.epoch(0)))) == {0, 2}
    assert sum(batch.n_tokens for batch in data.epoch(0)) == data.counts.training_tokens  # tokens, and no padding


def test_a_sequence_that_ends_early_weighs_one_as_well(settings: Settings) -> None:
    data = settings.data(texts([40, 3]), loss={"weighting": "sequence"}, packing={"overflow": "truncate"})
    assert by_sequence(list(data.epoch(0))) == {0: pytest.approx([1 / 23] * 23), 1: pytest.approx([1 / 3] * 3)}


@pytest.mark.parametrize("collate", ["pack", "pad", "fixed"])
def test_the_collators_move_a_weight_with_its_target(collate: str) -> None:
    sequences = [np.arange(7), np.arange(20, 22), np.arange(40, 45)]
    weights = [np.arange(len(ids)) / 10 + number for number, ids in enumerate(sequences)]
    lengths = [len(ids) for ids in sequences]
    if collate == "pad":
        batch = pad_collate(sequences, pad_id=0, weights=weights, indices=[2, 0])
    else:
        plan = pack_greedy(lengths, 9) if collate == "pack" else chunk_fixed(lengths, 3)
        batch = pack_collate(plan, sequences, pad_id=0, weights=weights, pad_to_multiple_of=4)
    assert batch.weights is not None
    assert batch.weights.dtype == torch.float32
    owner = batch.sequence[batch.boundaries.seq_idx.long()].tolist()
    for number, token, weight in zip(owner, batch.input_ids.flatten().tolist(), batch.weights.flatten(), strict=True):
        wanted = 0.0 if number < 0 else (token - 20 * number) / 10 + number
        assert float(weight) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0, 1.0]], "weights has 1 entries and sequences 2"),
        ([[1.0, 1.0, 1.0], [1.0, 1.0]], r"weights\[0\] must hold 2 numbers.*got float64 \[3\]"),
        ([[1.0, -1.0], [1.0, 1.0]], r"weights\[0\]\[1\] is -1.0: a weight is a finite number, 0 or more"),
        ([[1.0, 1.0], [1.0, float("nan")]], r"weights\[1\]\[1\] is nan"),
        ([[1.0, 1.0], [1.0, 1e39]], r"weights\[1\]\[1\] is inf"),
        ([["a", "b"], [1.0, 1.0]], r"weights\[0\] must hold 2 numbers"),
        ([torch.ones(2, device="meta"), [1.0, 1.0]], r"weights\[0\] must lie on the host"),
        ([np.ma.masked_array([1.0, 2.0], [True, False]), [1.0, 1.0]], r"weights\[0\] must be a plain array"),
        (3.0, "weights must be a list"),
    ],
)
def test_bad_weights_are_refused(weights: Any, message: str) -> None:
    sequences = [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=message):
        pad_collate(sequences, pad_id=0, weights=weights)
    with pytest.raises(ValueError, match=message):
        pack_collate(chunk_fixed([2, 2], 2), sequences, pad_id=0, weights=weights)


def test_tensors_and_integers_are_weights() -> None:
    batch = pad_collate([[1, 2], [3, 4]], pad_id=0, weights=[torch.tensor([0.5, 2.0], dtype=torch.bfloat16), [1, 0]])
    assert batch.weights is not None
    assert batch.weights.tolist() == [[0.5, 2.0], [1.0, 0.0]]


def test_a_stream_asks_for_weights_once_a_document_with_all_its_targets() -> None:
    asked: list[list[int]] = []

    def weights(targets: Any) -> Any:
        asked.append(targets.tolist())
        return np.arange(len(targets))

    documents = [np.arange(10), (np.array([5, 6, 7]), np.array([-100, 7, -100]))]
    (batch,) = PackedStream(documents, 4, rows=4, pad_id=0, workers=0, shuffle=False, weights=weights, check_batches=0)
    assert asked == [[1, 2, 3, 4, 5, 6, 7, 8, 9, -100], [-100, 7, -100]]
    assert batch.weights is not None
    by_token = dict(zip(batch.input_ids[:3].flatten().tolist(), batch.weights[:3].flatten().tolist(), strict=True))
    assert [by_token[token] for token in range(10)] == list(range(10))


def test_a_stream_s_weights_say_what_is_wrong() -> None:
    def stream(weights: Any) -> PackedStream:
        return PackedStream([[1, 2], [3, 4]], 4, pad_id=0, workers=0, shuffle=False, weights=weights)

    with pytest.raises(ValueError, match="weights must be a function"):
        stream([1.0])
    with pytest.raises(ValueError, match="document 0, weights must hold 2 numbers"):
        list(stream(lambda targets: [1.0]))
    with pytest.raises(ValueError, match="document 0: weights failed: ValueError: no"):
        list(stream(raises(ValueError("no"))))
    with pytest.raises(RuntimeError, match="document 0: weights failed: KeyError: 'no'"):
        list(stream(raises(KeyError("no"))))


def raises(error: Exception) -> Any:
    def function(*_: Any) -> Any:
        raise error

    return function


def test_a_batch_of_padding_alone_is_weighed_like_the_others() -> None:
    given = {"pad_id": 0, "workers": 0, "world_size": 2, "weights": sequence_weights}
    batches = [batch for rank in range(2) for batch in PackedStream([[1, 2, 3]], 4, rank=rank, **given)]
    assert sorted(float(batch.weights.sum()) for batch in batches if batch.weights is not None) == [0.0, 1.0]


def test_lengths_7_and_2_token_mean_and_sequence_mean() -> None:
    model, sequences = small_model(), [np.arange(1, 8), np.array([20, 3])]
    means = [backward(model, [pad_collate([ids], pad_id=0)]).loss for ids in sequences]
    targets = [make_targets(ids) for ids in sequences]
    plan = pack_greedy([7, 2], 16)
    token = pack_collate(plan, sequences, pad_id=0)
    sequence = pack_collate(plan, sequences, pad_id=0, weights=[sequence_weights(t) for t in targets])
    assert backward(model, [token]).loss == pytest.approx((6 * means[0] + means[1]) / 7, rel=1e-5)
    assert backward(model, [sequence]).loss == pytest.approx((means[0] + means[1]) / 2, rel=1e-5)
    assert abs(means[0] - means[1]) > 0.1  # otherwise the two means would say nothing


@pytest.mark.parametrize("scheme", ["fixed", "packed-greedy", "bucketed"])
def test_whatever_the_scheme_the_gradient_is_the_mean_over_sequences(settings: Settings, scheme: str) -> None:
    # Documents that fit a row: a cut takes context away, which changes the loss itself.
    lengths = [5, 20, 1, 12, 22, 3]
    model = small_model(vocab_size=settings.tokenizer.vocab_size)
    alone = []
    for document in texts(lengths):
        ids = [*settings.tokenizer.encode(document.text), settings.tokenizer.end_id]
        backward(model, [pad_collate([ids], pad_id=0)])
        alone.append(gradient_of(model))
    batches = list(settings.data(texts(lengths), scheme, loss={"weighting": "sequence"}).epoch(0))
    assert len(batches) > 1
    backward(model, batches)
    torch.testing.assert_close(gradient_of(model), torch.stack(alone).mean(0), rtol=1e-4, atol=1e-6)
