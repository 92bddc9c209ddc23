from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mamba_lab.batching import Batch, PackingPlan, chunk_fixed, pack_collate, pad_collate
from mamba_lab.log import log_once

DOCUMENTS = [[10, 11, 12, 13], [20, 21], [30, 31, 32], [40, 41, 42, 43, 44, 45, 46]]


def shifted_inside_the_model(labels: torch.Tensor) -> torch.Tensor:
    """What a Hugging Face causal language model compares each position with."""
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]


def packed() -> Batch:
    return pack_collate(PackingPlan.from_bins([[0, 1], [2], [3]], [4, 2, 3, 7], 7), DOCUMENTS, pad_id=0)


def test_huggingface_padding_free() -> None:
    batch = packed()
    made = batch.to_huggingface()
    assert made["labels"].tolist() == [  # type: ignore[union-attr]
        [-100, 11, 12, 13, -100, 21, -100, -100, 31, 32, -100, -100, -100, -100, -100, 41, 42, 43, 44, 45, 46]
    ]
    assert torch.equal(shifted_inside_the_model(made["labels"]), batch.targets.view(1, -1))  # type: ignore[arg-type]
    assert torch.equal(made["input_ids"], batch.input_ids.view(1, -1))  # type: ignore[arg-type]
    assert made["position_ids"].tolist() == [  # type: ignore[union-attr]
        [0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]
    ]
    assert made["seq_idx"].tolist() == [[0] * 4 + [1] * 2 + [2] + [3] * 3 + [4] * 4 + [5] * 7]  # type: ignore[union-attr]
    assert made["cu_seq_lens_q"].tolist() == made["cu_seq_lens_k"].tolist() == [0, 4, 6, 7, 10, 14, 21]  # type: ignore[union-attr]
    assert made["max_length_q"] == made["max_length_k"] == 7
    assert {key: value.dtype for key, value in made.items() if isinstance(value, torch.Tensor)} == {
        "input_ids": torch.int64,
        "labels": torch.int64,
        "position_ids": torch.int64,
        "seq_idx": torch.int32,
        "cu_seq_lens_q": torch.int32,
        "cu_seq_lens_k": torch.int32,
    }


def test_huggingface_padded() -> None:
    batch = pad_collate(DOCUMENTS, pad_id=0)
    made = batch.to_huggingface(padding_free=False)
    assert set(made) == {"input_ids", "labels", "attention_mask"}
    assert made["attention_mask"].sum(1).tolist() == [4, 2, 3, 7]  # type: ignore[union-attr]
    assert torch.equal(shifted_inside_the_model(made["labels"]), batch.targets)  # type: ignore[arg-type]


def test_a_mask_cannot_keep_packed_sequences_apart() -> None:
    with pytest.raises(ValueError, match="padding_free=False needs one sequence a row"):
        packed().to_huggingface(padding_free=False)


@given(st.lists(st.lists(st.integers(0, 50), max_size=9), max_size=6), st.integers(1, 6), st.booleans())
@settings(max_examples=80, deadline=None)
def test_huggingface_shift_gives_our_targets(sequences: list[list[int]], capacity: int, across: bool) -> None:
    whole = pad_collate(sequences, pad_id=0)
    for padding_free in (True, False):
        made = whole.to_huggingface(padding_free=padding_free)["labels"]
        assert torch.equal(shifted_inside_the_model(made).view_as(whole.targets), whole.targets)  # type: ignore[arg-type]
    cut = pack_collate(chunk_fixed([len(s) for s in sequences], capacity, across=across), sequences, pad_id=0)
    made = cut.to_huggingface()["labels"]
    assert torch.equal(shifted_inside_the_model(made).view_as(cut.targets), cut.targets)  # type: ignore[arg-type]


def test_targets_that_labels_cannot_hold_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    cut = pack_collate(chunk_fixed([7], 3), DOCUMENTS[3:], pad_id=0, rows=[0, 1])
    with caplog.at_level(logging.WARNING, logger="mamba_lab"):
        in_rows = cut.to_huggingface(padding_free=False)["labels"]
        flat = cut.to_huggingface()["labels"]
    assert [record.message.split(" have")[0] for record in caplog.records] == [
        "to_huggingface: 2 targets at row ends",
        "to_huggingface: 1 targets at row ends",
    ]
    expected = cut.targets.clone()
    expected[:, -1] = -100
    assert torch.equal(shifted_inside_the_model(in_rows), expected)  # type: ignore[arg-type]
    assert (shifted_inside_the_model(flat) != -100).sum() == cut.n_target_tokens - 1  # type: ignore[arg-type]


def test_a_batch_moves_as_a_whole() -> None:
    batch = replace(packed(), weights=torch.ones(3, 7), stream_state={"at": 4})
    moved = batch.to("meta")
    tensors = (moved.input_ids, moved.targets, moved.sequence, moved.weights, moved.boundaries.cu_seqlens)
    assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
    assert moved.stream_state == {"at": 4}
    assert (moved.n_tokens, moved.n_target_tokens, moved.max_seqlen, moved.valid_ratio) == (16, 12, 7, 16 / 21)
    assert torch.equal(batch.to("cpu").input_ids, batch.input_ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.zeros(21, dtype=torch.int64)}, r"input_ids must be \[B, L\]"),
        ({"targets": torch.zeros(3, 6, dtype=torch.int64)}, r"targets must be torch.int64 \[3, 7\]"),
        ({"input_ids": torch.zeros(3, 7, dtype=torch.int32)}, "input_ids must be torch.int64"),
        ({"sequence": torch.zeros(2, dtype=torch.int64)}, r"sequence must be torch.int64 \[6\]"),
        ({"weights": torch.zeros(3, 7, dtype=torch.float64)}, "weights must be torch.float32"),
        ({"targets": torch.zeros(3, 7, dtype=torch.int64, device="meta")}, "targets is on meta and boundaries on cpu"),
        ({"n_tokens": 22}, "n_target_tokens <= n_tokens"),
        ({"n_target_tokens": 17}, "n_target_tokens <= n_tokens"),
        (
            {"input_ids": torch.zeros(3, 8, dtype=torch.int64), "targets": torch.zeros(3, 8, dtype=torch.int64)},
            "boundaries cover 21 tokens, input_ids has 24",
        ),
    ],
)
def test_a_batch_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(packed(), **change)


def collate(indices: list[int]) -> Batch:
    return pad_collate(DOCUMENTS, pad_id=0, indices=indices)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_travels_through_a_data_loader(workers: int) -> None:
    loader = DataLoader(range(4), batch_sampler=[[3, 0], [1, 2]], collate_fn=collate, num_workers=workers)  # type: ignore[arg-type]
    made = list(loader)
    assert [batch.n_tokens for batch in made] == [11, 5]
    assert torch.equal(made[0].boundaries.cu_seqlens, collate([3, 0]).boundaries.cu_seqlens)


def test_a_batch_shows_its_size_not_its_tensors() -> None:
    assert repr(packed()) == "Batch(3 rows of 7, 16 tokens, 12 targets, 6 sequences, cpu)"
    assert repr(packed().to("meta")).endswith("meta)")
