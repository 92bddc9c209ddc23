from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import Batch, Boundaries, PackingPlan, chunk_fixed, pack_collate, pad_collate
from mamba_lab.log import log_once

# Distinct ids, so that a token in the wrong place is seen. 0 and the pad id 7 occur inside on purpose (case 20).
DOCUMENTS = [[0, 7, 12, 13], [20, 21], [30, 0, 32], [40, 41, 42, 43, 44, 45, 7]]
LENGTHS = [len(document) for document in DOCUMENTS]
sequence_lists = st.lists(st.lists(st.integers(0, 50), max_size=15), max_size=8)


def next_tokens(sequences: list[list[int]]) -> dict[tuple[int, int], int]:
    """The target of every token of whole sequences, by (sequence, place)."""
    return {(s, t): ([*ids, -100])[t + 1] for s, ids in enumerate(sequences) for t in range(len(ids))}


def read_back(batch: Batch, starts: list[int] | None = None) -> dict[tuple[int, int], tuple[int, int]]:
    """(id, target) of every token that is not padding, by (sequence, place); pieces of a sequence follow each other."""
    ids, targets = batch.input_ids.flatten().tolist(), batch.targets.flatten().tolist()
    found: dict[tuple[int, int], tuple[int, int]] = {}
    seen: dict[int, int] = {}
    cu = batch.boundaries.cu_seqlens.tolist()
    for number, s in enumerate(batch.sequence.tolist()):
        for at in range(cu[number], cu[number + 1]):
            if s < 0:
                assert targets[at] == -100
                continue
            found[s, seen.get(s, 0)] = (ids[at], targets[at])
            seen[s] = seen.get(s, 0) + 1
    return found


def test_case_1_targets_stop_at_the_boundary() -> None:
    plan = PackingPlan.from_bins([[0, 1]], [3, 2], 5)
    batch = pack_collate(plan, [[1, 2, 3], [4, 5]], pad_id=0)
    assert batch.targets.tolist() == [[2, 3, -100, 5, -100]]
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.boundaries.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.sequence.tolist() == [0, 1]


def test_case_7_padding_is_a_sequence_of_its_own() -> None:
    plan = PackingPlan.from_bins([[0, 1]], [3, 2], 8)
    batch = pack_collate(plan, [[1, 2, 3], [4, 5]], pad_id=9)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 9, 9, 9]]
    assert batch.targets.tolist() == [[2, 3, -100, 5, -100, -100, -100, -100]]
    assert batch.boundaries.cu_seqlens.tolist() == [0, 3, 5, 8]
    assert batch.boundaries.order.tolist() == [0, 1, 2]
    assert batch.sequence.tolist() == [0, 1, -1]
    assert (batch.n_tokens, batch.n_target_tokens, batch.max_seqlen) == (5, 3, 3)
    assert batch.valid_ratio == 5 / 8


def test_padding_longer_than_any_sequence_still_comes_last() -> None:
    batch = pad_collate([[1] * 9, [2]], pad_id=0)
    assert batch.boundaries.order.tolist() == [0, 1, 2]
    assert (batch.max_seqlen, batch.boundaries.max_seqlen) == (9, 9)
    alone = pack_collate(PackingPlan.from_bins([[0]], [1], 6), [[5]], pad_id=0)
    assert (alone.max_seqlen, alone.boundaries.max_seqlen) == (1, 5)
    assert alone.boundaries.order.tolist() == [0, 1]


def test_case_20_nothing_is_inferred_from_token_values() -> None:
    batch = pad_collate(DOCUMENTS, pad_id=7)
    assert batch.n_tokens == sum(LENGTHS)
    assert batch.targets[0].tolist() == [7, 12, 13, -100, -100, -100, -100]
    assert read_back(batch) == {
        key: (DOCUMENTS[key[0]][key[1]], value) for key, value in next_tokens(DOCUMENTS).items()
    }


def test_case_11_targets_survive_a_cut() -> None:
    sequence = list(range(1000, 1121))
    plan = chunk_fixed([121], 60)
    batch = pack_collate(plan, [sequence], pad_id=0)
    assert batch.n_target_tokens == 120
    assert batch.targets[:, 59].tolist() == [1060, 1120, -100]
    assert batch.boundaries.lengths.tolist() == [60, 60, 1, 59]


