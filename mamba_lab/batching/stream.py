"""Documents in, packed batches out, for data that does not fit in memory.

Picture a sorting table. A buffer of documents is laid out on it, tokenised and packed into bins. Every step takes the
next bins off the table, as many for one rank as for another. When too few are left for a step, the next buffer is laid
beside them. What a checkpoint stores is where on the table it stopped: a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from ._checks import INT32_MAX, as_int, shown
from ._stream_buffer import PACKERS, Bin, Buffer, BufferSettings, MakeTargets, Packer, Tokenize, Tokens, make_buffers
from ._stream_source import Source
from ._stream_state import from_state, start_of_epoch, to_state
from ._stream_steps import Position, StreamCounts, make_steps
from ._stream_threads import Background, Stop
from .batch import IGNORE, Batch
from .collate import pack_collate
from .packing import OVERFLOWS
from .plan import PackingPlan
from .target_check import check_targets

# A batch, the place after it, and all that was counted by then. No batch: the end of the epoch.
Item: TypeAlias = "tuple[Batch | None, Position, StreamCounts]"
Checked: TypeAlias = "tuple[Batch, np.ndarray[Any, np.dtype[np.bool_]]]"


class PackedStream(torch.utils.data.IterableDataset[Batch]):
    """One epoch of packed batches for this rank, and an exact place to go on from after every batch.

        stream = PackedStream(documents, 2048, tokenize=encode, pad_id=pad_id)
        for batch in stream: ...
        stream.load_state_dict(batch.stream_state)      # goes on with the batch after this one
        stream.set_epoch(1)                             # otherwise the next loop repeats the epoch

    The order depends on the documents, the settings, the seed and the epoch alone: not on ``workers``, not on
    ``prefetch``, not on the machine. Every rank reads and tokenises all documents, since only their lengths say who
    gets what; it keeps its own rows. All ranks have the same number of steps. No sequence is lost or doubled.

    How far it shuffles: documents that can be read by number come in a new random order each epoch. Those that come
    one after another do not: only the bins within each buffer change places, so a file sorted by topic stays sorted by
    topic at distances above ``buffer_size``. Shuffle such a file once, when it is written.

    The last step of an epoch has what remains, spread over all rows of all ranks. With fewer pieces than rows some are
    all padding: they have no target and no loss.

    Args:
        documents: token sequences, or what ``tokenize`` makes them from: a list or data set (read by number), any
            iterable that starts anew each time (read one after another, such as ``load_corpus(path, streaming=True)``),
            or a function that returns a fresh iterator.
        capacity: the tokens of a row.
        tokenize: from a document to its token ids, or to a pair (ids, targets). It runs in several threads at once
            when ``workers`` is above 1.
        targets: from (document, ids) to the document's targets, already shifted, as ``make_targets`` returns them;
            the next token by default.
        rows: of a batch, on one rank.
        packer: "greedy" and "best_fit" place the longest first and are the same within one buffer; "sequential" keeps
            the documents' order within a row's neighbourhood.
        buffer_size: documents that are packed together. Memory holds about two buffers and ``prefetch`` batches.
        overflow: what becomes of a document longer than ``capacity``: "split", "truncate" (counted) or "error".
        shuffle: see above; False keeps the packer's order.
        seed: of the shuffles.
        rank, world_size: this process and how many there are.
        workers: threads that tokenise. 0: no thread at all, each batch is made when it is asked for.
        prefetch: batches made ahead of their reader, with ``workers`` above 0.
        pad_id: the token id that fills the rest of a row. It marks nothing.
        pad_to_multiple_of: make the row length, otherwise ``capacity``, a multiple of this.
        check_batches: how many first batches of each iteration ``check_targets`` looks at before any of them is given
            out; what it finds is an error. 0 leaves the check out.

    In a ``DataLoader`` use ``batch_size=None`` and ``num_workers`` 0 or 1. With 1 the stream lives in another process:
    take ``batch.stream_state``, not ``state_dict()``.

    Raises:
        ValueError: a bad argument, or documents that can be read only once. While iterating: a document that is no
            token sequence, or ``tokenize`` raised a ValueError or TypeError (the message names the document).
        RuntimeError: while iterating: the documents or ``tokenize`` raised another error.
    """

    def __init__(
        self,
        documents: Sequence[Any] | Iterable[Any] | Callable[[], Iterable[Any]],
        capacity: int,
        *,
        tokenize: Tokenize | None = None,
        targets: MakeTargets | None = None,
        rows: int = 1,
        packer: Packer = "greedy",
        buffer_size: int = 1024,
        overflow: Literal["error", "split", "truncate"] = "split",
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 1,
        prefetch: int = 4,
        pad_id: int,
        pad_to_multiple_of: int | None = None,
        check_batches: int = 8,
    ) -> None:
        for name, function in (("tokenize", tokenize), ("targets", targets)):
            if function is not None and not callable(function):
                raise ValueError(f"{name} must be a function, got {shown(function)}.")
        for name, value, allowed in (("packer", packer, tuple(PACKERS)), ("overflow", overflow, OVERFLOWS)):
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}.")
        if not isinstance(shuffle, bool):
            raise ValueError(f"shuffle must be True or False, got {shown(shuffle)}.")
        self.capacity = as_int(capacity, "capacity", minimum=1)
        self.rows = as_int(rows, "rows", minimum=1)
        self.pad_id = as_int(pad_id, "pad_id", minimum=0)
        multiple = 1 if pad_to_multiple_of is None else as_int(pad_to_multiple_of, "pad_to_multiple_of", minimum=1)
        self.width = -(-self.capacity // multiple) * multiple
        if self.rows * self.width > INT32_MAX:
            raise ValueError(
                f"rows * capacity is {self.rows} * {self.width}, above the int32 limit {INT32_MAX} of positions. "
                f"Use fewer rows."
            )
        self.world_size = as_int(world_size, "world_size", minimum=1)
        self.rank = as_int(rank, "rank", minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {self.rank}, but world_size {self.world_size} has ranks 0 to {world_size - 1}.")
        self.shuffle = shuffle
        self.seed = as_int(seed, "seed", minimum=0)
        self.prefetch = as_int(prefetch, "prefetch", minimum=1)
        self.check_batches = as_int(check_batches, "check_batches", minimum=0)
        self._buffer = BufferSettings(
            capacity=self.capacity,
            packer=packer,
            buffer_size=as_int(buffer_size, "buffer_size", minimum=1),
            overflow=overflow,
            workers=as_int(workers, "workers", minimum=0),
            tokenize=tokenize,
            targets=targets,
        )
        self._source = Source(documents)
        self._settings: dict[str, Any] = {
            "documents": self._source.size,
            "capacity": self.capacity,
            "rows": self.rows,
            "packer": packer,
            "buffer_size": self._buffer.buffer_size,
            "overflow": overflow,
            "shuffle": shuffle,
            "seed": self.seed,
            "world_size": self.world_size,
            "pad_id": self.pad_id,
            "pad_to_multiple_of": None if pad_to_multiple_of is None else multiple,
        }
        self.epoch = 0
        self._restored: Position | None = None
        self._state: dict[str, Any] | None = None
        self._counts = StreamCounts()

    def __iter__(self) -> Iterator[Batch]:
        """This rank's batches of the epoch: all of them, or the remaining ones after ``load_state_dict``."""
        info = torch.utils.data.get_worker_info()
        if info is not None and info.num_workers > 1:
            raise ValueError(
                f"DataLoader has num_workers={info.num_workers}, and each would give every batch again. Use "
                f"num_workers=1, and let the stream tokenise in threads: PackedStream(..., workers=4)."
            )
        position, self._restored = self._restored or start_of_epoch(self.world_size), None
        epoch, stop = self.epoch, Stop()
        self._counts = position.counts
        items: Generator[Item, None, None] | Background[Item]
        if self._buffer.workers:
            items = Background(lambda: self._items(epoch, position, stop), self.prefetch, stop)
        else:
            items = self._items(epoch, position, stop)
        try:
            for batch, after, self._counts in items:
                if batch is not None:
                    self._state = to_state(epoch, after, self._settings)
                    yield replace(batch, stream_state=to_state(epoch, after, self._settings))
        finally:
            items.close()

    @property
    def counts(self) -> StreamCounts:
        """What went through in this epoch, up to the last batch received; after the last one, the whole epoch."""
        return self._counts

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next. The same epoch again keeps a position that was just restored."""
        epoch = as_int(epoch, "epoch", minimum=0)
        if epoch != self.epoch:
            self.epoch, self._restored = epoch, None

    def state_dict(self) -> dict[str, Any]:
        """The ``stream_state`` of the last batch received in this process, or what was restored since. Equal on every
        rank.

        Raises:
            ValueError: there was none. A DataLoader's worker receives batches in another process: take
                ``batch.stream_state``.
        """
        if self._state is None:
            raise ValueError(
                "no batch was received in this process, so there is no place to go on from. Behind a DataLoader with a "
                "worker take batch.stream_state."
            )
        return deepcopy(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken: the next iteration yields the batches that remain of its epoch.

        ``workers``, ``prefetch``, ``check_batches`` and the rank may be others. Documents before that place are passed
        over: at no cost where they are read by number, otherwise read but not tokenised.

        Raises:
            ValueError: the state belongs to other documents or settings (then nothing changes), or is incomplete. That
                the documents have changed may be found only when the next iteration reads them.
        """
        self.epoch, self._restored = from_state(state, self._settings)
        self._state = to_state(self.epoch, self._restored, self._settings)
        self._counts = self._restored.counts

    def _items(self, epoch: int, position: Position, stop: Stop) -> Generator[Item, None, None]:
        """Batches with the places after them; the first few only when all of them were checked."""
        held: list[tuple[Checked, Position, StreamCounts]] = []
        unchecked = self.check_batches
        with closing(self._buffers(epoch, position.document, stop)) as buffers:
            steps = make_steps(buffers, position, rows=self.rows, capacity=self.capacity, width=self.width)
            for step in steps:
                stop.check()
                if step.ranks is not None:
                    held.append((self._collated(step.ranks[self.rank]), step.after, step.counts))
                if len(held) < unchecked and step.ranks is not None:
                    continue
                if unchecked and held:
                    self._check([made for made, _, _ in held])
                    unchecked = 0
                for (batch, _), after, counts in held:
                    yield batch, after, counts
                held.clear()
                if step.ranks is None:
                    yield None, step.after, step.counts

    def _buffers(self, epoch: int, document: int, stop: Stop) -> Generator[Buffer, None, None] | Background[Buffer]:
        def bits(buffer: int) -> np.random.PCG64:
            return np.random.PCG64(np.random.SeedSequence([self.seed, epoch], spawn_key=(buffer,)))

        def make() -> Generator[Buffer, None, None]:
            order = np.random.PCG64(np.random.SeedSequence([self.seed, epoch])) if self.shuffle else None
            documents = self._source.read(document, order, stop)
            return make_buffers(documents, document, self._buffer, bits if self.shuffle else None, stop)

        # One buffer ahead: the next is read and tokenised while this one's batches are made and waited for.
        return Background(make, 1, stop) if self._buffer.workers else make()

    def _collated(self, bins: list[Bin]) -> Checked:
        """The bins as a batch, and which of its sequences are pieces that go on elsewhere."""
        pieces = [piece for one in bins for piece in one.pieces]
        place = {document: i for i, document in enumerate(dict.fromkeys(document for document, _, _ in pieces))}
        plan = PackingPlan(
            self.capacity,
            np.cumsum([0, *(len(one.pieces) for one in bins)], dtype=np.int64),
            np.array([place[document] for document, _, _ in pieces], np.int64),
            np.array([start for _, start, _ in pieces], np.int32),
            np.array([stop for _, _, stop in pieces], np.int32),
        )
        batch = pack_collate(
            plan,
            [document.ids for document in place],
            pad_id=self.pad_id,
            targets=[_targets(document) for document in place] if any(d.targets is not None for d in place) else None,
            pad_to_multiple_of=self._settings["pad_to_multiple_of"],
        )
        real = batch.sequence >= 0
        sequence, cut = batch.sequence.clone(), np.zeros(len(real), bool)
        sequence[real] = torch.tensor([document.number for document, _, _ in pieces], dtype=torch.int64)
        cut[real.numpy()] = [stop < len(document.ids) for document, _, stop in pieces]
        return replace(batch, sequence=sequence), cut

    def _check(self, made: list[Checked]) -> None:
        report = check_targets([batch for batch, _ in made], pad_id=self.pad_id, cut=[cut for _, cut in made])
        if not report.ok:
            first = "batch" if len(made) == 1 else f"{len(made)} batches"
            raise ValueError(
                f"check_targets finds mistakes in the first {first} of rank {self.rank}:\n"
                + "\n".join(f"- {finding}" for finding in report.findings)
                + "\nIf the targets are meant to be so, pass check_batches=0."
            )


def _targets(document: Tokens) -> np.ndarray[Any, Any]:
    """A document's targets: the next token where it brought none and others did."""
    return np.append(document.ids[1:], IGNORE) if document.targets is None else document.targets
