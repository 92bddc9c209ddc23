"""What each batching scheme makes of a list of lengths, and which capacity and buffer to take for packing them.

advice = recommend(lengths)
print(advice)                        # the choice, with its reason
plan = advice.plan(lengths)          # pack_greedy with that choice
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import fill

import numpy as np

from ._checks import IntsLike, as_int, as_lengths
from .chunking import chunk_fixed
from .packing import Overflow, pack_best_fit, pack_greedy, pack_sequential
from .plan import Int64Array, PackingPlan
from .sampler import TokenBudgetSampler

BATCH_SIZE = 16
BUFFERS = (64, 256, 1024, 4096)
MAX_TOKENS = 16_384
"""Positions of a bucketed batch. A longer document raises it to its own length."""

_CLOSE = 0.005
_WASTE = 0.02
_SMALLEST, _LARGEST = 64, 1 << 30
_STEPS = (64, 8)
_FEW, _FAR_LONGER = 20, 8


@dataclass(frozen=True)
class SchemeCost:
    """What one scheme makes of a data set.

    Attributes:
        name: the scheme.
        rows: rows of one epoch.
        positions: positions of all rows, padding included.
        n_tokens: tokens among them.
        documents_cut: documents that lie in more than one piece, or lose their end.
        seconds: wall time to plan the epoch, on this machine.
    """

    name: str
    rows: int
    positions: int
    n_tokens: int
    documents_cut: int
    seconds: float

    @property
    def padding_rate(self) -> float:
        """Padding over all positions; 0 without positions."""
        return 1 - self.n_tokens / self.positions if self.positions else 0.0


@dataclass(frozen=True)
class Recommendation:
    """A capacity and a buffer for ``pack_greedy``, with what they cost and why.

    Attributes:
        capacity, buffer_size, overflow: the arguments of ``pack_greedy``.
        padding_rate: of the packs.
        rows: packs of one epoch.
        dropped: tokens that ``overflow="truncate"`` leaves out.
        documents_cut: documents longer than the capacity, which are split or lose their end.
        saved_against_padding: the share of positions saved against padded batches of 16 at random.
        saved_against_sequential: the share of positions saved against sequential packing at this capacity.
        reason: why this capacity and this buffer, one sentence.
    """

    capacity: int
    buffer_size: int
    overflow: Overflow
    padding_rate: float
    rows: int
    dropped: int
    documents_cut: int
    saved_against_padding: float
    saved_against_sequential: float
    reason: str

    def plan(self, lengths: IntsLike) -> PackingPlan:
        """``pack_greedy`` of these lengths with this choice."""
        return pack_greedy(lengths, self.capacity, buffer_size=self.buffer_size, overflow=self.overflow)

    def __str__(self) -> str:
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        dropped = f", {self.dropped:,} token{'' if self.dropped == 1 else 's'} dropped" if self.dropped else ""
        return (
            f"capacity {self.capacity:,}, buffer {self.buffer_size:,}: {rows}, {self.padding_rate:.1%} padding"
            f"{dropped}.\n{fill(self.reason, 76)}"
        )


def recommend(lengths: IntsLike, *, capacity: int | None = None, overflow: Overflow = "split") -> Recommendation:
    """Choose a capacity and a buffer for packing documents of these lengths.

    The capacity is the smallest of 64, 96, 128, 192, 256, ... that cuts fewer than one document in a hundred, and none
    under ``overflow="error"``. Of 20 to 100 documents one may be cut: one over eight times as long as all others. Where
    documents fit together badly at it (more than 2% of the rows are above the least possible number even when all
    documents are packed at once), a larger one is taken, at most four times as large. The buffer is the smallest of
    64, 256, 1,024 and 4,096 whose padding is within half a percentage point of packing everything at once: the smaller
    the buffer, the less documents move.

    Args:
        lengths: [N], the tokens of each document, at least one above 0.
        capacity: keep to this one and choose the buffer only.
        overflow: what packing does with a document longer than the capacity, as in ``pack_greedy``. The figures are
            those of the plan that this gives.

    Raises:
        ValueError: no tokens, a bad length, a capacity below 1, or under ``overflow="error"`` a document longer than
            the given capacity.
    """
    host = _with_tokens(lengths)
    if capacity is None:
        capacity, why = _choose_capacity(host, 0 if overflow == "error" else _most_cut(host))
    else:
        capacity = as_int(capacity, "capacity", minimum=1)
        why = f"{capacity:,} tokens were given as the capacity"
    goal = pack_best_fit(host, capacity, overflow=overflow).padding_rate
    plans = ((size, pack_greedy(host, capacity, buffer_size=size, overflow=overflow)) for size in BUFFERS)
    buffer_size, plan = next(
        ((size, plan) for size, plan in plans if size == BUFFERS[-1] or plan.padding_rate <= goal + _CLOSE)
    )
    if plan.padding_rate <= goal + _CLOSE:
        why += f", and {buffer_size:,} is the smallest buffer within 0.5 points of best fit ({goal:.1%})."
    else:
        why += f", and {buffer_size:,} is the largest buffer tried (best fit over everything leaves {goal:.1%})."
    positions = plan.n_bins * capacity
    sequential = pack_sequential(host, capacity, overflow=overflow).n_bins * capacity
    return Recommendation(
        capacity,
        buffer_size,
        overflow,
        plan.padding_rate,
        plan.n_bins,
        plan.dropped,
        int((host > capacity).sum()),
        1 - positions / _padded_positions(host),
        1 - positions / sequential,
        why,
    )


def scheme_costs(lengths: IntsLike, capacity: int, *, overflow: Overflow = "split") -> Iterator[SchemeCost]:
    """Plan one epoch under each scheme, one after another: padded, bucketed, cut and packed.

    Padded and bucketed batches hold whole documents and do not use the capacity. Fixed chunks always split. Each
    scheme is yielded as soon as it is measured.

    Args:
        lengths: [N], the tokens of each document, at least one above 0.
        capacity: the tokens of a row.
        overflow: what packing does with a document longer than ``capacity``, as in ``pack_sequential``.

    Raises:
        ValueError: no tokens, a bad argument, or under ``overflow="error"`` a document longer than the capacity.
    """
    host = _with_tokens(lengths)
    capacity = as_int(capacity, "capacity", minimum=1)
    pack_sequential(host, capacity, overflow=overflow)  # what packing refuses is refused before anything is yielded
    tokens = int(host.sum())
    yield _timed(f"padded, {BATCH_SIZE} at random", tokens, lambda: (len(host), _padded_positions(host)))
    yield _timed("bucketed, token budget", tokens, lambda: _bucketed(host))
    planners: dict[str, Callable[[], PackingPlan]] = {
        "fixed chunks, each": lambda: chunk_fixed(host, capacity),
        "fixed chunks, joined": lambda: chunk_fixed(host, capacity, across=True),
        "sequential packs": lambda: pack_sequential(host, capacity, overflow=overflow),
    }
    for size in BUFFERS:
        planners[f"greedy, buffer {size:,}"] = lambda size=size: pack_greedy(  # type: ignore[misc]
            host, capacity, buffer_size=size, overflow=overflow
        )
    planners["best fit, everything"] = lambda: pack_best_fit(host, capacity, overflow=overflow)
    for name, planner in planners.items():
        start = time.perf_counter()
        plan = planner()
        seconds = time.perf_counter() - start
        positions = plan.n_bins * capacity
        yield SchemeCost(name, plan.n_bins, positions, plan.n_tokens, documents_cut(plan, host), seconds)


def documents_cut(plan: PackingPlan, lengths: IntsLike) -> int:
    """Documents that lie in more than one piece of ``plan``, or whose end it leaves out.

    A document of which nothing is in the plan is dropped, not cut.
    """
    host = as_lengths(lengths)
    kept = (plan.stop - plan.start).astype(np.int64)
    whole = kept == host[plan.sequence]
    return len(np.unique(plan.sequence[~whole]))


def _most_cut(host: Int64Array) -> int:
    """How many documents may be cut: fewer than one in a hundred, or the one that is far longer than all others."""
    most = (len(host) - 1) // 100
    if most or len(host) < _FEW:
        return most
    second, longest = np.partition(host, -2)[-2:].tolist()
    return int(longest > _FAR_LONGER * max(second, _SMALLEST))


def _choose_capacity(host: Int64Array, most_cut: int) -> tuple[int, str]:
    """The capacity and the first half of the reason."""

    def fits(capacity: int) -> bool:
        return int((host > capacity).sum()) <= most_cut

    smallest = next(c for c in _round_capacities() if fits(c))
    cut = int((host > smallest).sum())
    few = f"cuts {cut:,} of {len(host):,} documents" if cut else "cuts no document"
    why = f"{smallest:,} tokens is the smallest round capacity that cuts fewer than 1% ({few})"
    if 100 * cut >= len(host):
        why = f"{smallest:,} tokens is the smallest round capacity that cuts only the longest document ({few})"
    if _waste(host, smallest) <= _WASTE:
        return smallest, why
    longest = int(np.partition(host, -1 - most_cut)[-1 - most_cut])
    tried = [c for c in _round_capacities() if smallest < c <= 4 * smallest]
    for step in _STEPS:
        exact = (-(-k * longest // step) * step for k in range(1, 5))
        tried += [c for c in exact if fits(c)]
        if good := [c for c in tried if _waste(host, c) <= _WASTE]:
            chosen = min(good)
            break
    else:
        chosen = min([smallest, *tried], key=lambda c: (_waste(host, c), c))
    if chosen == smallest:
        return smallest, why
    return chosen, (
        f"{smallest:,} tokens would cut as few, but the documents fit together badly there; {chosen:,} leaves less"
    )


def _waste(host: Int64Array, capacity: int) -> float:
    """The share of rows that no capacity rounding explains: those above the least possible number."""
    rows = pack_best_fit(host, capacity, overflow="split").n_bins
    return 1 - -(-int(host.sum()) // capacity) / rows


def _round_capacities() -> Iterator[int]:
    """64, 96, 128, 192, 256, ...: powers of two and the numbers half way between them."""
    size = _SMALLEST
    while size <= _LARGEST:
        yield size
        yield size * 3 // 2
        size *= 2
    yield 2**31 - 1


def _with_tokens(lengths: IntsLike) -> Int64Array:
    host = as_lengths(lengths)
    if not (host > 0).any():
        raise ValueError(f"lengths has {len(host)} documents and no tokens: give at least one length above 0.")
    return host


def _padded_positions(host: Int64Array) -> int:
    """Positions of an epoch of batches of BATCH_SIZE random documents, each padded to its longest."""
    shuffled = host[np.random.default_rng(0).permutation(len(host))]
    starts = np.arange(0, len(shuffled), BATCH_SIZE)
    counts = np.diff(np.append(starts, len(shuffled)))
    return int((np.maximum.reduceat(shuffled, starts) * counts).sum())


def _bucketed(host: Int64Array) -> tuple[int, int]:
    batches = TokenBudgetSampler(host, max(MAX_TOKENS, int(host.max())))
    return len(host), sum(len(batch) * int(host[batch].max()) for batch in batches)


def _timed(name: str, tokens: int, plan: Callable[[], tuple[int, int]]) -> SchemeCost:
    start = time.perf_counter()
    rows, positions = plan()
    return SchemeCost(name, rows, positions, tokens, 0, time.perf_counter() - start)