@given(sequence_lists, st.integers(1, 9), st.booleans())
@settings(max_examples=120, deadline=None)
def test_invariant_5_tokens_and_targets_are_conserved(sequences: list[list[int]], capacity: int, across: bool) -> None:
    plan = chunk_fixed([len(s) for s in sequences], capacity, across=across)
    batch = pack_collate(plan, sequences, pad_id=3)
    expected = {key: (sequences[key[0]][key[1]], target) for key, target in next_tokens(sequences).items()}
    assert read_back(batch) == expected
    assert batch.n_tokens == len(expected)
    assert batch.n_target_tokens == sum(target != -100 for _, target in expected.values())
    assert batch.boundaries.n_tokens == batch.input_ids.numel()
    padded = pad_collate(sequences, pad_id=3)
    assert read_back(padded) == expected
    assert (padded.n_tokens, padded.n_target_tokens) == (batch.n_tokens, batch.n_target_tokens)
    # Built fast or checked again from the start: the boundaries are the same.
    for made in (batch, padded):
        again = Boundaries.from_cu_seqlens(made.boundaries.cu_seqlens, n_tokens=made.input_ids.numel())
        assert again.max_seqlen == made.boundaries.max_seqlen
        real = (made.sequence >= 0)[made.boundaries.order.long()].tolist()
        assert real == sorted(real, reverse=True)


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_case_19_pad_to_multiple_of(multiple: int) -> None:
    plan = PackingPlan.from_bins([[0, 1], [2]], LENGTHS, 7)
    for batch in (
        pad_collate(DOCUMENTS, pad_id=0, pad_to_multiple_of=multiple),
        pack_collate(plan, DOCUMENTS, pad_id=0, pad_to_multiple_of=multiple),
    ):
        assert batch.input_ids.shape == batch.targets.shape
        assert batch.input_ids.shape[1] % multiple == 0
        assert batch.input_ids.shape[1] < 7 + multiple
        assert batch.boundaries.n_tokens == batch.boundaries.cu_seqlens[-1] == batch.input_ids.numel()


def test_case_10_no_sequences_and_one_empty() -> None:
    nothing = pad_collate([], pad_id=0)
    assert (tuple(nothing.input_ids.shape), nothing.n_tokens, nothing.valid_ratio) == ((0, 0), 0, 1.0)
    empty = pad_collate([[]], pad_id=0)
    assert (tuple(empty.input_ids.shape), empty.sequence.tolist()) == ((1, 0), [0])
    beside = pad_collate([[], [5, 6]], pad_id=0)
    assert beside.sequence.tolist() == [0, -1, 1]
    assert beside.boundaries.lengths.tolist() == [0, 2, 2]
    no_rows = pack_collate(chunk_fixed([], 4), [], pad_id=0)
    assert tuple(no_rows.input_ids.shape) == (0, 4)


def test_case_32_a_sequence_without_targets_is_not_padding() -> None:
    batch = pad_collate([[1, 2, 3], [4, 5]], pad_id=0, targets=[[-100, -100, -100], [5, -100]])
    assert (batch.n_tokens, batch.n_target_tokens) == (5, 1)
    assert batch.sequence.tolist() == [0, 1, -1]
    assert batch.valid_ratio == 5 / 6
    assert batch.targets.tolist() == [[-100] * 3, [5, -100, -100]]


def test_given_targets_are_cut_with_their_tokens() -> None:
    batch = pack_collate(chunk_fixed([5], 3), [[1, 2, 3, 4, 5]], pad_id=0, targets=[[-100, 3, -100, 5, -100]])
    assert batch.targets.tolist() == [[-100, 3, -100], [5, -100, -100]]


def test_rows_and_indices_choose_and_order() -> None:
    plan = PackingPlan.from_bins([[0, 1], [2], [3]], LENGTHS, 7)
    batch = pack_collate(plan, DOCUMENTS, pad_id=0, rows=[2, 0])
    assert batch.sequence.tolist() == [3, 0, 1, -1]
    assert batch.input_ids.tolist() == [DOCUMENTS[3], [*DOCUMENTS[0], *DOCUMENTS[1], 0]]
    padded = pad_collate(DOCUMENTS, pad_id=0, indices=[2, 1])
    assert padded.sequence.tolist() == [2, 1, -1]
    assert padded.input_ids.tolist() == [DOCUMENTS[2], [*DOCUMENTS[1], 0]]


