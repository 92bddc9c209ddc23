"""Where each sequence starts and ends in a flattened batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ._checks import INT32_MAX, IntArray, IntsLike, as_host_ints, as_int, as_lengths


@dataclass(frozen=True, eq=False)
class Boundaries:
    """The starts of the sequences in a flattened batch of T tokens, checked once, when built.

    Attributes:
        cu_seqlens: int32 [S + 1], cumulative lengths: sequence s is tokens ``cu_seqlens[s]:cu_seqlens[s + 1]``.
            The first is 0 and the last T. On the batch's device.
        order: int32 [S], the sequences from longest to shortest, padding last: the kernels' schedule. Same device.
        n_tokens: T, padding included.
        n_sequences: S, padding sequences and empty sequences included.
        max_seqlen: the longest of all S sequences, padding included. A kernel sizes its launch by it.

    Use ``from_lengths``, ``from_cu_seqlens``, ``from_position_indices`` or ``from_seq_idx``. The plain constructor
    checks everything too, and waits for a GPU once to do so. Two Boundaries are equal only if they are the same object.
    """

    cu_seqlens: torch.Tensor
    order: torch.Tensor
    n_tokens: int
    n_sequences: int
    max_seqlen: int
    # `order` and one entry more that is never read: what the operators take. torch.compile takes a size of 1 for a
    # constant, so a lone sequence would be compiled again; S + 1 is 1 only where there is no sequence.
    _schedule: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, tensor in (("cu_seqlens", self.cu_seqlens), ("order", self.order)):
            if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32 or tensor.dim() != 1:
                raise ValueError(f"{name} must be an int32 tensor of one dimension, got {_describe(tensor)}.")
        if self.cu_seqlens.device != self.order.device:
            raise ValueError(
                f"cu_seqlens is on {self.cu_seqlens.device} and order on {self.order.device}: "
                f"move both to the batch's device."
            )
        for name in ("n_tokens", "n_sequences", "max_seqlen"):
            as_int(getattr(self, name), name, minimum=0)
        if self.cu_seqlens.is_meta:
            raise ValueError("cu_seqlens is on meta and has no values to check. Build it on the CPU, then .to('meta').")
        both = torch.cat((self.cu_seqlens, self.order)).cpu().numpy()
        cu, order = both[: self.cu_seqlens.numel()], both[self.cu_seqlens.numel() :]
        lengths = _checked_lengths(cu, self.n_tokens)
        if self.n_sequences != len(lengths):
            raise ValueError(f"n_sequences is {self.n_sequences}, but cu_seqlens has {len(lengths)} sequences.")
        if not np.array_equal(np.sort(order), np.arange(len(lengths))):
            raise ValueError(f"order must hold each of 0..{len(lengths) - 1} once. Let from_cu_seqlens make it.")
        if self.max_seqlen != lengths.max(initial=0):
            raise ValueError(f"max_seqlen is {self.max_seqlen}, but the longest sequence has {lengths.max(initial=0)}.")
        # Copies: what was checked may not change when the caller writes to a tensor of theirs.
        object.__setattr__(self, "cu_seqlens", self.cu_seqlens.clone())
        object.__setattr__(self, "_schedule", torch.cat((self.order, self.order.new_zeros(1))))
        object.__setattr__(self, "order", self._schedule[:-1])

    @classmethod
    def from_lengths(
        cls,
        lengths: IntsLike,
        *,
        padding: Sequence[bool] | np.ndarray[Any, Any] | int = 0,
        device: torch.device | str | None = None,
    ) -> Boundaries:
        """Boundaries of sequences laid end to end. Never waits for a GPU.

        Args:
            lengths: [S] integers on the host: the tokens of each sequence, in batch order. Zero is legal.
            padding: which of them are padding: a bool [S], or a count (then the last ones are).
            device: where ``cu_seqlens`` and ``order`` go; the CPU by default.

        Raises:
            ValueError: a negative or fractional length, lengths on a GPU, a sum above the int32 limit, or a padding
                mask of another size.
        """
        host = as_lengths(lengths)
        total = int(host.sum())
        if total > INT32_MAX:
            raise ValueError(
                f"lengths add up to {total} tokens, but cu_seqlens is int32 and ends at {INT32_MAX}. "
                f"Use smaller batches."
            )
        cu = np.zeros(len(host) + 1, np.int32)
        np.cumsum(host, out=cu[1:])
        return cls._build(cu, host, _padding_mask(padding, len(host)), device)

    @classmethod
    def from_cu_seqlens(
        cls, cu_seqlens: Sequence[int] | np.ndarray[Any, Any] | torch.Tensor, n_tokens: int | None = None
    ) -> Boundaries:
        """Boundaries from cumulative lengths. Waits for the GPU once if ``cu_seqlens`` is there.

        Args:
            cu_seqlens: [S + 1], an int32 tensor or array, or a list of ints. Equal neighbours mean an empty sequence.
            n_tokens: T, where it is known: the last entry must equal it.

        Raises:
            ValueError: another dtype, more than one dimension, a first entry other than 0, a falling entry, a last
                entry other than ``n_tokens``.
        """
        dtype = getattr(cu_seqlens, "dtype", None)
        if dtype is not None and dtype not in (torch.int32, np.dtype(np.int32)):
            raise ValueError(
                f"cu_seqlens must be int32, got {dtype}. Cast it with .to(torch.int32) or .astype('int32')."
            )
        host = _to_host(cu_seqlens, "cu_seqlens")
        lengths = _checked_lengths(host, n_tokens)
        device = cu_seqlens.device if isinstance(cu_seqlens, torch.Tensor) else None
        return cls._build(host.astype(np.int32), lengths, None, device)

    @classmethod
    def from_position_indices(cls, position_indices: IntsLike) -> Boundaries:
        """Boundaries from each token's place in its sequence. Waits for the GPU once if the indices are there.

        Args:
            position_indices: int32 or int64, [T], or [B, L] whose rows are flattened (each row starts a sequence).
                A sequence is 0, 1, 2, ...; a 0 starts the next one. Empty sequences cannot be seen in this form.

        Raises:
            ValueError: no integers, a row that does not start at 0, an entry that is neither 0 nor one more than the
                entry before it.
        """
        host, width = _rows(position_indices, "position_indices")
        expected = np.concatenate((np.full(1, -1, np.int64), host[:-1])) + 1
        if width:
            expected[::width] = 0
        wrong = np.flatnonzero((host != 0) & (host != expected))
        if wrong.size:
            place = int(wrong[0])
            allowed = f"0 or {expected[place]}" if expected[place] else "0"
            raise ValueError(
                f"position_indices{_place(place, width)} is {host[place]}, expected {allowed}. "
                f"Positions count 0, 1, 2, ... in each sequence, and every row starts with 0."
            )
        return cls._from_starts(np.flatnonzero(host == 0), len(host), position_indices)

    @classmethod
    def from_seq_idx(cls, seq_idx: IntsLike) -> Boundaries:
        """Boundaries from each token's sequence number. Waits for the GPU once if the numbers are there.

        Args:
            seq_idx: int32 or int64, [T], or [B, L] whose rows are flattened (each row starts a sequence). A run of
                equal numbers is a sequence; numbers never fall within a row. Empty sequences cannot be seen.

        Raises:
            ValueError: no integers, a negative number, a number smaller than the one before it in its row.
        """
        host, width = _rows(seq_idx, "seq_idx")
        step = np.diff(host, prepend=host[:1])
        starts = step != 0
        if len(host):
            starts[0] = True
        if width:
            step[::width] = 0
            starts[::width] = True
        wrong = np.flatnonzero((step < 0) | (host < 0))
        if wrong.size:
            place = int(wrong[0])
            why = "is negative" if host[place] < 0 else f"follows {host[place - 1]}"
            raise ValueError(
                f"seq_idx{_place(place, width)} is {host[place]} and {why}: sequence numbers start at 0 and "
                f"never fall within a row. Pass rows that were flattened as [B, L]."
            )
        return cls._from_starts(np.flatnonzero(starts), len(host), seq_idx)

    @property
    def lengths(self) -> torch.Tensor:
        """int32 [S], the tokens of each sequence."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def seq_idx(self) -> torch.Tensor:
        """int32 [T], the number of each token's sequence, 0 to S - 1."""
        numbers = torch.arange(self.n_sequences, dtype=torch.int32, device=self.cu_seqlens.device)
        return torch.repeat_interleave(numbers, self.lengths, output_size=self.n_tokens)

    @property
    def position_indices(self) -> torch.Tensor:
        """int32 [T], each token's place in its sequence, from 0."""
        starts = torch.repeat_interleave(self.cu_seqlens[:-1], self.lengths, output_size=self.n_tokens)
        return torch.arange(self.n_tokens, dtype=torch.int32, device=self.cu_seqlens.device) - starts

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Boundaries:
        """The same boundaries on ``device``."""
        return self._with(
            self.cu_seqlens.to(device, non_blocking=non_blocking), self._schedule.to(device, non_blocking=non_blocking)
        )

    def pin_memory(self) -> Boundaries:
        """The same boundaries in page-locked host memory, for a copy that does not block."""
        return self._with(self.cu_seqlens.pin_memory(), self._schedule.pin_memory())

    def _with(self, cu_seqlens: torch.Tensor, schedule: torch.Tensor) -> Boundaries:
        return self._trusted(cu_seqlens, schedule, self.n_tokens, self.n_sequences, self.max_seqlen)

    @classmethod
    def _from_starts(cls, starts: IntArray, n_tokens: int, source: IntsLike) -> Boundaries:
        cu = np.append(starts, n_tokens).astype(np.int32)
        device = source.device if isinstance(source, torch.Tensor) else None
        return cls._build(cu, np.diff(cu), None, device)

    @classmethod
    def _build(
        cls, cu: IntArray, lengths: IntArray, padding: np.ndarray[Any, Any] | None, device: torch.device | str | None
    ) -> Boundaries:
        keys = (-lengths.astype(np.int64),) if padding is None else (-lengths.astype(np.int64), padding)
        order = np.append(np.lexsort(keys), 0).astype(np.int32)
        # Pageable host memory is staged before an asynchronous copy returns, so this never waits and never races.
        cu_seqlens, schedule = (torch.from_numpy(array).to(device or "cpu", non_blocking=True) for array in (cu, order))
        return cls._trusted(cu_seqlens, schedule, int(cu[-1]), len(lengths), int(lengths.max(initial=0)))

    @classmethod
    def _trusted(
        cls, cu_seqlens: torch.Tensor, schedule: torch.Tensor, n_tokens: int, n_sequences: int, max_seqlen: int
    ) -> Boundaries:
        """Build from values that were checked on the host: the constructor's check would wait for the GPU."""
        self = object.__new__(cls)
        values = (cu_seqlens, schedule[:-1], n_tokens, n_sequences, max_seqlen, schedule)
        for name, value in zip(cls.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)
        return self


