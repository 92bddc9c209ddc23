"""Documents in, packed batches out, for data that does not fit in memory.

Picture a sorting table. A buffer of documents is laid out on it, tokenised and packed into bins. Every step takes the
next bins off the table, as many for one rank as for another. When too few are left for a step, the next buffer is laid
beside them. What a checkpoint stores is where on the table it stopped: a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from ._checks import INT32_MAX, IntsLike, as_int, as_lengths, as_share, as_token_id, shown
from ._epoch import permutation
from ._stream_buffer import PACKERS, BufferSettings, MakeTargets, MakeWeights, Packer, Tokenize, count_bins
from ._stream_epoch import Epochs, Item
from ._stream_source import Source
from ._stream_state import from_state, start_of_epoch, to_state
from ._stream_steps import Position, StreamCounts
from ._stream_threads import Background, Stop
from .batch import Batch
from .packing import OVERFLOWS


class PackedStream(torch.utils.data.IterableDataset[Batch]):
    """One epoch of packed batches for this rank, and an exact place to go on from after every batch.

        stream = PackedStream(documents, 2048, tokenize=encode, pad_id=pad_id)
        for batch in stream: ...
        stream.load_state_dict(batch.stream_state)      # goes on with the batch after this one
        stream.set_epoch(1)                             # otherwise the next loop repeats the epoch

    The order depends on the documents, the settings, the seed and the epoch alone: not on ``workers``, not on
    ``prefetch``, not on the machine. All ranks have the same number of steps. No sequence is lost or doubled.

    What it costs: every rank reads and tokenises all documents, since their lengths say who gets what, and keeps its
    own rows. For many ranks tokenise once and stream the ids. The first batch, and the first after a resume, waits
    until a buffer is tokenised: with documents of many thousand tokens choose a smaller ``buffer_size``.

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
        weights: from a whole document's targets, int64 [n], to the loss weight of each, float [n]: made before anything
            is cut. The batches have no weights by default. It is no part of the state: it moves no token.
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
            out; a wrong target is an error, on every rank. So are too few targets in the first batches of all ranks
            together, at the start of an epoch; after a resume, or in an epoch of fewer batches, they are a warning. 0
            leaves the check out.
        min_target_share: targets over tokens, under which targets are too few; 0 where only their lack counts.

    In a ``DataLoader`` use ``batch_size=None`` and ``num_workers`` 0 or 1. With 1 the stream lives in another process:
    take ``batch.stream_state``, not ``state_dict()`` and ``counts``; and call ``set_epoch`` before every epoch, since
    this process cannot know that a restored place was used up. Leave ``persistent_workers`` off: a worker that stays
    hears neither ``set_epoch`` nor ``load_state_dict``, so it refuses a second epoch.

    Raises:
        ValueError: a bad argument, or documents that can be read only once. While iterating: a document that is no
            token sequence, or ``tokenize`` raised a ValueError or TypeError (the message names the document); a list
            that has changed its size; a source that gives no document any more; wrong targets.
        RuntimeError: while iterating: the documents or ``tokenize`` raised another error.
    """

    def __init__(
        self,
        documents: Sequence[Any] | Iterable[Any] | Callable[[], Iterable[Any]],
        capacity: int,
        *,
        tokenize: Tokenize | None = None,
        targets: MakeTargets | None = None,
        weights: MakeWeights | None = None,
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
        min_target_share: float = 0.01,
    ) -> None:
        for name, function in (("tokenize", tokenize), ("targets", targets), ("weights", weights)):
            if function is not None and not callable(function):
                raise ValueError(f"{name} must be a function, got {shown(function)}.")
        for name, value, allowed in (("packer", packer, tuple(PACKERS)), ("overflow", overflow, OVERFLOWS)):
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}.")
        if not isinstance(shuffle, bool):
            raise ValueError(f"shuffle must be True or False, got {shown(shuffle)}.")
        self.capacity = as_int(capacity, "capacity", minimum=1)
        self.rows = as_int(rows, "rows", minimum=1)
        self.pad_id = as_token_id(pad_id, "pad_id")
        multiple = 1 if pad_to_multiple_of is None else as_int(pad_to_multiple_of, "pad_to_multiple_of", minimum=1)
        self._multiple = None if pad_to_multiple_of is None else multiple
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
        self.min_target_share = as_share(min_target_share, "min_target_share")
        self._buffer = BufferSettings(
            capacity=self.capacity,
            packer=packer,
            buffer_size=as_int(buffer_size, "buffer_size", minimum=1),
            overflow=overflow,
            workers=as_int(workers, "workers", minimum=0),
            tokenize=tokenize,
            targets=targets,
            weights=weights,
        )
        self._source = Source(documents)
        self._epochs = Epochs(
            source=self._source,
            buffer=self._buffer,
            shuffle=shuffle,
            seed=self.seed,
            rows=self.rows,
            width=self.width,
            rank=self.rank,
            pad_id=self.pad_id,
            pad_to_multiple_of=self._multiple,
            check_batches=self.check_batches,
            min_target_share=self.min_target_share,
        )
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
            "pad_to_multiple_of": self._multiple,
        }
        self.epoch = 0
        self._restored: Position | None = None
        self._worker_began = False
        self._state: dict[str, Any] | None = None
        self._counts = StreamCounts()

    def __iter__(self) -> Generator[Batch, None, None]:
        """This rank's batches of the epoch: all of them, or the remaining ones after ``load_state_dict``."""
        info = torch.utils.data.get_worker_info()
        if info is not None and info.num_workers > 1:
            raise ValueError(
                f"DataLoader has num_workers={info.num_workers}, and each would give every batch again. Use "
                f"num_workers=1, and let the stream tokenise in threads: PackedStream(..., workers=4)."
            )
        if info is not None and self._worker_began:
            raise ValueError(
                f"this DataLoader's worker has given epoch {self.epoch} already, and a worker that stays hears no "
                f"set_epoch: the epoch would repeat. Use persistent_workers=False. (A loop of your own inside the "
                f"worker calls set_epoch there.)"
            )
        self._worker_began = info is not None
        position = self._restored or start_of_epoch(self.world_size)
        epoch, stop = self.epoch, Stop()
        self._counts = position.counts
        items: Generator[Item, None, None] | Background[Item]
        if self._buffer.workers:
            items = Background(lambda: self._epochs.items(epoch, position, stop), self.prefetch, stop)
        else:
            items = self._epochs.items(epoch, position, stop)
        try:
            for batch, after, self._counts in items:
                if self._restored is position:  # kept until something came: a failed first step can be tried again
                    self._restored = None
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
        self._worker_began = False
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

        ``workers``, ``prefetch``, ``check_batches``, ``min_target_share`` and the rank may be others. Documents before
        that place are passed over: at no cost where they are read by number, otherwise read but not tokenised.

        What is compared: the settings; how many documents there are, where they are read by number; and, when the next
        iteration reads it, the ids and targets of the one buffer in which the place lies. Other documents are not
        compared: keep them as they were. A place between two buffers has nothing to compare.

        Raises:
            ValueError: the state has other settings or is incomplete (then nothing changes). While iterating: its
                buffer has changed, or there are too few documents.
        """
        self.epoch, self._restored = from_state(state, self._settings)
        self._worker_began = False
        self._state = to_state(self.epoch, self._restored, self._settings)
        self._counts = self._restored.counts

    def count_steps(self, lengths: IntsLike, epoch: int) -> int:
        """How many steps ``epoch`` has, from the tokens of each document alone: nothing is read or tokenised.

        Args:
            lengths: [n], the tokens of every document, in the order in which ``documents`` has them.

        Raises:
            ValueError: another number of lengths than documents; a document above the capacity under
                ``overflow="error"``.
        """
        host, epoch = as_lengths(lengths), as_int(epoch, "epoch", minimum=0)
        if self._buffer.overflow == "error" and (longer := np.flatnonzero(host > self.capacity)).size:
            raise ValueError(
                f"lengths[{longer[0]}] is {host[longer[0]]}, above the capacity {self.capacity}. Raise the capacity, "
                f"or choose overflow='split' or overflow='truncate'."
            )
        if self._source.size is not None:
            if len(host) != self._source.size:
                raise ValueError(f"lengths has {len(host)} entries, but there are {self._source.size} documents.")
            if self.shuffle:
                host = host[permutation(self._epochs.order(epoch), len(host))]
        return -(-count_bins(host, self._buffer) // (self.rows * self.world_size))
