"""Targets of whole sequences, and that batches keep them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import PackingPlan, chunk_fixed, make_targets, pack_collate, pad_collate


def test_the_next_token_and_nothing_after_the_last() -> None:
    assert make_targets([1, 2, 3]).tolist() == [2, 3, -100]
    assert make_targets([7]).tolist() == [-100]
    assert make_targets([]).tolist() == []
    assert make_targets([1, 2, 3]).dtype == np.int64


@pytest.mark.parametrize(
    "ids", [np.array([5, 6, 7], np.int32), np.array([5, 6, 7], np.uint16), torch.tensor([5, 6, 7]), (5, 6, 7)]
)
def test_arrays_and_tensors(ids: object) -> None:
    targets = make_targets(ids)  # type: ignore[arg-type]
    assert (targets.tolist(), targets.dtype) == ([6, 7, -100], np.int64)


@pytest.mark.parametrize(
    "said",
    [
        [False, False, True, True, False],
        np.array([False, False, True, True, False]),
        torch.tensor([False, False, True, True, False]),
    ],
)
def test_assistant_marks_the_token_that_is_predicted_not_the_one_that_predicts(said: object) -> None:
    targets = make_targets([10, 11, 12, 13, 14], "assistant", said=said)  # type: ignore[arg-type]
    assert targets.tolist() == [-100, 12, 13, -100, -100]


def test_the_first_token_is_nobodys_target() -> None:
    assert make_targets([10, 11], "assistant", said=[True, False]).tolist() == [-100, -100]
    assert make_targets([10, 11], "assistant", said=[True, True]).tolist() == [11, -100]
    assert make_targets([], "assistant", said=[]).tolist() == []


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (0, [11, 12, 13, -100]),
        (1, [11, 12, 13, -100]),
        (2, [-100, 12, 13, -100]),
        (3, [-100, -100, 13, -100]),
        (4, [-100] * 4),
    ],
)
def test_a_prompt_is_read_but_not_taught(prompt: int, expected: list[int]) -> None:
    assert make_targets([10, 11, 12, 13], "prompt", prompt_length=prompt).tolist() == expected


def test_case_1_pack_of_two() -> None:
    sequences = [[1, 2, 3], [4, 5]]
    plan = PackingPlan.from_bins([[0, 1]], [3, 2], 5)
    batch = pack_collate(plan, sequences, pad_id=0, targets=[make_targets(ids) for ids in sequences])
    assert batch.targets.tolist() == [[2, 3, -100, 5, -100]]


def test_case_7_padding_has_no_target() -> None:
    sequences = [[1, 2, 3], [4, 5]]
    plan = PackingPlan.from_bins([[0, 1]], [3, 2], 8)
    batch = pack_collate(plan, sequences, pad_id=9, targets=[make_targets(ids) for ids in sequences])
    assert batch.targets.tolist() == [[2, 3, -100, 5, -100, -100, -100, -100]]


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_case_19_rounded_rows_add_no_target(multiple: int) -> None:
    sequences = [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
    targets = [make_targets(ids, "prompt", prompt_length=2) for ids in sequences]
    plan = PackingPlan.from_bins([[0, 1], [2]], [4, 2, 3], 6)
    for batch in (
        pad_collate(sequences, pad_id=0, targets=targets, pad_to_multiple_of=multiple),
        pack_collate(plan, sequences, pad_id=0, targets=targets, pad_to_multiple_of=multiple),
    ):
        assert batch.targets.shape == batch.input_ids.shape
        assert batch.targets[batch.targets != -100].tolist() == [3, 4, 9]
        assert batch.n_target_tokens == 3


def test_case_20_id_0_is_a_token_like_any_other() -> None:
    assert make_targets([0, 0, 3, 0]).tolist() == [0, 3, 0, -100]
    batch = pad_collate([[0, 0, 3, 0], [0]], pad_id=0, targets=[make_targets([0, 0, 3, 0]), make_targets([0])])
    assert batch.targets.tolist() == [[0, 3, 0, -100], [-100] * 4]


def test_case_32_an_all_masked_chat_sequence_beside_padding() -> None:
    sequences = [[1, 2, 3], [4, 5]]
    said = [[False] * 3, [False, True]]
    targets = [make_targets(ids, "assistant", said=s) for ids, s in zip(sequences, said, strict=True)]
    batch = pad_collate(sequences, pad_id=0, targets=targets)
    assert batch.targets.tolist() == [[-100] * 3, [5, -100, -100]]
    assert (batch.n_tokens, batch.n_target_tokens) == (5, 1)


@st.composite
def corpus_and_masks(draw: st.DrawFn) -> tuple[list[list[int]], list[list[bool]]]:
    sequences = draw(st.lists(st.lists(st.integers(0, 9), max_size=15), max_size=8))
    return sequences, [draw(st.lists(st.booleans(), min_size=len(s), max_size=len(s))) for s in sequences]


@given(corpus_and_masks(), st.integers(1, 9), st.booleans())
@settings(max_examples=120, deadline=None)
def test_targets_survive_any_cut(made: tuple[list[list[int]], list[list[bool]]], capacity: int, across: bool) -> None:
    sequences, said = made
    plan = chunk_fixed([len(ids) for ids in sequences], capacity, across=across)
    whole = [make_targets(ids) for ids in sequences]
    batch = pack_collate(plan, sequences, pad_id=3, targets=whole)
    assert batch.n_target_tokens == sum(max(len(ids) - 1, 0) for ids in sequences)
    assert batch.targets.equal(pack_collate(plan, sequences, pad_id=3).targets)
    partly = [make_targets(ids, "assistant", said=s) for ids, s in zip(sequences, said, strict=True)]
    batch = pack_collate(plan, sequences, pad_id=3, targets=partly)
    kept = [ids[i] for ids, s in zip(sequences, said, strict=True) for i in range(1, len(ids)) if s[i]]
    assert sorted(batch.targets[batch.targets != -100].tolist()) == sorted(kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": [1, 2.5]}, r"ids must hold integers"),
        ({"ids": [1, -2]}, r"ids\[1\] is -2: token ids are never negative"),
        ({"ids": [[1, 2]]}, "ids must have one dimension"),
        ({"ids": 5}, "ids must be a list"),
        ({"teach": "chat"}, "teach must be one of 'whole', 'assistant', 'prompt', got 'chat'"),
        ({"teach": None}, "teach must be one of .* got None"),
        ({"said": [True] * 3}, "said is given, but teach is 'whole'.*Pass teach=\"assistant\""),
        ({"prompt_length": 1}, "prompt_length is given, but teach is 'whole'.*Pass teach=\"prompt\""),
        ({"teach": "assistant"}, 'teach="assistant" needs said: .*said_by'),
        ({"teach": "prompt"}, 'teach="prompt" needs prompt_length'),
        ({"teach": "prompt", "prompt_length": 1, "said": [True] * 3}, "said is given, but teach is 'prompt'"),
        ({"teach": "assistant", "said": [True] * 2}, r"said must be bool \[3\], one entry a token, got bool \[2\]"),
        ({"teach": "assistant", "said": [0, 1, 1]}, r"said must be bool \[3\].*got int64 \[3\]"),
        ({"teach": "assistant", "said": torch.tensor([0, 1, 1])}, r"said must be bool \[3\].*got torch.int64 \[3\]"),
        ({"teach": "assistant", "said": [[True], [True, False]]}, r"said must be bool \[3\].*got \[\[True\]"),
        ({"teach": "assistant", "said": True}, r"said must be bool \[3\].*got True"),
        ({"teach": "assistant", "said": []}, r"said must be bool \[3\].*got bool \[0\]"),
        ({"teach": "assistant", "said": torch.ones(3, dtype=torch.bool, device="meta")}, "said must lie on the host"),
        (
            {"teach": "assistant", "said": torch.ones(3, dtype=torch.bool).to_sparse()},
            "said must be a plain dense tensor, got torch.bool of layout torch.sparse_coo",
        ),
        (
            {"teach": "assistant", "said": np.ma.masked_array([True] * 3, [True, False, False])},
            "said must be a plain array, got a masked array",
        ),
        ({"teach": "prompt", "prompt_length": 4}, "prompt_length is 4, but the sequence has 3 tokens"),
        ({"teach": "prompt", "prompt_length": -1}, "prompt_length must be at least 0"),
        ({"teach": "prompt", "prompt_length": True}, "prompt_length must be an integer"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_targets(**({"ids": [1, 2, 3]} | arguments))  # type: ignore[arg-type]
