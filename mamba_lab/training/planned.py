"""Schemes whose whole epoch is planned from the lengths: fixed chunks, and padded batches under a budget of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mamba_lab.batching import Batch, PackingPlan, TokenBudgetSampler, check_targets, chunk_fixed, pack_collate
from mamba_lab.batching._epoch import permutation
from mamba_lab.batching._stream_threads import Background, Stop

from .documents import Sequences
from .sequence_maker import Ints
from .weights import sequence_weights

if TYPE_CHECKING:
    from .config import PackingConfig

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
CHECKED_BATCHES = 8
_MIN_TARGET_SHARE = 0.01


class Rows:
    """Rows of a plan as batches.

    Args:
        sequences: what the plan's numbers index.
        plan: pieces in bins. Row ``plan.n_bins`` is an empty one.
        weighted: give the batches ``sequence_weights``.
        pad_id, pad_to_multiple_of: as ``pack_collate`` takes them.
    """

    def __init__(
        self,
        sequences: Sequences,
        plan: PackingPlan,
        *,
        weighted: bool,
        pad_id: int,
        pad_to_multiple_of: int | None,
    ) -> None:
        self.plan = plan
        self._sequences = sequences
        self._options: dict[str, Any] = {
            "targets": sequences.targets,
            "weights": _Weights(sequences.targets) if weighted else None,
            "pad_id": pad_id,
            "pad_to_multiple_of": pad_to_multiple_of,
        }

    def batch(self, rows: Int64Array, *, widest: bool) -> Batch:
        """A batch of these rows, as wide as the plan's capacity or, with ``widest``, as the longest of them."""
        bins = [self._pieces(row) for row in rows.tolist()]
        offsets = np.cumsum([0, *(len(one) for one in bins)], dtype=np.int64)
        pieces = np.concatenate([np.zeros(0, np.int64), *bins])
        start, stop = self.plan.start[pieces], self.plan.stop[pieces]
        capacity = max(int((stop - start).max(initial=1)), 1) if widest else self.plan.capacity
        plan = PackingPlan(capacity, offsets, self.plan.sequence[pieces], start, stop)
        return pack_collate(plan, self._sequences.ids, **self._options)

    def cut(self, rows: Int64Array, batch: Batch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the batch's sequences are pieces that go on elsewhere."""
        pieces = np.concatenate([np.zeros(0, np.int64), *(self._pieces(row) for row in rows.tolist())])
        lengths = np.array([len(self._sequences.ids[number]) for number in self.plan.sequence[pieces]], np.int64)
        cut = np.zeros(len(batch.sequence), bool)
        cut[batch.sequence.numpy() >= 0] = self.plan.stop[pieces] < lengths
        return cut

    def _pieces(self, row: int) -> Int64Array:
        if row == self.plan.n_bins:
            return np.zeros(0, np.int64)
        return np.arange(self.plan.offsets[row], self.plan.offsets[row + 1])


class _Weights(Sequence[Any]):
    """Each sequence's weights, made when a batch wants them."""

    def __init__(self, targets: list[Ints]) -> None:
        self._targets = targets

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, number: Any) -> Any:
        return sequence_weights(self._targets[number])


def dealt(order: Int64Array, rows: int, rank: int, world_size: int, empty: int) -> list[Int64Array]:
    """``order`` in steps of ``rows`` rows for each rank, and of these one rank's.

    The last step has what remains, as equal as it goes: every rank gets as many rows, with the row ``empty`` where
    there is none.
    """
    at_once = rows * world_size
    steps = []
    for first in range(0, len(order), at_once):
        step = order[first : first + at_once]
        missing = -len(step) % world_size
        steps.append(np.append(step, np.full(missing, empty, np.int64))[rank::world_size])
    return steps


