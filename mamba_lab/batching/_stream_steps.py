"""From buffers of bins to steps: every rank gets as many rows as the others, and as much work."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from ._stream_buffer import Bin, Buffer, Piece


@dataclass(frozen=True)
class StreamCounts:
    """What went through a stream in one epoch so far, on all ranks together.

    Attributes:
        documents: read for the batches received, those of their whole buffers.
        empty: of these, documents without tokens, which no batch holds.
        dropped: tokens of these documents that were cut off by ``overflow="truncate"``.
        tokens: in the batches of all ranks.
        padding: positions of these batches that hold no token.
        steps: batches that each rank has got.
    """

    documents: int = 0
    empty: int = 0
    dropped: int = 0
    tokens: int = 0
    padding: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Position:
    """A place between two steps of an epoch.

    Attributes:
        document: where the oldest buffer starts that still has bins, or else the next buffer: documents read before.
        taken: bins of that buffer that were handed out.
        crc32: of that buffer's tokens and targets; None where it was not read yet.
        load: [world_size], the tokens each rank has had beyond the rank with the fewest.
        counts: documents, empty and dropped up to ``document``; tokens, padding and steps up to this place.
    """

    document: int
    taken: int
    crc32: int | None
    load: tuple[int, ...]
    counts: StreamCounts


@dataclass(frozen=True, eq=False)
class Step:
    """One step: each rank's bins, none at the end of the epoch; the place after it; all that was counted."""

    ranks: list[list[Bin]] | None
    after: Position
    counts: StreamCounts


@dataclass(eq=False)
class _Waiting:
    """Buffers with bins not handed out yet, oldest first, and where the epoch stands."""

    position: Position
    width: int
    buffers: deque[Buffer] = field(default_factory=deque)
    bins: int = 0

    def add(self, buffer: Buffer) -> None:
        self.buffers.append(buffer)
        self.bins += len(buffer.bins) - buffer.taken

    def take(self, n: int) -> list[Bin]:
        """The ``n`` bins that wait longest. The batches keep what they need: a buffer lets go of them."""
        found: list[Bin] = []
        for buffer in self.buffers:
            more = buffer.bins[buffer.taken : buffer.taken + n - len(found)]
            buffer.bins[buffer.taken : buffer.taken + len(more)] = [_GONE] * len(more)
            buffer.taken += len(more)
            found += more
        self.bins -= n
        return found

    def step(self, bins: list[Bin], rows: int) -> Step:
        load = list(self.position.load)
        ranks = deal(bins, load, rows)
        least = min(load)
        tokens = sum(one.size for one in bins)
        counts = self.position.counts
        self.position = replace(
            self.position,
            load=tuple(each - least for each in load),
            counts=replace(
                counts,
                tokens=counts.tokens + tokens,
                padding=counts.padding + len(bins) * self.width - tokens,
                steps=counts.steps + 1,
            ),
        )
        self.settle()
        return Step(ranks, self.position, self.counts)

    def settle(self) -> None:
        """Forget the buffers that are empty, and move the position to the first that is not."""
        document, counts = self.position.document, self.position.counts
        while self.buffers and self.buffers[0].taken == len(self.buffers[0].bins):
            buffer = self.buffers.popleft()
            document = buffer.start + buffer.documents
            counts = _with(counts, buffer)
        oldest = self.buffers[0] if self.buffers else None
        self.position = replace(
            self.position,
            document=document,
            taken=oldest.taken if oldest else 0,
            crc32=oldest.crc32 if oldest else None,
            counts=counts,
        )

    @property
    def counts(self) -> StreamCounts:
        counts = self.position.counts
        for buffer in self.buffers:
            counts = _with(counts, buffer)
        return counts


_GONE = Bin([], 0)


