"""How many steps an epoch has, from lengths alone: as many as the stream then gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_help import OneAfterAnother, corpus, stream


@given(
    lengths=st.lists(st.integers(0, 40), min_size=0, max_size=25),
    packer=st.sampled_from(["greedy", "sequential", "best_fit"]),
    overflow=st.sampled_from(["split", "truncate"]),
    buffer_size=st.integers(1, 30),
    rows=st.integers(1, 3),
    world_size=st.integers(1, 3),
    shuffle=st.booleans(),
    by_number=st.booleans(),
    epoch=st.integers(0, 2),
)
@settings(max_examples=80, deadline=None)
def test_as_many_steps_as_the_stream_gives(
    lengths: list[int],
    packer: str,
    overflow: str,
    buffer_size: int,
    rows: int,
    world_size: int,
    shuffle: bool,
    by_number: bool,
    epoch: int,
) -> None:
    documents = corpus(lengths)
    made = stream(
        documents if by_number else OneAfterAnother(documents),
        16,
        packer=packer,
        overflow=overflow,
        buffer_size=buffer_size,
        rows=rows,
        world_size=world_size,
        shuffle=shuffle,
    )
    made.set_epoch(epoch)
    assert made.count_steps(lengths, epoch) == len(list(made))


def test_epochs_differ_where_the_order_does() -> None:
    lengths = [int(n) for n in np.random.RandomState(0).randint(1, 33, 400)]
    made = stream(corpus(lengths), 32, packer="sequential")
    assert len({made.count_steps(lengths, epoch) for epoch in range(6)}) > 1


def test_nothing_is_read_or_tokenised() -> None:
    def tokenize(document: object) -> object:
        raise AssertionError("tokenised")

    documents = OneAfterAnother(corpus([5, 6]))
    assert stream(documents, 8, tokenize=tokenize).count_steps([5, 6], 0) == 2
    assert documents.read == 0


def test_lengths_that_cannot_be() -> None:
    made = stream(corpus([5, 60]), 16, overflow="error")
    with pytest.raises(ValueError, match="lengths has 3 entries, but there are 2 documents"):
        made.count_steps([1, 2, 3], 0)
    with pytest.raises(ValueError, match=r"lengths\[1\] is 60, above the capacity 16"):
        made.count_steps([5, 60], 0)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        made.count_steps([5, 6], -1)
