"""One epoch of batches for all ranks: cut, grouped into steps, dealt out."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ._cut import cut_batches

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, eq=False)
class Budget:
    """What limits a batch: tokens with padding, and the padding rate."""

    max_tokens: int
    max_padding: float


class EpochPlan:
    """The batches of one epoch and who gets them.

    Attributes:
        steps: int64 [n_steps, world_size], the batch that each rank gets in each step.
    """

    def __init__(self, batches: _Batches, steps: Int64Array) -> None:
        self._members = np.concatenate(batches.members) if batches.members else np.zeros(0, np.int64)
        sizes = np.concatenate(batches.sizes) if batches.sizes else np.zeros(0, np.int64)
        self._offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        self.steps = steps

    def batch(self, step: int, rank: int) -> list[int]:
        """The samples that ``rank`` gets in ``step``."""
        number = self.steps[step, rank]
        samples: list[int] = self._members[self._offsets[number] : self._offsets[number + 1]].tolist()
        return samples


class _Batches:
    """All batches made so far, end to end."""

    def __init__(self, lengths: Int64Array) -> None:
        self.lengths = lengths
        self.members: list[Int64Array] = []
        self.sizes: list[Int64Array] = []
        self.padded: list[Int64Array] = []
        self.count = 0

    def add(self, members: Int64Array, offsets: Int64Array) -> Int64Array:
        """Add the batches ``members[offsets[i]:offsets[i + 1]]`` and return their numbers."""
        self.members.append(members)
        self.sizes.append(np.diff(offsets))
        self.padded.append(_padded_sizes(self.lengths[members], offsets))
        numbers = np.arange(self.count, self.count + len(offsets) - 1)
        self.count += len(numbers)
        return numbers


def plan_epoch(
    lengths: Int64Array,
    streams: Sequence[Int64Array],
    budget: Budget,
    world_size: int,
    *,
    by_size: bool,
    shuffled: np.random.PCG64 | None,
) -> EpochPlan:
    """Make the steps of an epoch: ``world_size`` batches each, none empty, no sample left out or used twice.

    The batches of a step come from one stream, so the ranks do like work. What is too little at a stream's end (a
    batch less than half full, or batches that do not make up a step) moves on to the next stream. At the very end the
    largest batches are split until the last step is whole. Where the samples are too few for that, the epoch is cut
    anew from the samples in order of length, which merges best.

    Args:
        lengths: int64 [n], of all samples.
        streams: the samples in visiting order, one array a bucket, neighbours next to each other.
        budget: what limits a batch.
        world_size: the number of ranks.
        by_size: group batches of like padded size into a step; otherwise neighbours as they were cut.
        shuffled: where the order of the steps comes from; None leaves them as they were made.

    ``check_feasible`` must have passed.
    """
    batches = _Batches(lengths)
    steps: list[Int64Array] = []
    carried = np.zeros(0, np.int64)
    for number, own in enumerate(streams):
        stream = np.concatenate((carried, own))
        order, offsets = cut_batches(lengths[stream], budget.max_tokens, budget.max_padding)
        members = stream[order]
        padded = _padded_sizes(lengths[members], offsets)
        keep = len(padded)
        if number + 1 < len(streams):
            while keep and 2 * padded[keep - 1] < budget.max_tokens:
                keep -= 1
        keep -= keep % world_size
        numbers = batches.add(members[: offsets[keep]], offsets[: keep + 1])
        carried, rest = members[offsets[keep] :], offsets[keep:] - offsets[keep]
        steps.append(_grouped(numbers, padded[:keep], world_size, by_size))
    table = np.concatenate(steps) if steps else np.zeros((0, world_size), np.int64)
    if len(carried):
        table = _complete(batches, table, np.split(carried, rest[1:-1]), budget)
    if shuffled is not None:
        table = table[permutation(shuffled, len(table))]
    sizes = np.concatenate(batches.padded) if batches.padded else np.zeros(0, np.int64)
    return EpochPlan(batches, _dealt(table, sizes) if world_size > 1 else table)


def check_feasible(lengths: Int64Array, budget: Budget, world_size: int) -> None:
    """Check that some plan gives every rank the same number of steps, in every epoch: the order does not matter.

    Any number of batches from the fewest to one a sample can be made, by splitting; a multiple of ``world_size`` must
    be among them. As the fewest count those of ``fewest_batches``, which joins neighbours in length only.

    Raises:
        ValueError: there is no such plan among cuts in order of length.
    """
    n = len(lengths)
    excess = n % world_size
    if not excess:
        return
    # Pairs of neighbours in length are quick to count, and nearly always enough.
    ranked = np.sort(lengths)
    low, high = ranked[-2::-2], ranked[-1::-2][: n // 2]
    if np.count_nonzero((2 * high <= budget.max_tokens) & (high - low <= budget.max_padding * (2 * high))) >= excess:
        return
    fewest = len(fewest_batches(np.arange(n), lengths, budget))
    needed = -(-fewest // world_size) * world_size
    if needed > n:
        raise ValueError(
            f"world_size is {world_size}, so {fewest} batches must become {needed} to give every rank the same number "
            f"of steps, but there are only {n} samples, and no cut in order of length gives fewer batches. Use "
            f"fewer ranks, more samples, or a larger max_tokens or max_padding."
        )


def fewest_batches(samples: Int64Array, lengths: Int64Array, budget: Budget) -> list[Int64Array]:
    """The fewest legal batches of neighbours in order of length, by dynamic programming over the ranked samples."""
    ranked = samples[np.lexsort((samples, lengths[samples]))]
    length = lengths[ranked].tolist()
    fewest, start = [0], [0]
    for end in range(1, len(length) + 1):
        longest = length[end - 1]
        best, tokens = end - 1, longest
        # Without its shortest sample a legal batch stays legal, so the first that is not legal ends the search.
        for first in range(end - 2, -1, -1):
            tokens += length[first]
            padded = (end - first) * longest
            if padded > budget.max_tokens or padded - tokens > budget.max_padding * padded:
                break
            if fewest[first] <= fewest[best]:
                best = first
        fewest.append(fewest[best] + 1)
        start.append(best)
    cuts = [len(length)]
    while cuts[-1]:
        cuts.append(start[cuts[-1]])
    return np.split(ranked, cuts[-2:0:-1])


def permutation(bits: np.random.PCG64, n: int) -> Int64Array:
    """A random order of ``n``, from raw draws: these stay the same across NumPy releases, ``permutation`` may not."""
    return np.argsort(bits.random_raw(n), kind="stable")


def _padded_sizes(lengths: Int64Array, offsets: Int64Array) -> Int64Array:
    """Samples times longest, for each batch."""
    if len(offsets) < 2:
        return np.zeros(0, np.int64)
    longest: Int64Array = np.maximum.reduceat(lengths, offsets[:-1])
    return longest * np.diff(offsets)


def _grouped(numbers: Int64Array, padded: Int64Array, world_size: int, by_size: bool) -> Int64Array:
    order = np.argsort(-padded, kind="stable") if by_size else slice(None)
    return numbers[order].reshape(-1, world_size)


def _complete(batches: _Batches, steps: Int64Array, pool: list[Int64Array], budget: Budget) -> Int64Array:
    """Add steps for the batches in ``pool``, fewer than make up a step, by splitting some of them.

    A split breaks no limit: both halves are smaller, and of a batch in order of length the shortest sample can always
    be split off. So only the number of samples counts; where the pool has too few, earlier steps join it,
    and where all together have too few, they are cut anew in order of length.
    """
    world_size = steps.shape[1]
    lengths = batches.lengths
    n_samples = sum(map(len, pool))
    if len(steps):
        members = np.concatenate(batches.members)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.concatenate(batches.sizes))))
    while n_samples < (needed := -(-len(pool) // world_size) * world_size):
        if not len(steps):
            pool = fewest_batches(np.concatenate(pool), lengths, budget)
            needed = -(-len(pool) // world_size) * world_size
            break
        for number in steps[-1].tolist():
            pool.append(members[offsets[number] : offsets[number + 1]])
            n_samples += len(pool[-1])
        steps = steps[:-1]
    pool = _levelled(np.concatenate(pool), lengths, budget, needed) or pool
    done: list[Int64Array] = []
    heap = [(-_padded(lengths[batch]), place, batch) for place, batch in enumerate(pool)]
    heapq.heapify(heap)
    made = len(pool)
    while len(done) + len(heap) < needed:
        _, _, batch = heapq.heappop(heap)
        if len(batch) == 1:
            done.append(batch)
            continue
        for half in _split(batch, lengths, budget.max_padding):
            heapq.heappush(heap, (-_padded(lengths[half]), made, half))
            made += 1
    done += [batch for _, _, batch in heap]
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum([len(batch) for batch in done])))
    numbers = batches.add(np.concatenate(done), ends)
    return np.concatenate((steps, _grouped(numbers, batches.padded[-1], world_size, by_size=True)))


def _levelled(samples: Int64Array, lengths: Int64Array, budget: Budget, at_most: int) -> list[Int64Array] | None:
    """The samples cut anew in order of length, with the smallest budget that gives ``at_most`` batches, or None.

    Cut so, the batches of the last step are of like size, which splitting in two alone does not achieve.
    """
    ranked = samples[np.lexsort((samples, lengths[samples]))]
    found = None
    low, high = int(lengths[ranked[-1]]), budget.max_tokens
    while low <= high:
        middle = (low + high) // 2
        order, offsets = cut_batches(lengths[ranked], middle, budget.max_padding)
        if len(offsets) - 1 <= at_most:
            found, high = np.split(ranked[order], offsets[1:-1]), middle - 1
        else:
            low = middle + 1
    return found


def _split(batch: Int64Array, lengths: Int64Array, max_padding: float) -> tuple[Int64Array, Int64Array]:
    """Two halves by length, of padded sizes as equal as the limit on padding allows."""
    batch = batch[np.lexsort((batch, lengths[batch]))]
    ranked = lengths[batch]
    count = np.arange(1, len(batch))
    tokens = np.cumsum(ranked)
    low, high = count * ranked[:-1], (len(batch) - count) * ranked[-1]
    legal = (low - tokens[:-1] <= max_padding * low) & (high - (tokens[-1] - tokens[:-1]) <= max_padding * high)
    cut = int(count[legal][np.argmin(np.maximum(low, high)[legal])])
    return batch[:cut], batch[cut:]


def _padded(lengths: Int64Array) -> int:
    return int(lengths.max()) * len(lengths)


def _dealt(steps: Int64Array, padded: Int64Array) -> Int64Array:
    """Give the largest batch of each step to the rank that has had the least so far, and so on down."""
    load = np.zeros(steps.shape[1], np.int64)
    dealt = np.empty_like(steps)
    for step, numbers in enumerate(steps):
        ranks = np.argsort(load, kind="stable")
        numbers = numbers[np.argsort(-padded[numbers], kind="stable")]
        dealt[step, ranks] = numbers
        load[ranks] += padded[numbers]
    return dealt
