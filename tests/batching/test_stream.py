from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_help import (
    PAD,
    OneAfterAnother,
    contents,
    corpus,
    expected,
    pieces,
    some_lengths,
    stream,
    tokens_and_targets,
)

from mamba_lab.batching import Batch, StreamCounts, check_targets, make_targets
from mamba_lab.batching._stream_batch import Taught
from mamba_lab.batching._stream_buffer import Bin, BufferSettings, Tokens, make_buffers
from mamba_lab.batching._stream_steps import _emptiest, spread
from mamba_lab.batching._stream_threads import Stop
from mamba_lab.lengths import published_lengths

PACKERS = ("greedy", "sequential", "best_fit")


def all_ranks(documents: Any, world_size: int, **settings: Any) -> list[list[Batch]]:
    return [list(stream(documents, rank=rank, world_size=world_size, **settings)) for rank in range(world_size)]


@given(
    lengths=st.lists(st.integers(0, 50), max_size=40),
    capacity=st.integers(1, 40),
    buffer_size=st.integers(1, 12),
    world_size=st.integers(1, 4),
    rows=st.integers(1, 3),
    packer=st.sampled_from(PACKERS),
    overflow=st.sampled_from(["split", "truncate"]),
    shuffle=st.booleans(),
    by_number=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_no_token_and_no_target_is_lost_or_doubled(
    lengths: list[int],
    capacity: int,
    buffer_size: int,
    world_size: int,
    rows: int,
    packer: Any,
    overflow: Any,
    shuffle: bool,
    by_number: bool,
) -> None:
    documents = corpus(lengths)
    source = documents if by_number else OneAfterAnother(documents)
    made: list[Batch] = []
    counts: list[StreamCounts] = []
    steps = set()
    for rank in range(world_size):
        one = stream(
            source,
            capacity,
            buffer_size=buffer_size,
            world_size=world_size,
            rank=rank,
            rows=rows,
            packer=packer,
            overflow=overflow,
            shuffle=shuffle,
            check_batches=0,
        )
        batches = list(one)
        assert all(tuple(batch.input_ids.shape) == (rows, capacity) for batch in batches)
        steps.add(len(batches))
        counts.append(one.counts)
        made += batches
    assert len(steps) == 1
    assert tokens_and_targets(made) == expected(documents, capacity if overflow == "truncate" else None)
    # What was counted, by every rank for all of them.
    assert len(set(counts)) == 1
    real = sum(batch.n_tokens for batch in made)
    assert counts[0] == StreamCounts(
        documents=len(lengths),
        empty=lengths.count(0),
        dropped=sum(lengths) - real,
        tokens=real,
        padding=sum(batch.input_ids.numel() for batch in made) - real,
        steps=steps.pop(),
    )


def test_case_11_a_long_document_is_split_and_keeps_its_targets() -> None:
    batches = list(stream([np.arange(121)], 60, shuffle=False, packer="sequential"))
    assert [len(ids) for batch in batches for _, ids, _ in pieces(batch)] == [60, 60, 1]
    assert sum(batch.n_target_tokens for batch in batches) == 120
    only = stream([np.arange(121)], 60, overflow="truncate")
    (batch,) = only
    # The next token is known, though it was cut off.
    assert batch.targets[0, -1] == 60
    assert only.counts.dropped == 61


@pytest.mark.parametrize("packer", PACKERS)
def test_case_13_no_row_above_the_capacity(packer: str) -> None:
    documents = corpus([*some_lengths(30, longest=32), 33, *some_lengths(30, longest=32)])
    with pytest.raises(ValueError, match=r"document 30 has 33 tokens, above the capacity 32.*overflow='split'"):
        list(stream(documents, 32, packer=packer, overflow="error"))
    batches = list(stream(documents, 32, packer=packer))
    assert max(batch.n_tokens for batch in batches) <= 32
    assert tokens_and_targets(batches) == expected(documents)


def test_case_14_the_last_row_is_emitted_padded_and_counted() -> None:
    one = stream(corpus([20, 20, 3]), 32, shuffle=False, packer="sequential")
    first, last = one
    assert (first.n_tokens, last.n_tokens) == (20, 23)
    assert last.input_ids[0, 23:].tolist() == [PAD] * 9
    assert last.targets[0, 23:].tolist() == [-100] * 9
    assert last.sequence.tolist() == [1, 2, -1]
    assert one.counts == StreamCounts(documents=3, tokens=43, padding=21, steps=2)


def test_case_19_rows_of_a_multiple() -> None:
    one = stream(corpus(some_lengths(20)), 30, pad_to_multiple_of=8, rows=2)
    for batch in one:
        assert tuple(batch.input_ids.shape) == tuple(batch.targets.shape) == (2, 32)
        assert batch.boundaries.n_tokens == 64
    assert one.counts.tokens + one.counts.padding == 64 * one.counts.steps


def test_a_buffer_s_rest_joins_the_next_buffer() -> None:
    # 3 bins a buffer and 2 a step: padded per buffer, this would be 4 steps and a fourth of the rows empty.
    documents = corpus([32] * 6)
    batches = list(stream(documents, 32, rows=2, buffer_size=3))
    assert [batch.n_tokens for batch in batches] == [64, 64, 64]


def test_case_21_ranks_do_equal_work_on_the_published_lengths() -> None:
    documents = [np.full(length, 3, np.int32) for length in published_lengths(3_000)]
    for packer in ("greedy", "sequential"):
        made = all_ranks(documents, 8, capacity=2_048, packer=packer, buffer_size=1_024)
        work = np.array([[batch.n_tokens for batch in batches] for batches in made])
        assert work.shape[0] == 8
        assert work.sum(1).max() / work.sum(1).mean() < 1.02
        positions = [sum(batch.input_ids.numel() for batch in batches) for batches in made]
        assert len(set(positions)) == 1


def test_running_totals_stay_close() -> None:
    # Bins half full and full in turn: dealt in order, one rank would get all of the full ones.
    documents = corpus([32, 17] * 40)
    made = all_ranks(documents, 2, packer="sequential", shuffle=False)
    work = np.array([[batch.n_tokens for batch in batches] for batches in made])
    assert np.abs(np.diff(work.cumsum(1), axis=0)).max() <= 15


def test_the_last_step_is_spread_over_all_ranks() -> None:
    # 9 bins' worth of short documents for 4 ranks of 2 rows: 8 + 1, and the 1 is spread.
    made = all_ranks(corpus([4] * 72), 4, rows=2, buffer_size=100)
    assert [len(batches) for batches in made] == [2] * 4
    assert [batches[-1].n_tokens for batches in made] == [8] * 4
    # Long ones: each where the least lies.
    made = all_ranks(corpus([20, 12, 11, 9, 8, 4]), 4)
    assert sorted(batches[0].n_tokens for batches in made) == [12, 15, 17, 20]


def test_where_longest_first_overfills_a_row_the_fullest_rows_are_halved() -> None:
    def bin_of(*sizes: int) -> Bin:
        return Bin([(Tokens(0, np.zeros(size, np.int64), None), 0, size) for size in sizes], sum(sizes))

    full = [(16, 7, 1), (12, 12), (12, 12), (8, 7, 9), (5, 8, 11), (7, 6, 11), (7, 10, 7)]
    bins = [bin_of(*sizes) for sizes in full]
    whole = [piece for one in bins for piece in one.pieces]
    assert _emptiest(whole, 8, 24) is None
    made = spread(bins, 8, 24)
    assert [one.size for one in made] == [24] * 6 + [16, 8]
    assert sorted(id(piece[0]) for one in made for piece in one.pieces) == sorted(id(piece[0]) for piece in whole)


def test_fewer_pieces_than_rows_leave_rows_of_padding() -> None:
    made = all_ranks(corpus([5, 3]), 4)
    assert [len(batches) for batches in made] == [1] * 4
    empty = [batches[0] for batches in made if batches[0].n_tokens == 0]
    assert len(empty) == 2
    for batch in empty:
        assert batch.n_target_tokens == 0
        assert batch.sequence.tolist() == [-1]
        assert batch.max_seqlen == 0
        assert (batch.targets == -100).all()


def test_case_10_nothing_gives_no_batches() -> None:
    kinds: list[Any] = [[], [[]], OneAfterAnother([[], []]), lambda: iter(())]
    for documents in kinds:
        one = stream(documents, world_size=3)
        assert list(one) == []
        assert one.counts.steps == one.counts.tokens == one.counts.padding == 0


def test_empty_documents_are_counted_to_the_end() -> None:
    one = stream(corpus([0, 5, 0, 5, *[0] * 30]), 10, shuffle=False)
    (batch,) = one
    assert batch.sequence.tolist() == [1, 3]
    assert one.counts == StreamCounts(documents=34, empty=32, tokens=10, steps=1)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("by_number", [True, False])
def test_case_22_the_order_depends_on_seed_and_epoch_alone(workers: int, by_number: bool) -> None:
    documents: Any = corpus(some_lengths(50))
    if not by_number:
        documents = OneAfterAnother(documents)
    first = [contents(batch) for batch in stream(documents, seed=5)]
    np.random.default_rng().random()
    again = stream(documents, seed=5, workers=workers, prefetch=2)
    assert [contents(batch) for batch in again] == first
    assert [contents(batch) for batch in again] == first
    again.set_epoch(1)
    assert [contents(batch) for batch in again] != first
    again.set_epoch(0)
    assert [contents(batch) for batch in again] == first
    other = [contents(batch) for batch in stream(documents, seed=6, workers=workers)]
    assert other != first


DIGEST = """
import hashlib, numpy as np
from mamba_lab.batching import PackedStream
digest = hashlib.sha256()
documents = [[i] * n for i, n in enumerate(((np.arange(200) * 7919) % 97).tolist())]
for source in (documents, lambda: iter(documents)):
    for rank in range(2):
        stream = PackedStream(source, 64, seed=3, rank=rank, world_size=2, buffer_size=32, pad_id=0, workers=WORKERS)
        for batch in stream:
            digest.update(batch.input_ids.numpy().astype("<i8").tobytes())
print(digest.hexdigest()[:16])
"""


def test_case_22_the_order_on_every_machine() -> None:
    # Recorded once. It fails when the order changes, which would break the resume of every stored checkpoint.
    recorded = "b92635bf11f6fc06"
    for hash_seed, workers in (("1", 0), ("2", 2)):
        result = subprocess.run(
            [sys.executable, "-c", DIGEST.replace("WORKERS", str(workers))],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.split() == [recorded]


def test_by_number_all_documents_are_shuffled_else_only_a_buffer_s_bins() -> None:
    documents = corpus([32] * 100)
    order = [pieces(batch)[0][0] for batch in stream(documents)]
    assert order != sorted(order)
    assert max(abs(number - place) for place, number in enumerate(order)) > 30
    # Another epoch or seed puts other documents into a buffer, not just its bins into another order.
    one = stream(documents)
    one.set_epoch(1)
    first_buffers = [order[:10]] + [[pieces(batch)[0][0] for batch in s][:10] for s in (one, stream(documents, seed=1))]
    assert len({frozenset(numbers) for numbers in first_buffers}) == 3
    order = [pieces(batch)[0][0] for batch in stream(OneAfterAnother(documents))]
    assert order != sorted(order)
    assert [number // 10 for number in order] == [place // 10 for place in range(100)]
    # Buffers are not all shuffled alike.
    assert len({tuple(number % 10 for number in order[at : at + 10]) for at in range(0, 100, 10)}) > 5
    order = [pieces(batch)[0][0] for batch in stream(documents, shuffle=False)]
    assert order == sorted(order)


def test_case_20_nothing_is_inferred_from_token_values() -> None:
    (batch,) = stream([[PAD, PAD, 0], [PAD]], 8, shuffle=False)
    assert batch.input_ids.tolist() == [[PAD, PAD, 0, PAD, PAD, PAD, PAD, PAD]]
    assert batch.targets.tolist() == [[PAD, 0, -100, -100, -100, -100, -100, -100]]
    assert batch.sequence.tolist() == [0, 1, -1]


def test_tokenize_and_targets() -> None:
    texts = ["abc", "", "de"]
    (batch,) = stream(texts, 8, tokenize=lambda text: [ord(c) for c in text], shuffle=False)
    assert [(number, bytes(ids)) for number, ids, _ in pieces(batch)] == [(0, b"abc"), (2, b"de")]
    # A prompt that is read but not taught, from the document itself.
    documents = [{"ids": [1, 2, 3, 4], "prompt": 2}, {"ids": [5, 6, 7], "prompt": 1}]
    wanted = [[-100, 3, 4, -100, 6, 7, -100, -100]]
    (batch,) = stream(
        documents,
        8,
        shuffle=False,
        tokenize=lambda document: document["ids"],
        targets=lambda document, ids: make_targets(ids, "prompt", prompt_length=document["prompt"]),
    )
    assert batch.targets.tolist() == wanted
    # The same as a pair.
    (batch,) = stream(
        documents,
        8,
        shuffle=False,
        tokenize=lambda d: (d["ids"], make_targets(d["ids"], "prompt", prompt_length=d["prompt"])),
    )
    assert batch.targets.tolist() == wanted
    # Pairs without tokenize; a document without targets beside it; a tuple of two ids is two tokens.
    (batch,) = stream([([1, 2, 3], [-100, 3, -100]), [4, 5], (6, 7)], 8, shuffle=False)
    assert batch.targets.tolist() == [[-100, 3, -100, 5, -100, 7, -100, -100]]


def test_a_tokenizer_may_use_its_array_again() -> None:
    shared = np.zeros(3, np.int64)

    def tokenize(number: int) -> Any:
        shared[:] = number
        return shared

    made = list(stream(range(10), 9, tokenize=tokenize))
    assert Counter(ids[0] for batch in made for _, ids, _ in pieces(batch)) == Counter(range(10))


def test_ids_beyond_int32_stay_whole() -> None:
    (batch,) = stream([[1 << 40, 2]], 4)
    assert batch.input_ids.tolist() == [[1 << 40, 2, PAD, PAD]]


def test_case_23_the_first_batches_are_checked_before_any_is_given_out() -> None:
    documents = corpus(some_lengths(60, longest=20))

    def shifted_twice(_: Any, ids: Any) -> Any:
        return [*ids[2:], -100, -100][: len(ids)]

    for workers in (0, 1):
        with pytest.raises(ValueError, match=r"(?s)first 8 batches of rank 0:\n- shifted twice: .*check_batches=0"):
            next(iter(stream(documents, targets=shifted_twice, workers=workers)))
        # A mistake that begins later than the check does is not seen: the check is of the first batches.
        assert len(list(stream(documents, targets=shifted_twice, workers=workers, check_batches=0))) > 8
    with pytest.raises(ValueError, match="all masked"):
        list(stream(documents, targets=lambda _, ids: [-100] * len(ids)))
    # An epoch shorter than the check is checked too.
    with pytest.raises(ValueError, match=r"(?s)in the first batch of rank 0:\n- not shifted"):
        list(stream(documents[:2], 64, targets=lambda _, ids: ids))


def test_right_targets_pass_the_check_where_documents_are_cut() -> None:
    # The piece that goes on elsewhere has a target at its end; it may even equal its neighbour's first token.
    documents = [[1] * 50 for _ in range(20)]
    for overflow in ("split", "truncate"):
        for batch in stream(documents, 32, overflow=overflow, check_batches=100):
            assert batch.n_target_tokens > 0
    assert check_targets(list(stream(corpus(some_lengths(30))))).ok


def test_the_state_is_small_and_equal_on_every_rank() -> None:
    documents = corpus(some_lengths(50))
    made = all_ranks(documents, 2)
    for one, other in zip(*made, strict=True):
        assert one.stream_state == other.stream_state
        assert one.stream_state is not other.stream_state
        assert len(json.dumps(one.stream_state)) < 700


LONG_PROMPTS = [([1] * 300, make_targets([1] * 300, "prompt", prompt_length=298))] * 10


@pytest.mark.parametrize("workers", [0, 1])
def test_few_targets_at_the_start_of_an_epoch(workers: int) -> None:
    chosen: dict[str, Any] = {"capacity": 300, "workers": workers}
    with pytest.raises(ValueError, match=r"(?s)first 8 steps of all ranks:\n- nearly all masked: .*min_target_share"):
        list(stream(LONG_PROMPTS, **chosen))
    for lower in (0, 0.006):
        assert len(list(stream(LONG_PROMPTS, min_target_share=lower, **chosen))) == 10
    # Fewer batches than are looked at say less, and so does what remains after a resume.
    assert len(list(stream(LONG_PROMPTS[:5], **chosen))) == 5


def test_a_masked_rest_of_an_epoch_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    documents = [([1, 2, 3, 4], [2, 3, 4, -100]), ([*range(1, 9)], [2, 3, 4, -100, *[-100] * 4])]
    state: Any = [batch.stream_state for batch in stream(documents, 4, shuffle=False)][1]
    assert caplog.text == ""
    one = stream(documents, 4, shuffle=False, check_batches=1)
    one.load_state_dict(state)
    (batch,) = one
    assert batch.n_target_tokens == 0
    assert "few targets in the first step of all ranks after this start: all masked: none of 4 tokens" in caplog.text


def test_every_rank_decides_alike_whether_there_are_targets() -> None:
    # One rank's rows teach nothing: documents of one token. All rows together teach enough.
    half = all_ranks([[5], [1] * 100], 2, capacity=128, check_batches=1)
    assert sorted(batches[0].n_target_tokens for batches in half) == [0, 99]
    for rank in range(2):
        with pytest.raises(
            ValueError, match=r"(?s)in the first step of all ranks:\n- nearly all masked: only 2 of 301"
        ):
            list(stream([*LONG_PROMPTS[:1], [5]], 300, rank=rank, world_size=2, check_batches=1))


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([2, 9, -100], "the target 9 at 1, where the next token is 3"),
        ([2, 3, 9], "the target 9 at 2, its last position"),
    ],
)
def test_every_rank_stops_at_a_wrong_target(targets: list[int], says: str) -> None:
    documents: list[Any] = [([1, 2, 3], [2, 3, -100])] * 12
    documents[5] = ([1, 2, 3], targets)
    found = []
    for rank in range(3):
        with pytest.raises(ValueError, match="check_batches=0") as caught:
            list(stream(documents, 3, rank=rank, world_size=3))
        found.append(str(caught.value))
    assert sum(f"4 steps of another rank: document 5 has {says}." in message for message in found) == 2
    assert sum("4 batches of rank" in message for message in found) == 1


@given(
    documents=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=12),
    own=st.booleans(),
    overflow=st.sampled_from(["split", "truncate"]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_counted_before_a_batch_is_made_is_what_batches_hold(documents: Any, own: bool, overflow: Any) -> None:
    if own:
        documents = [(ids, make_targets(ids, "assistant", said=[token == 1 for token in ids])) for ids in documents]
    settings = BufferSettings(16, "greedy", 100, overflow, 0, None, None)
    (buffer,) = make_buffers(iter(enumerate(documents)), 0, settings, None, Stop())
    taught = Taught()
    taught.add([buffer.bins[::2], buffer.bins[1::2]])
    made = stream(documents, 16, buffer_size=100, overflow=overflow, check_batches=0)
    assert taught.targets == sum(batch.n_target_tokens for batch in made)
    assert (taught.tokens, taught.steps, taught.wrong) == (made.counts.tokens, 1, "")