def _checked_lengths(cu: IntArray, n_tokens: int | None) -> IntArray:
    if cu.size == 0:
        raise ValueError("cu_seqlens is empty, expected at least [0]: S + 1 entries for S sequences.")
    if cu[0] != 0:
        raise ValueError(f"cu_seqlens[0] is {cu[0]}, expected 0: tokens before it would belong to no sequence.")
    wide = cu.astype(np.int64)
    lengths: IntArray = wide[1:] - wide[:-1]
    falls = np.flatnonzero(lengths < 0)
    if falls.size:
        place = int(falls[0]) + 1
        raise ValueError(f"cu_seqlens[{place}] is {cu[place]}, below the {cu[place - 1]} before it: it may never fall.")
    if cu[-1] > INT32_MAX:
        raise ValueError(f"cu_seqlens[{len(cu) - 1}] is {cu[-1]}, above the int32 limit {INT32_MAX}.")
    if n_tokens is not None and cu[-1] != as_int(n_tokens, "n_tokens", minimum=0):
        raise ValueError(
            f"cu_seqlens[{len(cu) - 1}] is {cu[-1]}, but there are {n_tokens} tokens: the last entry must equal "
            f"n_tokens. Give padding a sequence of its own."
        )
    return lengths


def _to_host(values: IntsLike, name: str, *, rows: bool = False) -> IntArray:
    if isinstance(values, torch.Tensor) and not values.is_meta:
        values = values.detach().cpu()
    return as_host_ints(values, name, rows=rows)


def _rows(values: IntsLike, name: str) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Flatten [T] or [B, L] on the host; the second value is L, or 0 when there are no rows to respect."""
    host = _to_host(values, name, rows=True)
    return host.reshape(-1).astype(np.int64), int(host.shape[1]) if host.ndim == 2 else 0


def _place(place: int, width: int) -> str:
    return f"[{place // width}, {place % width}]" if width else f"[{place}]"


def _padding_mask(padding: Sequence[bool] | np.ndarray[Any, Any] | int, n: int) -> np.ndarray[Any, Any] | None:
    if not isinstance(padding, list | tuple) and np.ndim(padding) == 0:
        count = as_int(padding, "padding", minimum=0)
        if count > n:
            raise ValueError(f"padding is {count}, but there are only {n} sequences.")
        return np.arange(n) >= n - count
    mask = np.asarray(padding)
    if mask.shape != (n,) or (n and mask.dtype != np.bool_):
        raise ValueError(f"padding must be bool [{n}], one entry a sequence, got {mask.dtype} {list(mask.shape)}.")
    return mask


def _describe(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
