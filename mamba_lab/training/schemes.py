"""The eight schemes under one face: an epoch as groups of micro-batches, and an exact place after every group.

Three draw from the same packs: "packed-greedy" runs them as they are, "one-at-a-time" each sequence of a pack by
itself, "concat" each row as one sequence. So these three see the same tokens in the same order, step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from mamba_lab.batching import Batch, PackedStream
from mamba_lab.log import log_once

from .documents import Sequences
from .planned import Fixed, Padded
from .rearrange import joined, one_by_one

if TYPE_CHECKING:
    from .config import PackingConfig

SCHEMES = (
    "fixed",
    "padded",
    "bucketed",
    "packed-sequential",
    "packed-greedy",
    "packed-best-fit",
    "one-at-a-time",
    "concat",
)


class Scheme(Protocol):
    """How documents become micro-batches.

    A group is one micro-batch, except under "one-at-a-time", where it is the sequences of one pack.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """What the order depends on, beside what it depends on under every scheme."""

    def groups(self, epoch: int, place: Any) -> Iterator[tuple[list[Batch], Any]]:
        """The groups after ``place`` (None: all of the epoch's), each with the place after it, which JSON can hold."""

    def count(self, epoch: int) -> int:
        """Groups of an epoch."""


def make_scheme(
    sequences: Sequences, packing: PackingConfig, *, pad_id: int, seed: int, rank: int, world_size: int
) -> Scheme:
    """The scheme that ``packing.scheme`` names, over ``sequences``.

    Raises:
        ValueError: an unknown scheme; settings that the scheme cannot work with.
    """
    options: dict[str, Any] = {"pad_id": pad_id, "seed": seed, "rank": rank, "world_size": world_size}
    if packing.scheme not in SCHEMES:
        raise ValueError(f"packing.scheme must be one of {', '.join(map(repr, SCHEMES))}, got {packing.scheme!r}.")
    if packing.scheme == "fixed":
        return Fixed(sequences, packing, **options)
    if packing.scheme in ("padded", "bucketed"):
        return Padded(sequences, packing, **options, bucketed=packing.scheme == "bucketed")
    return Packed(sequences, packing, **options)


class Packed:
    """Packs from a ``PackedStream``, run as they are, one sequence at a time or leaking."""

    def __init__(self, sequences: Sequences, packing: PackingConfig, **options: Any) -> None:
        self._run: Callable[[Batch], list[Batch]] = _RUN.get(packing.scheme, lambda batch: [batch])
        self._lengths = sequences.lengths
        self._documents = list(zip(sequences.ids, sequences.targets, strict=True))
        self._packer = _PACKER.get(packing.scheme, "greedy")
        self._packing, self._options = packing, options
        if packing.scheme == "concat":
            log_once(
                logging.WARNING,
                'packing.scheme = "concat": each row is one sequence, so state leaks from one document into the next. '
                'This is for comparison only; train with "packed-greedy".',
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {"rows": self._packing.rows, "buffer_size": self._packing.buffer_size}

    def groups(self, epoch: int, place: Any) -> Iterator[tuple[list[Batch], Any]]:
        stream = self._stream()
        stream.set_epoch(epoch)
        if place is not None:
            stream.load_state_dict(place)
        for batch in stream:
            yield self._run(batch), batch.stream_state

    def count(self, epoch: int) -> int:
        return self._stream().count_steps(self._lengths, epoch)

    def _stream(self) -> PackedStream:
        packing = self._packing
        return PackedStream(
            self._documents,
            packing.capacity,
            rows=packing.rows,
            packer=self._packer,
            buffer_size=packing.buffer_size,
            overflow=packing.overflow,
            shuffle=packing.shuffle,
            workers=packing.workers,
            prefetch=packing.prefetch,
            pad_to_multiple_of=packing.pad_to_multiple_of,
            **self._options,
        )


_PACKER: dict[str, Any] = {"packed-sequential": "sequential", "packed-best-fit": "best_fit"}
_RUN: dict[str, Callable[[Batch], list[Batch]]] = {"one-at-a-time": one_by_one, "concat": lambda batch: [joined(batch)]}
