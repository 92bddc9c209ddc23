from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stream_help import PAD, corpus, pieces, some_lengths, stream

from mamba_lab.batching import PackedStream, _stream_epoch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"capacity": 2.0}, "capacity must be an integer"),
        ({"capacity": 2**31}, r"rows \* capacity is 1 \* 2147483648, above the int32 limit"),
        ({"capacity": 2**30, "rows": 2}, r"above the int32 limit.*Use fewer rows"),
        ({"capacity": 2**31 - 1, "pad_to_multiple_of": 8}, "above the int32 limit"),
        ({"rows": 0}, "rows must be at least 1"),
        ({"packer": "best"}, "packer must be one of 'greedy', 'sequential', 'best_fit', got 'best'"),
        ({"packer": ["greedy"]}, "packer must be one of"),
        ({"overflow": "cut"}, "overflow must be one of 'error', 'split', 'truncate', got 'cut'"),
        ({"buffer_size": 0}, "buffer_size must be at least 1"),
        ({"shuffle": 1}, "shuffle must be True or False, got 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"rank": 2, "world_size": 2}, "rank is 2, but world_size 2 has ranks 0 to 1"),
        ({"rank": -1}, "rank must be at least 0"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"workers": -1}, "workers must be at least 0"),
        ({"workers": True}, "workers must be an integer"),
        ({"prefetch": 0}, "prefetch must be at least 1"),
        ({"pad_id": -1}, "pad_id must be at least 0"),
        ({"pad_id": None}, "pad_id must be an integer"),
        ({"pad_id": 2**63}, "pad_id is 9223372036854775808, above the int64 limit"),
        ({"min_target_share": 2}, "min_target_share must lie between 0 and 1"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1"),
        ({"check_batches": -1}, "check_batches must be at least 0"),
        ({"tokenize": "gpt2"}, "tokenize must be a function, got 'gpt2'"),
        ({"targets": [1, 2]}, r"targets must be a function, got \[1, 2\]"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    chosen = {"capacity": 8, "pad_id": 0} | arguments
    with pytest.raises(ValueError, match=message):
        PackedStream([[1, 2]], **chosen)


def generator() -> Iterator[list[int]]:
    yield [1, 2]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (generator(), r"documents is an iterator \(generator\), which can be read only once.*fresh iterator"),
        (map(list, [[1]]), r"documents is an iterator \(map\).*lambda: read\(path\)"),
        (zip([1], [2], strict=True), "can be read only once"),
        ("a text", "documents must be a list of documents, got 'a text'"),
        ({"a": [1]}, "of a mapping, a set or a table"),
        ({(1, 2)}, "of a mapping, a set or a table"),
        (SimpleNamespace(columns=["text"], iloc=None), "of a mapping, a set or a table"),
        (5, "documents must be a list, a data set or a function that returns an iterator, got 5"),
        (None, "documents must be a list, a data set or a function that returns an iterator, got None"),
    ],
)
def test_documents_that_cannot_be(documents: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(documents)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_returns_the_same_iterator_again(workers: int) -> None:
    once = generator()
    one = stream(lambda: once, workers=workers)
    assert len(list(one)) == 1
    with pytest.raises(ValueError, match=r"returned the same iterator \(generator\) again"):
        list(one)


def test_a_function_that_returns_no_iterator() -> None:
    with pytest.raises(ValueError, match="documents cannot be read: TypeError"):
        list(stream(lambda: 5))


def test_all_kinds_of_documents() -> None:
    class MapStyle(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return [[1, 2], [3]][index]

    class Iterable(torch.utils.data.IterableDataset[Any]):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return iter([[1, 2], [3]])

    kinds: list[Any] = [
        [[1, 2], [3]],
        ((1, 2), (3,)),
        [torch.tensor([1, 2]), torch.tensor([3], dtype=torch.int32)],
        MapStyle(),
        Iterable(),
        lambda: iter([[1, 2], [3]]),
        lambda: [[1, 2], [3]],
    ]
    for documents in kinds:
        (batch,) = stream(documents, 8, shuffle=False)
        assert batch.input_ids[0, :3].tolist() == [1, 2, 3], documents
    (batch,) = stream(torch.tensor([[1, 2], [3, 4]]), 8, shuffle=False)
    assert batch.input_ids[0, :4].tolist() == [1, 2, 3, 4]


def test_a_series_is_read_by_place() -> None:
    class Series:
        """What pandas' Series does: [] takes labels."""

        iloc = None

        def __init__(self) -> None:
            self.values = {10: [1, 2], 20: [3]}

        def __len__(self) -> int:
            return 2

        def __getitem__(self, label: int) -> Any:
            return self.values[label]

        def __iter__(self) -> Any:
            return iter(self.values.values())

    (batch,) = stream(Series(), 8, shuffle=False)
    assert [number for number, _, _ in pieces(batch)] == [0, 1]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (5, "document 2, token ids must be a list, array or tensor of integers, got 5"),
        ([1.5], "document 2, token ids must hold integers"),
        ([True], "document 2, token ids must hold integers, got a bool"),
        ([[1, 2]], "document 2, token ids must have one dimension"),
        ([4, -3], r"document 2, token ids\[1\] is -3: token ids are never negative"),
        ("a text", "document 2 is a str, not token ids. Give tokenize.*encode"),
        (SimpleNamespace(text="a"), "document 2 is a SimpleNamespace, not token ids.*such as tokenize_document from"),
        (None, "document 2, token ids must be a list"),
        (([1, 2], [2]), "document 2 has 2 tokens, but 1 targets"),
        (([1, 2], [2, -1]), r"document 2, targets\[1\] is -1.*-100 alone"),
        (([1, 2], [2.0, 1.0]), "document 2, targets must hold integers"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_documents_that_are_none(document: Any, message: str, workers: int) -> None:
    with pytest.raises(ValueError, match=message):
        list(stream([[1], [2], document, [3]], shuffle=False, workers=workers))


def test_the_number_is_that_of_the_data_set_when_shuffled() -> None:
    documents: list[Any] = corpus(some_lengths(60))
    documents[41] = "a text"
    with pytest.raises(ValueError, match="document 41 is a str"):
        list(stream(documents, check_batches=0))


def test_targets_twice_or_none() -> None:
    with pytest.raises(ValueError, match="document 0 comes with targets, and the argument targets would make others"):
        list(stream([([1, 2], [2, -100])], targets=lambda _, ids: ids))
    with pytest.raises(ValueError, match=r"document 0: targets returned None, expected \[2\] integers"):
        list(stream([[1, 2]], targets=lambda _, ids: None))
    with pytest.raises(ValueError, match="document 0: targets failed: TypeError"):
        list(stream([[1, 2]], targets=lambda ids: ids))


def test_a_bad_epoch() -> None:
    one = stream([[PAD]])
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        one.set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("n", [5, 20])
def test_a_list_that_has_changed_its_size(workers: int, n: int) -> None:
    documents = [[1] * 4 for _ in range(10)]
    one = stream(documents, workers=workers)
    documents[:] = [[1] * 4 for _ in range(n)]
    with pytest.raises(
        ValueError, match=rf"documents has {n} entries now and had 10 when.*Build the PackedStream anew"
    ):
        list(one)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("broken_off", [False, True])
def test_an_exhausted_source_behind_a_fresh_wrapper(workers: int, broken_off: bool) -> None:
    under = (document for document in [[1] * 32] * 10)
    one = stream(lambda: itertools.chain(under), workers=workers, check_batches=0, buffer_size=20)
    if broken_off:
        next(iter(one))
    else:
        assert len(list(one)) == 10
    with pytest.raises(ValueError, match=r"documents gave 10 documents before and none now: .*can be read only once"):
        list(one)
    # Nothing from the start is no mistake, and neither is something after nothing.
    filled: list[Any] = []
    one = stream(lambda: iter(filled))
    assert list(one) == []
    filled.append([1, 2])
    assert len(list(one)) == 1


def test_a_source_that_gives_fewer_documents_than_before(caplog: pytest.LogCaptureFixture) -> None:
    documents = [[1] * 32] * 11
    one = stream(lambda: iter(documents), check_batches=0)
    assert len(list(one)) == 11
    assert caplog.text == ""
    documents.pop()
    assert len(list(one)) == 10
    assert "documents gave 11 documents before and 10 now" in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_do_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 15.3 GiB for an array with shape (2048000000,) and data type int64")

    monkeypatch.setattr(_stream_epoch, "collate_bins", no_room)
    with pytest.raises(MemoryError) as caught:
        list(stream(corpus([5, 9]), 2048, rows=1_000, pad_to_multiple_of=5, workers=workers))
    assert str(caught.value) == (
        "a batch of rows * capacity = 1,000 * 2,050 positions does not fit in memory: its ids and targets take 0.0 "
        "GiB. Use fewer rows or a smaller capacity."
    )
