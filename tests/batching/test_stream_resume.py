from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_help import OneAfterAnother, contents, corpus, some_lengths, stream

from mamba_lab.batching import PackedStream, make_targets


def everything(one: PackedStream) -> tuple[list[Any], list[Any]]:
    """What each batch holds, with its state; and the counts after each batch and at the end."""
    held, counts = [], []
    for batch in one:
        held.append((contents(batch), batch.stream_state))
        counts.append(one.counts)
    return held, [*counts, one.counts]


@pytest.mark.parametrize("by_number", [True, False])
@pytest.mark.parametrize(
    ("world_size", "rows", "buffer_size"),
    [
        (1, 1, 10),  # in the middle of a buffer
        (2, 1, 7),  # with a rest that was carried over
        (2, 3, 4),  # a step takes several buffers
        (3, 2, 100),  # one buffer, and the last step
    ],
)
def test_case_15_stop_after_every_batch_and_go_on(
    by_number: bool, world_size: int, rows: int, buffer_size: int
) -> None:
    documents: Any = corpus([*some_lengths(45), 0, 0])
    source = documents if by_number else OneAfterAnother(documents)
    given_settings: dict[str, Any] = {
        "world_size": world_size,
        "rank": world_size - 1,
        "rows": rows,
        "buffer_size": buffer_size,
        "check_batches": 0,
    }
    straight = stream(source, **given_settings)
    straight.set_epoch(4)
    held, counts = everything(straight)
    assert len(held) > 3
    for done, (_, state) in enumerate(held, 1):
        resumed = stream(source, **given_settings, workers=done % 3, prefetch=1 + done % 4)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.epoch == 4
        assert resumed.counts.tokens == counts[done - 1].tokens
        resumed.set_epoch(4)  # a training loop says so at the start of each epoch
        assert everything(resumed) == (held[done:], counts[done:])
        # Only the first iteration after a restore is shorter.
        if done % 5 == 0:
            assert everything(resumed)[0] == held


@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    buffer_size=st.integers(1, 12),
    world_size=st.integers(1, 3),
    rows=st.integers(1, 3),
    packer=st.sampled_from(["greedy", "sequential"]),
    overflow=st.sampled_from(["split", "truncate"]),
    by_number=st.booleans(),
    place=st.floats(0, 0.999),
)
@settings(max_examples=80, deadline=None)
def test_resume_anywhere(
    lengths: list[int],
    buffer_size: int,
    world_size: int,
    rows: int,
    packer: Any,
    overflow: Any,
    by_number: bool,
    place: float,
) -> None:
    documents = corpus(lengths)
    source = documents if by_number else OneAfterAnother(documents)
    chosen: dict[str, Any] = {
        "buffer_size": buffer_size,
        "world_size": world_size,
        "rows": rows,
        "packer": packer,
        "overflow": overflow,
        "check_batches": 0,
    }
    held, counts = everything(stream(source, **chosen))
    if held:
        done = int(place * len(held))
        resumed = stream(source, **chosen)
        resumed.load_state_dict(held[done][1])
        assert everything(resumed) == (held[done + 1 :], counts[done + 1 :])


def test_a_state_of_before_is_not_that_of_the_batches_made_ahead() -> None:
    one = stream(corpus([32] * 40), workers=2, prefetch=8)
    running = iter(one)
    states: list[Any] = [next(running).stream_state for _ in range(3)]
    assert one.state_dict() == states[-1]
    assert states[-1]["counts"]["steps"] == 3
    # It is a copy.
    one.state_dict()["settings"]["seed"] = 1
    assert one.state_dict() == states[-1]


def test_a_rank_may_load_the_state_of_another() -> None:
    documents = corpus(some_lengths(50))
    first, second = (stream(documents, rank=rank, world_size=2) for rank in range(2))
    whole = [contents(batch) for batch in second]
    state: Any = next(iter(first)).stream_state
    second.load_state_dict(state)
    assert [contents(batch) for batch in second] == whole[1:]


def test_set_epoch_after_a_restore() -> None:
    one = stream(corpus([32] * 20))
    state: Any = next(iter(one)).stream_state
    one.load_state_dict(state)
    one.set_epoch(1)
    assert len(list(one)) == 20
    # What is over stays over.
    last: Any = list(one)[-1].stream_state
    one.load_state_dict(last)
    assert list(one) == []
    assert one.counts.steps == 20
    assert len(list(one)) == 20