def test_isolate_false_is_one_sequence_a_row_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    plan = PackingPlan.from_bins([[1, 0], [], [2]], LENGTHS, 7)
    with caplog.at_level(logging.WARNING, logger="mamba_lab"):
        leaky = pack_collate(plan, DOCUMENTS, pad_id=9, isolate=False)
        pack_collate(plan, DOCUMENTS, pad_id=9, isolate=False)
    assert [record.message.split(":")[0] for record in caplog.records] == ["pack_collate(isolate=False)"]
    right = pack_collate(plan, DOCUMENTS, pad_id=9)
    assert leaky.boundaries.lengths.tolist() == [6, 1, 7, 3, 4]
    assert leaky.sequence.tolist() == [1, -1, -1, 2, -1]
    assert torch.equal(leaky.input_ids, right.input_ids)
    assert torch.equal(leaky.targets, right.targets)
    assert leaky.n_tokens == right.n_tokens


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, torch.int32, torch.int64])
def test_arrays_and_tensors_of_any_integer_type(dtype: object) -> None:
    if isinstance(dtype, torch.dtype):
        sequences = [torch.tensor(document, dtype=dtype) for document in DOCUMENTS]
    else:
        sequences = [np.array(document, dtype) for document in DOCUMENTS]  # type: ignore[call-overload]
    plain = pad_collate(DOCUMENTS, pad_id=9)
    made = pad_collate(sequences, pad_id=9)
    assert made.input_ids.dtype == made.targets.dtype == torch.int64
    assert torch.equal(made.input_ids, plain.input_ids)
    assert torch.equal(made.targets, plain.targets)
    # The batch has memory of its own.
    sequences[0][0] = 3
    assert made.input_ids[0, 0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": [[1, -5]], "pad_id": 0}, r"sequences\[0\] holds -5"),
        ({"sequences": [[1], [2.5]], "pad_id": 0}, r"sequences\[1\] must hold integers"),
        ({"sequences": [[[1]]], "pad_id": 0}, r"sequences\[0\] must have one dimension"),
        ({"sequences": [5, 6], "pad_id": 0}, r"sequences\[0\] must be a list.*got 5\. Put a single sequence in a list"),
        ({"sequences": [[1], None], "pad_id": 0}, r"sequences\[1\] must be a list.*got None"),
        ({"sequences": iter([[1]]), "pad_id": 0}, "sequences must be a list of token.*Make a list of an iterator"),
        ({"sequences": torch.tensor(3), "pad_id": 0}, r"sequences must be a list of token.*got tensor\(3\)"),
        ({"sequences": {0: [1]}, "pad_id": 0}, "sequences must be a list of token"),
        ({"sequences": [[1]], "pad_id": 0, "targets": 5}, "targets must be a list of token.*got 5"),
        ({"sequences": [[1]], "pad_id": 0, "targets": [5]}, r"targets\[0\] must be a list.*got 5"),
        ({"sequences": [torch.zeros(2, dtype=torch.bfloat16)], "pad_id": 0}, r"sequences\[0\].* got torch.bfloat16"),
        ({"sequences": [[1]], "pad_id": -1}, "pad_id must be at least 0"),
        ({"sequences": [[1]], "pad_id": None}, "pad_id must be an integer"),
        ({"sequences": [[1]], "pad_id": 2**63}, "pad_id is 9223372036854775808, above the int64 limit"),
        ({"sequences": [[1]], "pad_id": 0, "indices": [0, 1]}, r"indices\[1\] is 1, but there are 1"),
        ({"sequences": [[1]], "pad_id": 0, "indices": [-1]}, r"indices\[0\] is -1"),
        ({"sequences": [[1]], "pad_id": 0, "pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1"),
        ({"sequences": [[1]], "pad_id": 0, "targets": []}, "targets has 0 entries and sequences 1"),
        ({"sequences": [[1]], "pad_id": 0, "targets": [[1, 2]]}, r"targets\[0\] has 2 entries, its sequence 1"),
        ({"sequences": [[1], [2]], "pad_id": 0, "targets": [[1], [-3]]}, r"targets\[1\] holds -3.*-100 alone"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pad_collate(**arguments)  # type: ignore[arg-type]


class Labelled(list):  # type: ignore[type-arg]
    """Like a pandas Series whose labels are not its places."""

    iloc = True

    def __getitem__(self, label: object) -> object:
        raise KeyError(label)


def test_a_series_is_read_by_place() -> None:
    series = Labelled([[1, 2], [3]])
    assert pad_collate(series, pad_id=0).input_ids.tolist() == [[1, 2], [3, 0]]
    assert pad_collate(series, pad_id=0, targets=Labelled([[2, -100], [-100]])).targets[0].tolist() == [2, -100]
    plan = PackingPlan.from_bins([[1, 0]], [2, 1], 3)
    assert pack_collate(plan, series, pad_id=0).input_ids.tolist() == [[3, 1, 2]]


def test_pack_collate_says_what_it_takes() -> None:
    plan = PackingPlan.from_bins([[0]], [2], 3)
    for bad in (None, [[0]]):
        with pytest.raises(ValueError, match=r"plan must be a PackingPlan, got .*from_bins"):
            pack_collate(bad, [[1, 2]], pad_id=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sequences\[0\] must be a list.*got 5"):
        pack_collate(plan, [5, 6], pad_id=0)  # type: ignore[list-item]


def test_a_plan_of_other_data_is_refused() -> None:
    plan = PackingPlan.from_bins([[0, 1]], [3, 2], 8)
    with pytest.raises(ValueError, match="names sequence 1, but there are 1"):
        pack_collate(plan, [[1, 2, 3]], pad_id=0)
    with pytest.raises(ValueError, match="takes tokens 0:3 of sequence 0, which has only 2"):
        pack_collate(plan, [[1, 2], [3, 4]], pad_id=0)
    with pytest.raises(ValueError, match=r"rows\[0\] is 1, but the plan has bins 0 to 0"):
        pack_collate(plan, [[1, 2, 3], [4, 5]], pad_id=0, rows=[1])
    with pytest.raises(ValueError, match="exceed the int32 limit"):
        pack_collate(PackingPlan.from_bins([[0], [1]], [3, 2], 2**30), [[1, 2, 3], [4, 5]], pad_id=0)