class Planned(ABC):
    """An epoch that is known before it begins: place k is after its k-th micro-batch."""

    def __init__(
        self,
        sequences: Sequences,
        packing: PackingConfig,
        *,
        weighted: bool,
        pad_id: int,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.rows = Rows(
            sequences,
            chunk_fixed(sequences.lengths, packing.capacity),
            weighted=weighted,
            pad_id=pad_id,
            pad_to_multiple_of=packing.pad_to_multiple_of,
        )
        self.packing, self.seed, self.rank, self.world_size = packing, seed, rank, world_size
        self.pad_id = pad_id

    widest = False

    @abstractmethod
    def plan(self, epoch: int) -> list[Int64Array]:
        """This rank's micro-batches, each the numbers of its rows."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the order depends on, beside the settings that all schemes have."""

    def count(self, epoch: int) -> int:
        """Micro-batches of an epoch."""
        return len(self.plan(epoch))

    def groups(self, epoch: int, place: Any) -> Generator[tuple[list[Batch], int], None, None]:
        """Each micro-batch after ``place`` (None: all), with the place after it."""
        done, plan = place or 0, self.plan(epoch)  # here, not in the thread: the sampler is asked by others too
        if done > len(plan):
            raise ValueError(f"the state is after micro-batch {done}, but epoch {epoch} has {len(plan)} of them.")
        if not self.packing.workers:
            yield from self._groups(plan, done)
            return
        stop = Stop()
        ahead: Background[tuple[list[Batch], int]] = Background(
            lambda: self._groups(plan, done), self.packing.prefetch, stop
        )
        try:
            yield from ahead
        finally:
            ahead.close()

    def _groups(self, plan: list[Int64Array], done: int) -> Generator[tuple[list[Batch], int], None, None]:
        first = [(rows, self.rows.batch(rows, widest=self.widest)) for rows in plan[done : done + CHECKED_BATCHES]]
        if first:
            self._check(first, whole=done == 0)
        for number, (_, batch) in enumerate(first, done + 1):
            yield [batch], number
        for number in range(done + len(first), len(plan)):
            yield [self.rows.batch(plan[number], widest=self.widest)], number + 1

    def _check(self, first: list[tuple[Int64Array, Batch]], *, whole: bool) -> None:
        # After a resume, or on one of several ranks, a stretch of long prompts is no mistake.
        share = _MIN_TARGET_SHARE if whole and self.world_size == 1 else 0
        cut = [self.rows.cut(rows, batch) for rows, batch in first]
        report = check_targets([batch for _, batch in first], pad_id=self.pad_id, cut=cut, min_target_share=share)
        findings = [f for f in report.findings if share or not f.startswith("all masked")]
        if findings:
            listed = "\n".join(f"- {finding}" for finding in findings)
            raise ValueError(f"check_targets finds mistakes in the first {len(first)} batches:\n{listed}")


class Fixed(Planned):
    """Every document cut into chunks of ``capacity``, one a row: the last chunk of each is padded."""

    def plan(self, epoch: int) -> list[Int64Array]:
        order = np.arange(self.rows.plan.n_bins)
        if self.packing.shuffle:
            order = permutation(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])), len(order))
        return dealt(order, self.packing.rows, self.rank, self.world_size, self.rows.plan.n_bins)

    @property
    def settings(self) -> dict[str, Any]:
        return {"rows": self.packing.rows}


class Padded(Planned):
    """A document a row, as many rows as a budget of tokens holds; from buckets of like length with ``bucketed``."""

    widest = True

    def __init__(self, *args: Any, bucketed: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        packing, plan = self.packing, self.rows.plan
        self._bucketed = bucketed
        order = "none" if not packing.shuffle else packing.sort
        self._sampler = TokenBudgetSampler(
            plan.bin_tokens,
            packing.budget,
            n_buckets=packing.n_buckets if bucketed else 1,
            max_spread=packing.max_spread if bucketed else None,
            max_padding=packing.max_padding if bucketed else 1.0,
            order=order,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
        )

    def plan(self, epoch: int) -> list[Int64Array]:
        self._sampler.set_epoch(epoch)
        return [np.array(samples, np.int64) for samples in self._sampler]

    @property
    def settings(self) -> dict[str, Any]:
        names = ("max_tokens", "n_buckets", "max_spread", "max_padding", "order")
        return {name: value for name, value in self._sampler.state_dict().items() if name in names}
