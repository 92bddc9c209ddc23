"""One epoch of one rank: documents are read, packed and dealt, and come out as batches with the places after them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ._stream_batch import Made, Taught, collate_bins, require_right_targets, require_targets
from ._stream_buffer import Bin, Buffer, BufferSettings, make_buffers
from ._stream_source import Source
from ._stream_state import start_of_epoch
from ._stream_steps import Position, StreamCounts, make_steps
from ._stream_threads import Background, Stop
from .batch import Batch

# A batch, the place after it, and all that was counted by then. No batch: the end of the epoch.
Item: TypeAlias = "tuple[Batch | None, Position, StreamCounts]"


@dataclass(frozen=True, eq=False)
class Epochs:
    """What a stream's batches are made from and how; the arguments of ``PackedStream``, checked.

    Attributes:
        source: the documents.
        buffer: how they become bins.
        width: positions of a row.
    """

    source: Source
    buffer: BufferSettings
    shuffle: bool
    seed: int
    rows: int
    width: int
    rank: int
    pad_id: int
    pad_to_multiple_of: int | None
    check_batches: int
    min_target_share: float

    def order(self, epoch: int) -> np.random.PCG64:
        """The random bits of an epoch's order of documents."""
        return np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))

    def items(self, epoch: int, position: Position, stop: Stop) -> Generator[Item, None, None]:
        """Batches with the places after them; the first few only when all of them were checked."""
        held: list[tuple[Made, Position, StreamCounts]] = []
        unchecked, taught = self.check_batches, Taught()
        from_start = position == start_of_epoch(len(position.load))
        with closing(self._buffers(epoch, position.document, stop)) as buffers:
            steps = make_steps(buffers, position, rows=self.rows, capacity=self.buffer.capacity, width=self.width)
            for step in steps:
                stop.check()
                if step.ranks is not None:
                    made = self._collate(step.ranks[self.rank])
                    held.append((made, step.after, step.counts))
                    if unchecked:
                        taught.add(step.ranks)
                if len(held) < unchecked and step.ranks is not None:
                    continue
                if unchecked and held:
                    require_right_targets([made for made, _, _ in held], taught, self.pad_id, self.rank)
                    whole = from_start and taught.steps == self.check_batches
                    require_targets(taught, self.min_target_share, whole=whole)
                    unchecked = 0
                for (batch, _), after, counts in held:
                    yield batch, after, counts
                held.clear()
                if step.ranks is None:
                    yield None, step.after, step.counts

    def _collate(self, bins: list[Bin]) -> Made:
        weighted = self.buffer.weights is not None
        try:
            return collate_bins(bins, self.buffer.capacity, self.pad_id, self.pad_to_multiple_of, weighted=weighted)
        except MemoryError as error:
            positions = len(bins) * self.width
            raise MemoryError(
                f"a batch of rows * capacity = {len(bins):,} * {self.width:,} positions does not fit in memory: its "
                f"ids and targets take {positions * 16 / 2**30:,.1f} GiB. Use fewer rows or a smaller capacity."
            ) from error

    def _buffers(self, epoch: int, document: int, stop: Stop) -> Generator[Buffer, None, None] | Background[Buffer]:
        def bits(buffer: int) -> np.random.PCG64:
            return np.random.PCG64(np.random.SeedSequence([self.seed, epoch], spawn_key=(buffer,)))

        def make() -> Generator[Buffer, None, None]:
            order = self.order(epoch) if self.shuffle else None
            documents = self.source.read(document, order, stop)
            return make_buffers(documents, document, self.buffer, bits if self.shuffle else None, stop)

        # One buffer ahead: the next is read and tokenised while this one's batches are made and waited for.
        return Background(make, 1, stop) if self.buffer.workers else make()
