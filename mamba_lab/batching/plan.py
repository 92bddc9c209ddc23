"""Which piece of which sequence goes into which row: the result of every chunker and packer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ._checks import INT32_MAX, IntsLike, as_int, as_lengths, shown
from ._plan_file import read_plan, unreadable, write_plan

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Int32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Piece: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class PackingPlan:
    """Bins (future rows) of pieces, in CSR form: bin b holds pieces ``offsets[b]:offsets[b + 1]``.

    Attributes:
        capacity: the tokens a bin can hold.
        offsets: int64 [n_bins + 1], NumPy.
        sequence: int64 [n], the data-set index of each piece's sequence.
        start, stop: int32 [n], piece i is tokens ``start[i]:stop[i]`` of its sequence. Never empty.
        dropped: tokens of the data set that are in no bin.

    Raises:
        ValueError: another dtype or shape, falling offsets, an empty piece, a bin above capacity.
    """

    capacity: int
    offsets: Int64Array
    sequence: Int64Array
    start: Int32Array
    stop: Int32Array
    dropped: int = 0

    def __post_init__(self) -> None:
        as_int(self.capacity, "capacity", minimum=1)
        as_int(self.dropped, "dropped", minimum=0)
        for name, dtype in (("offsets", np.int64), ("sequence", np.int64), ("start", np.int32), ("stop", np.int32)):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
                got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
                raise ValueError(f"{name} must be a NumPy {np.dtype(dtype)} array of one dimension, got {got}.")
        n = len(self.sequence)
        if len(self.start) != n or len(self.stop) != n:
            raise ValueError(
                f"sequence, start and stop must have one entry a piece, got {n}, {len(self.start)}, {len(self.stop)}."
            )
        if len(self.offsets) == 0 or self.offsets[0] != 0 or self.offsets[-1] != n:
            raise ValueError(f"offsets must start at 0 and end at the number of pieces, {n}, got {self.offsets}.")
        if (bad := np.flatnonzero(np.diff(self.offsets) < 0)).size:
            place = int(bad[0]) + 1
            raise ValueError(f"offsets[{place}] is {self.offsets[place]}, below {self.offsets[place - 1]} before it.")
        if (bad := np.flatnonzero((self.start < 0) | (self.start >= self.stop) | (self.sequence < 0))).size:
            i = int(bad[0])
            raise ValueError(
                f"piece {i} is tokens {self.start[i]}:{self.stop[i]} of sequence {self.sequence[i]}: "
                f"0 <= start < stop and sequence >= 0 must hold. Leave empty sequences out."
            )
        if (bad := np.flatnonzero(self.bin_tokens > self.capacity)).size:
            raise ValueError(
                f"bin {bad[0]} holds {self.bin_tokens[bad[0]]} tokens, more than the capacity {self.capacity}."
            )

    @classmethod
    def from_bins(cls, bins: Iterable[Iterable[int | Piece]], lengths: IntsLike, capacity: int) -> PackingPlan:
        """A plan from a list of bins. What no bin holds is counted in ``dropped``.

        Args:
            bins: one list a bin, of data-set indices (the whole sequence) or of pieces ``(sequence, start, stop)``.
                An empty sequence leaves no piece.
            lengths: [N], the tokens of every sequence of the data set.
            capacity: the tokens a bin can hold.

        Raises:
            ValueError: an index outside the data set, a piece outside its sequence, a token that is in two places,
                a bin above capacity.
        """
        host = as_lengths(lengths, copy=False)
        offsets, pieces = [0], []
        for number, members in enumerate(_listed(bins, "bins", "bins, each a list")):
            for j, member in enumerate(_listed(members, f"bins[{number}]", "sequence numbers")):
                piece = _as_piece(member, f"bins[{number}], piece {j}", host)
                if isinstance(member, tuple) or piece[1] < piece[2]:
                    pieces.append(piece)
            offsets.append(len(pieces))
        sequence, start, stop = np.array(pieces, np.int64).reshape(-1, 3).T
        plan = cls(
            capacity,
            np.array(offsets, np.int64),
            np.ascontiguousarray(sequence),
            start.astype(np.int32),
            stop.astype(np.int32),
            max(int(host.sum() - (stop - start).sum()), 0),
        )
        plan.check_conserved(host)
        return plan

    @classmethod
    def _trusted(
        cls,
        capacity: int,
        offsets: Int64Array,
        sequence: Int64Array,
        start: Int32Array,
        stop: Int32Array,
        dropped: int,
    ) -> PackingPlan:
        """A plan from a packer, whose arrays are right by construction: the checks cost more than the packing."""
        self = object.__new__(cls)
        values = (capacity, offsets, sequence, start, stop, dropped)
        for name, value in zip(cls.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)
        return self

    @property
    def n_bins(self) -> int:
        """The number of bins."""
        return len(self.offsets) - 1

    @property
    def bin_tokens(self) -> Int64Array:
        """int64 [n_bins], the tokens in each bin."""
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.stop - self.start, dtype=np.int64)))
        return np.diff(ends[self.offsets])

    @property
    def n_tokens(self) -> int:
        """The tokens in all bins."""
        return int((self.stop - self.start).sum(dtype=np.int64))

    @property
    def padding_rate(self) -> float:
        """Padding over all positions when every bin becomes a row of ``capacity``; 0 without bins."""
        return 1 - self.n_tokens / (self.n_bins * self.capacity) if self.n_bins else 0.0

    def bins(self) -> Iterator[list[Piece]]:
        """Each bin as a list of pieces ``(sequence, start, stop)``."""
        pieces = list(zip(self.sequence.tolist(), self.start.tolist(), self.stop.tolist(), strict=True))
        offsets = self.offsets.tolist()
        for first, last in pairwise(offsets):
            yield pieces[first:last]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to ``path``, an .npz file of 16 bytes a piece and 8 a bin. It replaces a file that is there;
        through a link, the file that the link names.

        Raises:
            OSError: the file cannot be written; an earlier one is then as it was.
            ValueError: ``path`` is no path, or a folder or device.
        """
        write_plan(path, {field: getattr(self, field) for field in self.__dataclass_fields__})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PackingPlan:
        """Read a plan that ``save`` wrote, and check it as the constructor does. Nothing in the file is executed.

        Raises:
            OSError: the file cannot be opened.
            ValueError: ``path`` is no path; it holds no plan, or a wrong one. The message names the file and the
                reason.
        """
        values = read_plan(path)
        try:
            return cls(**values)
        except ValueError as error:
            raise unreadable(path, error) from error

    def check_conserved(self, lengths: IntsLike) -> None:
        """Check that every token of the data set is in one place, or counted as dropped.

        Raises:
            ValueError: a piece outside its sequence, a token in two places, a wrong ``dropped``.
        """
        host = as_lengths(lengths, copy=False)
        if (bad := np.flatnonzero(self.sequence >= len(host))).size:
            raise ValueError(
                f"piece {bad[0]} is of sequence {self.sequence[bad[0]]}, but lengths has {len(host)} entries."
            )
        if (bad := np.flatnonzero(self.stop > host[self.sequence])).size:
            i = int(bad[0])
            raise ValueError(
                f"piece {i} is tokens {self.start[i]}:{self.stop[i]} of sequence {self.sequence[i]}, "
                f"which has only {host[self.sequence[i]]}."
            )
        order = np.lexsort((self.start, self.sequence))
        sequence, start, stop = self.sequence[order], self.start[order], self.stop[order]
        if (bad := np.flatnonzero((sequence[1:] == sequence[:-1]) & (start[1:] < stop[:-1]))).size:
            i = int(bad[0]) + 1
            raise ValueError(
                f"token {start[i]} of sequence {sequence[i]} is in two places: pieces {order[i - 1]} and {order[i]}."
            )
        total = int(host.sum())
        if self.n_tokens + self.dropped != total:
            raise ValueError(
                f"the plan holds {self.n_tokens} tokens and counts {self.dropped} as dropped, "
                f"but the data set has {total}."
            )


