"""The eight schemes under one face: an epoch as groups of micro-batches, and an exact place after every group.

Three draw from the same packs: "packed-greedy" runs them as they are, "one-at-a-time" each sequence of a pack by
itself, "concat" each row as one sequence. So these three see the same tokens in the same order, step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from mamba_lab.batching import Batch, PackedStream
from mamba_lab.log import log_once

from .documents import Sequences
from .planned import Fixed, Padded
from .rearrange import joined, one_by_one
from .streamed import StreamedDocuments
from .weights import sequence_weights

if TYPE_CHECKING:
    from .config import PackingConfig


class Scheme(Protocol):
    """How documents become micro-batches.

    A group is one micro-batch, except under "one-at-a-time", where it is the sequences of one pack.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """What the order depends on, beside what it depends on under every scheme."""

    def groups(self, epoch: int, place: Any) -> Generator[tuple[list[Batch], Any], None, None]:
        """The groups after ``place`` (None: all of the epoch's), each with the place after it, which JSON can hold."""

    def count(self, epoch: int) -> int | None:
        """Groups of an epoch; None where only reading it would tell."""


def make_scheme(
    documents: Sequences | StreamedDocuments, packing: PackingConfig, *, weighted: bool, **options: Any
) -> Scheme:
    """The scheme that ``packing.scheme`` names.

    Args:
        weighted: give the batches ``sequence_weights``.
        options: pad_id, seed, rank, world_size.

    Raises:
        ValueError: settings that the scheme cannot work with.
    """
    if packing.scheme not in ("fixed", "padded", "bucketed"):
        return Packed(documents, packing, weighted=weighted, **options)
    if not isinstance(documents, Sequences):
        raise ValueError(
            f'data.streaming is true, but packing.scheme "{packing.scheme}" must know all lengths first. Take '
            f'"packed-greedy".'
        )
    if packing.scheme == "fixed":
        return Fixed(documents, packing, weighted=weighted, **options)
    return Padded(documents, packing, weighted=weighted, **options, bucketed=packing.scheme == "bucketed")


class Packed:
    """Packs from a ``PackedStream``, run as they are, one sequence at a time or leaking."""

    def __init__(
        self, documents: Sequences | StreamedDocuments, packing: PackingConfig, *, weighted: bool, **options: Any
    ) -> None:
        self._run: Callable[[Batch], list[Batch]] = _RUN.get(packing.scheme, lambda batch: [batch])
        self._packing = packing
        self._options = options | {
            "packer": _PACKER.get(packing.scheme, "greedy"),
            "weights": sequence_weights if weighted else None,
        }
        self._documents: Any = documents
        self._lengths = None
        if isinstance(documents, Sequences):
            self._documents = list(zip(documents.ids, documents.targets, strict=True))
            self._lengths = documents.lengths
            _require_filled(self._lengths, packing, options["world_size"])
        else:
            self._options["tokenize"] = documents.tokenize
        if packing.scheme == "concat":
            log_once(
                logging.WARNING,
                'packing.scheme = "concat": each row is one sequence, so state leaks from one document into the next. '
                'This is for comparison only; train with "packed-greedy".',
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {"rows": self._packing.rows, "buffer_size": self._packing.buffer_size}

    def groups(self, epoch: int, place: Any) -> Generator[tuple[list[Batch], Any], None, None]:
        stream = self._stream()
        stream.set_epoch(epoch)
        if place is not None:
            stream.load_state_dict(place)
        with closing(iter(stream)) as batches:
            for batch in batches:
                yield self._run(batch), batch.stream_state

    def count(self, epoch: int) -> int | None:
        return None if self._lengths is None else self._stream().count_steps(self._lengths, epoch)

    def _stream(self) -> PackedStream:
        packing = self._packing
        return PackedStream(
            self._documents,
            packing.capacity,
            rows=packing.rows,
            buffer_size=packing.buffer_size,
            overflow=packing.overflow,
            shuffle=packing.shuffle,
            workers=packing.workers,
            prefetch=packing.prefetch,
            pad_to_multiple_of=packing.pad_to_multiple_of,
            **self._options,
        )


def _require_filled(lengths: Any, packing: PackingConfig, world_size: int) -> None:
    """Refuse rows that no document can fill, where they would cost memory. A few empty ones in a small trial do not.

    Raises:
        ValueError: naming ``packing.rows`` or ``packing.capacity`` and how much of it can be filled.
    """
    most = int((-(-lengths // packing.capacity)).sum())  # as many as if nothing were packed together
    if (packing.rows * world_size - most) * packing.width > _EMPTY_POSITIONS:
        raise ValueError(
            f"packing.rows is {packing.rows:,}, but all documents to train on fill at most {most:,} rows of "
            f"{packing.capacity:,} tokens: the others would be padding in every micro-batch. Take fewer rows."
        )
    if packing.capacity - (tokens := int(lengths.sum())) > _EMPTY_POSITIONS:
        raise ValueError(
            f"packing.capacity is {packing.capacity:,}, but all documents to train on have {tokens:,} tokens together: "
            f"the rest would be padding in every row. Take a capacity of at most {tokens:,}."
        )


_EMPTY_POSITIONS = 1 << 20
_PACKER: dict[str, Any] = {"packed-sequential": "sequential", "packed-best-fit": "best_fit"}
_RUN: dict[str, Callable[[Batch], list[Batch]]] = {"one-at-a-time": one_by_one, "concat": lambda batch: [joined(batch)]}