def test_resume_passes_over_documents_without_tokenising_them() -> None:
    seen: list[int] = []

    def tokenize(document: Any) -> Any:
        seen.append(int(document[0]) // 1_000)
        return document

    documents = corpus([32] * 40)
    read: list[int] = []

    class Numbered:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return documents[index]

    for source in (OneAfterAnother(documents), Numbered()):
        one = stream(source, tokenize=tokenize, check_batches=0)
        state: Any = [batch.stream_state for batch in one][24]
        seen.clear()
        read.clear()
        one.load_state_dict(state)
        assert len(list(one)) == 15
        # The buffer that the place lies in is read again.
        assert len(seen) == 20
        if isinstance(source, OneAfterAnother):
            assert seen == list(range(20, 40))
        else:
            assert sorted(seen) == sorted(read)


def test_a_state_of_another_run_is_refused() -> None:
    documents = corpus(some_lengths(40))
    good = stream(documents)
    state: Any = next(iter(good)).stream_state
    others: dict[str, Any] = {
        "documents": stream(documents[:-1]),
        "capacity": stream(documents, 33),
        "rows": stream(documents, rows=2),
        "packer": stream(documents, packer="sequential"),
        "buffer_size": stream(documents, buffer_size=11),
        "overflow": stream(documents, overflow="truncate"),
        "shuffle": stream(documents, shuffle=False),
        "seed": stream(documents, seed=1),
        "world_size": stream(documents, world_size=2),
        "pad_id": stream(documents, pad_id=8),
        "pad_to_multiple_of": stream(documents, pad_to_multiple_of=8),
    }
    assert set(others) == set(state["settings"])
    for key, other in others.items():
        with pytest.raises(ValueError, match=rf"another run: {key} is .* in the state and .* here"):
            other.load_state_dict(state)
    # Nothing changed.
    assert good.state_dict() == state
    # These may differ.
    stream(documents, workers=3, prefetch=1, check_batches=0, rank=0).load_state_dict(state)


def test_changed_documents_are_found_out() -> None:
    documents = corpus([20] * 40)
    one = stream(documents, shuffle=False)
    state: Any = [batch.stream_state for batch in one][13]
    changed = [document.copy() for document in documents]
    changed[12][3] += 1
    other = stream(changed, shuffle=False)
    other.load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"from number 10 on are not those of the state.*documents, tokenize or targets have"
    ):
        list(other)
    for source in (OneAfterAnother(documents), OneAfterAnother(documents[:9]), OneAfterAnother(documents[:10])):
        other = stream(source, shuffle=False)
        other.load_state_dict(state | {"settings": state["settings"] | {"documents": None}})
        if len(source.documents) == 40:
            assert len(list(other)) == 26
            continue
        with pytest.raises(ValueError, match=r"only 9|no documents from number 10 on"):
            list(other)
    # A length alone tells them apart, too: 20 + 20 tokens are not 19 + 21.
    others = np.split(np.concatenate(documents[10:20]), range(19, 190, 20))
    other = stream([*documents[:10], *others, *documents[20:]], shuffle=False)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="not those of the state"):
        list(other)


def test_what_is_no_state() -> None:
    one = stream(corpus([5] * 10))
    with pytest.raises(ValueError, match=r"no batch was received in this process.*batch\.stream_state"):
        one.state_dict()
    state: Any = next(iter(one)).stream_state
    wrong: Any
    for wrong, message in (
        (None, "state must be the stream_state of a Batch, got None"),
        ({}, "state has no epoch, document, taken"),
        (state | {"settings": 3}, r"state\['settings'\] must be a dict"),
        (state | {"document": -1}, r"state\['document'\] must be at least 0"),
        (state | {"document": True}, r"state\['document'\] must be an integer"),
        (state | {"load": [1, 2]}, r"state\['load'\] must have 1 entries"),
        (state | {"load": [0.5]}, r"state\['load'\] must be an integer"),
        (state | {"counts": {}}, r"state\['counts'\] must have documents, empty"),
        (state | {"crc32": "a"}, r"state\['crc32'\] must be an integer"),
        (state | {"crc32": None, "taken": 3}, r"state\['crc32'\] is None, but 3 rows of a buffer were taken"),
    ):
        with pytest.raises(ValueError, match=message):
            one.load_state_dict(wrong)
    assert one.state_dict() == state
    one.load_state_dict(state | {"document": 11})
    with pytest.raises(ValueError, match="after 11 documents, but there are only 10"):
        list(one)
    one.load_state_dict(state | {"taken": 99})
    with pytest.raises(ValueError, match="are not those of the state"):
        list(one)


def test_other_targets_are_found_out() -> None:
    documents = corpus([20] * 40)
    state: Any = [batch.stream_state for batch in stream(documents, shuffle=False)][13]
    # The next token, whether it is left to the stream or made outside, is the same.
    same = stream(documents, shuffle=False, targets=lambda _, ids: make_targets(ids))
    same.load_state_dict(state)
    assert len(list(same)) == 26
    other = stream(documents, shuffle=False, targets=lambda _, ids: make_targets(ids, "prompt", prompt_length=5))
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="are not those of the state"):
        list(other)


def test_a_failed_first_step_keeps_the_place() -> None:
    documents = corpus([32] * 40)
    failing = [True]

    def tokenize(document: Any) -> Any:
        if failing[0]:
            raise OSError("gone")
        return document

    for workers in (0, 2):
        one = stream(documents, tokenize=tokenize, workers=workers)
        failing[0] = False
        whole = everything(one)[0]
        one.load_state_dict(whole[12][1])
        failing[0] = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match="tokenize failed: OSError"):
                list(one)
        failing[0] = False
        assert everything(one)[0] == whole[13:]
        assert everything(one)[0] == whole


def test_a_place_restored_while_another_iteration_runs_is_kept() -> None:
    one = stream(corpus([32] * 20))
    whole = everything(one)[0]
    running = iter(one)
    next(running)
    one.load_state_dict(whole[14][1])
    next(running)
    assert everything(one)[0] == whole[15:]