def _listed(values: Any, name: str, of: str) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise ValueError(
            f"{name} must be a list of {of} or of pieces (sequence, start, stop), got {shown(values)}. "
            f"A plan takes a list of bins: [[0, 2], [1]]."
        )
    return values


def _as_piece(member: Any, name: str, lengths: Int64Array) -> Piece:
    """A member of a bin as (sequence, start, stop), each checked by itself."""
    if not isinstance(member, tuple):
        index = as_int(member, f"{name} (a sequence number, or a tuple (sequence, start, stop))", minimum=0)
        start, stop = 0, None
    elif len(member) != 3:
        raise ValueError(f"{name} must be a sequence number or a tuple (sequence, start, stop), got {shown(member)}.")
    else:
        index, start, stop = (
            as_int(value, f"{name}: {part}", minimum=0)
            for part, value in zip(("sequence", "start", "stop"), member, strict=True)
        )
    if index >= len(lengths):
        raise ValueError(f"{name} names sequence {index}, but lengths has {len(lengths)} entries.")
    if stop is None:
        return index, start, int(lengths[index])
    if start >= stop:
        raise ValueError(f"{name} is tokens {start}:{stop} of sequence {index}: start < stop must hold.")
    if stop > INT32_MAX:
        raise ValueError(f"{name}: stop is {stop}, above the int32 limit {INT32_MAX}.")
    return index, start, stop
