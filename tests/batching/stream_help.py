"""What the tests of PackedStream share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mamba_lab.batching import Batch, PackedStream

PAD = 7


def corpus(lengths: list[int]) -> list[np.ndarray[Any, Any]]:
    """A document of each length. Every token says which document it is of and where it stands there."""
    return [1_000 * number + np.arange(length) for number, length in enumerate(lengths)]


def some_lengths(n: int, longest: int = 40, seed: int = 1) -> list[int]:
    drawn = np.random.RandomState(seed).randint(1, longest + 1, n)
    return [int(length) for length in drawn]


class OneAfterAnother:
    """Documents that can be read only in order, and again. Counts how many were read."""

    def __init__(self, documents: list[Any]) -> None:
        self.documents = documents
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        self.read = 0
        for document in self.documents:
            self.read += 1
            yield document


def stream(documents: Any, capacity: int = 32, **settings: Any) -> PackedStream:
    return PackedStream(documents, capacity, **({"pad_id": PAD, "workers": 0, "buffer_size": 10} | settings))


def contents(batch: Batch) -> tuple[Any, ...]:
    """All that a batch holds, for comparing."""
    return (
        batch.input_ids.tolist(),
        batch.targets.tolist(),
        batch.boundaries.cu_seqlens.tolist(),
        batch.sequence.tolist(),
        batch.n_tokens,
        batch.n_target_tokens,
    )


def pieces(batch: Batch) -> list[tuple[int, list[int], list[int]]]:
    """(document, ids, targets) of every piece, padding left out."""
    ids, targets, cu = batch.input_ids.flatten(), batch.targets.flatten(), batch.boundaries.cu_seqlens.tolist()
    return [
        (number, ids[cu[i] : cu[i + 1]].tolist(), targets[cu[i] : cu[i + 1]].tolist())
        for i, number in enumerate(batch.sequence.tolist())
        if number >= 0
    ]


def tokens_and_targets(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """(document, token, target) of every position, sorted."""
    return sorted(
        (number, token, target)
        for batch in batches
        for number, ids, targets in pieces(batch)
        for token, target in zip(ids, targets, strict=True)
    )


def expected(documents: list[Any], most: int | None = None) -> list[tuple[int, int, int]]:
    """What ``tokens_and_targets`` must give: every token once, with the next one as target."""
    found = []
    for number, document in enumerate(documents):
        after = [*document[1:].tolist(), -100][: len(document)]
        found += [(number, int(t), int(a)) for t, a in zip(document[:most], after[:most], strict=True)]
    return sorted(found)