def make_steps(
    buffers: Iterator[Buffer], position: Position, *, rows: int, capacity: int, width: int
) -> Generator[Step, None, None]:
    """Steps of ``rows`` bins for each rank, and at the end one without bins, for the counts.

    What a buffer leaves over joins the next buffer's bins. The last step of an epoch has the pieces that remain, spread
    over all its rows.

    Args:
        buffers: from document ``position.document`` on.
        position: where to go on.
        rows: of each rank.
        capacity: of a bin.
        width: positions of a row, for counting the padding.

    Raises:
        ValueError: the first buffer is not the one that ``position`` was taken in.
    """
    waiting = _Waiting(position, width)
    at_once = rows * len(position.load)
    first = True
    for buffer in buffers:
        if first and position.crc32 is not None:
            if buffer.crc32 != position.crc32 or position.taken > len(buffer.bins):
                raise ValueError(
                    f"the documents from number {position.document} on are not those of the state (crc32 "
                    f"{buffer.crc32}, in the state {position.crc32}): documents, tokenize or targets have changed. "
                    f"Resume with the same ones, or start the epoch anew."
                )
            buffer.taken = position.taken
        first = False
        waiting.add(buffer)
        while waiting.bins >= at_once:
            yield waiting.step(waiting.take(at_once), rows)
    if first and position.crc32 is not None:
        raise ValueError(
            f"there are no documents from number {position.document} on, where the state was taken. Resume with the "
            f"same documents, or start the epoch anew."
        )
    if waiting.bins:
        yield waiting.step(spread(waiting.take(waiting.bins), at_once, capacity), rows)
    yield Step(None, waiting.position, waiting.counts)


def deal(bins: list[Bin], load: list[int], rows: int) -> list[list[Bin]]:
    """``rows`` bins for each rank: the fullest bin to the rank that has had the least, and so on down.

    Adds to ``load``. A rank's bins keep the order they had.
    """
    given: list[list[int]] = [[] for _ in load]
    heap = [(tokens, rank) for rank, tokens in enumerate(load)]
    heapq.heapify(heap)
    for place in sorted(range(len(bins)), key=lambda i: -bins[i].size):
        tokens, rank = heapq.heappop(heap)
        given[rank].append(place)
        load[rank] = tokens + bins[place].size
        if len(given[rank]) < rows:
            heapq.heappush(heap, (load[rank], rank))
    return [[bins[place] for place in sorted(places)] for places in given]


def spread(bins: list[Bin], n: int, capacity: int) -> list[Bin]:
    """The pieces of at most ``n`` bins in exactly ``n``, of tokens as equal as the pieces allow; none is cut.

    Longest first, each into the emptiest bin. Where that would overfill one, the fullest bins are halved instead.
    """
    pieces = [piece for one in bins for piece in one.pieces]
    return _emptiest(pieces, n, capacity) or _halved(bins, n, capacity)


def _emptiest(pieces: list[Piece], n: int, capacity: int) -> list[Bin] | None:
    found: list[list[int]] = [[] for _ in range(n)]
    heap = [(0, number) for number in range(n)]
    for place in sorted(range(len(pieces)), key=lambda i: pieces[i][1] - pieces[i][2]):
        size, number = heapq.heappop(heap)
        _, start, stop = pieces[place]
        if size + stop - start > capacity:
            return None
        found[number].append(place)
        heapq.heappush(heap, (size + stop - start, number))
    return [_bin([pieces[place] for place in sorted(places)]) for places in found]


def _halved(bins: list[Bin], n: int, capacity: int) -> list[Bin]:
    whole = list(bins)
    while len(whole) < n:
        several = [i for i, one in enumerate(whole) if len(one.pieces) > 1]
        if not several:
            break
        fullest = whole.pop(max(several, key=lambda i: whole[i].size))
        whole += _emptiest(fullest.pieces, 2, capacity) or []
    return whole + [_bin([]) for _ in range(n - len(whole))]


def _bin(pieces: list[Piece]) -> Bin:
    return Bin(pieces, sum(stop - start for _, start, stop in pieces))


def _with(counts: StreamCounts, buffer: Buffer) -> StreamCounts:
    return replace(
        counts,
        documents=counts.documents + buffer.documents,
        empty=counts.empty + buffer.empty,
        dropped=counts.dropped + buffer.dropped,
    )
