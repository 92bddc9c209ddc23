"""Choosing a bin for every piece: in NumPy and Python here, and with equal results in C++ (csrc/cpu/packing.cpp).

The rule that both follow. Pieces are placed longest first, equal lengths in data order. A piece goes where the least
room is left that still holds it; of several bins with that room, the one that has had it longest. Where none holds it,
a new bin opens. At the end pieces return to data order in their bins, and bins to the order of their earliest pieces.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Any, TypeAlias

import numpy as np
import torch

from ._native import Int64Array, lengths_as_tensor, library_available

Int32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
# offsets [n_bins + 1], sequence [n], start [n], stop [n], as a PackingPlan holds them.
Csr: TypeAlias = "tuple[Int64Array, Int64Array, Int32Array, Int32Array]"

# Below this, Python needs some ten milliseconds at most, less than looking for the library.
NATIVE_FROM = 10_000


def next_fit(lengths: Int64Array, capacity: int, split: bool) -> Csr:
    """Fill bins in data order: a piece that does not fit closes the bin.

    Args:
        lengths: int64 [N], contiguous, none negative.
        capacity: the tokens of a bin.
        split: cut a sequence above ``capacity`` at its multiples; otherwise only its first ``capacity`` tokens count.
    """
    if len(lengths) >= NATIVE_FROM and native_available():
        return next_fit_in_cpp(lengths, capacity, split)
    return next_fit_in_python(lengths, capacity, split)


def best_fit(lengths: Int64Array, capacity: int, buffer_size: int, split: bool) -> Csr:
    """Best fit decreasing, ``buffer_size`` sequences at a time; all bins close at the end of a buffer.

    Args:
        lengths, capacity, split: as for ``next_fit``.
        buffer_size: at least 1; from N on it is the whole set.
    """
    if len(lengths) >= NATIVE_FROM and native_available():
        return best_fit_in_cpp(lengths, capacity, buffer_size, split)
    return best_fit_in_python(lengths, capacity, buffer_size, split)


def native_available() -> bool:
    """Whether the C++ packers can be used here; says once which are used and why."""
    return library_available("packing", "Sequences are packed", "several")


def next_fit_in_cpp(lengths: Int64Array, capacity: int, split: bool) -> Csr:
    """``csrc/cpu/packing.cpp``. ``native_available`` must have returned True.

    Raises:
        ValueError: ``lengths`` is no contiguous int64 array of one dimension.
        MemoryError: the plan does not fit into memory.
    """
    return _from_cpp(torch.ops.mamba_lab.pack_next_fit(lengths_as_tensor(lengths), capacity, split))


def best_fit_in_cpp(lengths: Int64Array, capacity: int, buffer_size: int, split: bool) -> Csr:
    """As ``next_fit_in_cpp``."""
    return _from_cpp(torch.ops.mamba_lab.pack_best_fit(lengths_as_tensor(lengths), capacity, buffer_size, split))


def _from_cpp(made: tuple[torch.Tensor, ...]) -> Csr:
    offsets, sequence, start, stop = (tensor.numpy() for tensor in made)
    if len(offsets) == 0:
        raise MemoryError("The plan does not fit into memory. Pack the lengths in several parts.")
    return offsets, sequence, start, stop


def next_fit_in_python(lengths: Int64Array, capacity: int, split: bool) -> Csr:
    """The twin of ``pack_next_fit`` in C++."""
    sequence, start, stop = _pieces(lengths, capacity, split)
    ends = np.zeros(len(sequence) + 1, np.int64)
    np.cumsum(stop - start, out=ends[1:])
    # following[i] is where the next bin starts when one starts at piece i.
    following = (np.searchsorted(ends, ends[:-1] + capacity, side="right") - 1).tolist()
    offsets = [0]
    while offsets[-1] < len(sequence):
        offsets.append(following[offsets[-1]])
    return np.array(offsets, np.int64), sequence, start, stop


def best_fit_in_python(lengths: Int64Array, capacity: int, buffer_size: int, split: bool) -> Csr:
    """The twin of ``pack_best_fit`` in C++."""
    sequence, start, stop = _pieces(lengths, capacity, split)
    if len(sequence) == 0:
        return np.zeros(1, np.int64), sequence, start, stop
    length = stop - start
    buffer = sequence // buffer_size
    order = np.lexsort((-length, buffer))  # stable: equal lengths keep data order
    bin_of = np.empty(len(order), np.int64)
    bin_of[order] = _bins_of_sorted(length[order], buffer[order], capacity)
    # Each bin's earliest piece: written back to front, the first piece writes last.
    earliest = np.empty(int(bin_of.max()) + 1, np.int64)
    earliest[bin_of[::-1]] = np.arange(len(order))[::-1]
    rank = np.empty_like(earliest)
    rank[np.argsort(earliest)] = np.arange(len(rank))
    bin_of = rank[bin_of]
    order = np.argsort(bin_of, kind="stable")
    offsets = np.zeros(len(rank) + 1, np.int64)
    np.cumsum(np.bincount(bin_of), out=offsets[1:])
    return offsets, sequence[order], start[order], stop[order]


def _pieces(lengths: Int64Array, capacity: int, split: bool) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Sequence, start and stop of every piece, in data order."""
    host = lengths if split else np.minimum(lengths, capacity)
    per_sequence = -(-host // capacity)
    sequence = np.repeat(np.arange(len(host), dtype=np.int64), per_sequence)
    first = np.cumsum(per_sequence) - per_sequence
    start = (np.arange(len(sequence)) - first[sequence]) * capacity
    return sequence, start.astype(np.int32), np.minimum(start + capacity, host[sequence]).astype(np.int32)


def _bins_of_sorted(length: Int32Array, buffer: Int64Array, capacity: int) -> Int64Array:
    """A bin's number for each piece; pieces are sorted by buffer, then longest first."""
    ends = np.flatnonzero((np.diff(length) != 0) | (np.diff(buffer) != 0)) + 1
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    counts = np.diff(np.append(starts, len(length)))
    rooms = _Rooms()
    opened = 0
    runs: list[tuple[int, int, int]] = []  # bins first, first + 1, ..., how many, and pieces put in each
    current = -1
    groups = zip(length[starts].tolist(), buffer[starts].tolist(), counts.tolist(), strict=True)
    for size, of_buffer, remaining in groups:
        if of_buffer != current:
            rooms, current = _Rooms(), of_buffer
        # Pieces of one length go into a bin as often as they fit: its room stays the least that holds them.
        while remaining:
            room = rooms.least_from(size)
            each = (room or capacity) // size
            wanted = -(-remaining // each)
            first, taken = rooms.take(room, wanted) if room else (opened, wanted)
            opened = max(opened, first + taken)
            full = min(taken, remaining // each)
            for at, bins, pieces in ((first, full, each), (first + full, taken - full, remaining - full * each)):
                if bins:
                    runs.append((at, bins, pieces))
                    rooms.put((room or capacity) - pieces * size, at, bins)
                    remaining -= bins * pieces
    first_bin, bins, pieces = np.array(runs, np.int64).T
    number = np.arange(int(bins.sum())) + np.repeat(first_bin - (np.cumsum(bins) - bins), bins)
    return np.repeat(number, np.repeat(pieces, bins))


class _Rooms:
    """Open bins by the room left in them; those of equal room wait in line, as runs of consecutive numbers."""

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._lines: dict[int, deque[tuple[int, int]]] = {}

    def least_from(self, size: int) -> int:
        """The least room that is at least ``size``, 0 where there is none."""
        place = bisect_left(self._sorted, size)
        return self._sorted[place] if place < len(self._sorted) else 0

    def take(self, room: int, wanted: int) -> tuple[int, int]:
        """At most ``wanted`` bins of that room from the head of the line: the first one's number, and how many."""
        line = self._lines[room]
        first, count = line.popleft()
        if count > wanted:
            line.appendleft((first + wanted, count - wanted))
        elif not line:
            del self._lines[room]
            del self._sorted[bisect_left(self._sorted, room)]
        return first, min(count, wanted)

    def put(self, room: int, first: int, count: int) -> None:
        """Bins ``first``, ``first + 1``, ... join the end of the line. A full bin (room 0) is closed."""
        if room == 0:
            return
        if room not in self._lines:
            self._lines[room] = deque()
            insort(self._sorted, room)
        self._lines[room].append((first, count))
