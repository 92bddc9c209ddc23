"""Batches limited by tokens, not by samples, the same number on every rank."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch

from ._checks import IntsLike, as_int, as_lengths, as_share, shown
from ._epoch import Budget, EpochPlan, check_feasible, permutation, plan_epoch
from .bucketing import Buckets, bucket_by_length

ORDERS = ("random", "sorted", "none")


class TokenBudgetSampler(torch.utils.data.Sampler[list[int]]):
    """Yields batches of data-set indices whose *padded* size, samples times longest, stays within ``max_tokens``.

    Buckets are decided from all lengths before anything is sampled. A sample that would raise a batch's padding rate
    above ``max_padding`` waits for a later batch, so one long sample cannot drag a batch of short ones. In each step
    all ranks get batches of one bucket and of like size; every rank has the same number of steps, and every sample is
    in exactly one batch of an epoch. What is left at the end of a bucket joins the next longer one.

    The order depends on (lengths, settings, seed, epoch) alone, so every rank and every machine agrees without talking.
    Use it as ``DataLoader(dataset, batch_sampler=sampler)``, with any number of workers, or iterate over it.

    Args:
        lengths: [n], the tokens of each sample, on the host.
        max_tokens: the budget of one batch on one rank, padding included.
        n_buckets: quantile buckets, see ``bucket_by_length``. Not used by ``order="sorted"``.
        max_spread: the widest a bucket may be, in tokens, or None. Not used by ``order="sorted"``.
        max_padding: the padding rate no batch exceeds, 0 to 1; 1 switches the protection off.
        order: "random": shuffled within each bucket, steps shuffled.
            "sorted": batches are formed from the whole epoch sorted by length (equal lengths shuffled), then the
            steps are shuffled.
            "none": data-set order within each bucket, shortest bucket first, nothing shuffled: for evaluation.
        seed: of the shuffles.
        rank, world_size: this process and how many there are.

    Raises:
        ValueError: a sample longer than ``max_tokens`` (it fits no batch), fewer samples than ranks,
            too few samples to give every rank the same number of steps (in whatever epoch), or a bad argument.
    """

    def __init__(
        self,
        lengths: IntsLike,
        max_tokens: int,
        *,
        n_buckets: int = 8,
        max_spread: int | None = 128,
        max_padding: float = 0.2,
        order: Literal["random", "sorted", "none"] = "random",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.lengths = as_lengths(lengths)
        self.max_tokens = as_int(max_tokens, "max_tokens", minimum=1)
        self.max_padding = as_share(max_padding, "max_padding", " (1 switches it off)")
        self.seed = as_int(seed, "seed", minimum=0)
        self.world_size = as_int(world_size, "world_size", minimum=1)
        self.rank = as_int(rank, "rank", minimum=0)
        self.order = order
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {rank}, but world_size {world_size} has ranks 0 to {self.world_size - 1}.")
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(map(repr, ORDERS))}, got {order!r}.")
        n = len(self.lengths)
        if n and self.lengths.max() > self.max_tokens:
            place = int(np.argmax(self.lengths > self.max_tokens))
            raise ValueError(
                f"lengths[{place}] is {self.lengths[place]}, above max_tokens {self.max_tokens}: the sample fits no "
                f"batch. Raise max_tokens, cut the sample first (chunk_fixed), or leave it out."
            )
        if 0 < n < self.world_size:
            raise ValueError(
                f"world_size is {self.world_size}, but there are only {n} samples: some rank would get none. "
                f"Use fewer ranks."
            )
        check_feasible(self.lengths, Budget(self.max_tokens, self.max_padding), self.world_size)
        self.buckets: Buckets = bucket_by_length(self.lengths, n_buckets, max_spread=max_spread)
        self.epoch = 0
        self._settings = {
            "samples": n,
            "lengths_crc32": zlib.crc32(self.lengths.astype("<i8").tobytes()),
            "max_tokens": self.max_tokens,
            "n_buckets": int(n_buckets),
            "max_spread": None if max_spread is None else int(max_spread),
            "max_padding": self.max_padding,
            "order": order,
            "seed": self.seed,
            "world_size": self.world_size,
        }
        self._step = 0
        self._resumed = False
        self._plan: tuple[int, EpochPlan] | None = None

    def __len__(self) -> int:
        """Steps in this epoch, the same on every rank. It may differ a little from epoch to epoch."""
        return len(self._epoch_plan().steps)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches of the epoch: all of them, or the remaining ones after ``load_state_dict``."""
        plan = self._epoch_plan()
        if not self._resumed:
            self._step = 0
        self._resumed = False
        for step in range(self._step, len(plan.steps)):
            self._step = step + 1
            yield plan.batch(step, self.rank)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next. The same epoch again keeps a position that was just restored."""
        epoch = as_int(epoch, "epoch", minimum=0)
        if epoch != self.epoch:
            self.epoch, self._step, self._resumed = epoch, 0, False

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The position in the epoch, with the settings it belongs to. Equal on every rank.

        Args:
            step: how many batches of this epoch were trained on; by default how many were handed out. DataLoader
                workers fetch ahead, so with ``num_workers > 0`` give your own count.
        """
        if step is not None:
            step = self._checked_step(as_int(step, "step", minimum=0))
        return {"epoch": self.epoch, "step": self._step if step is None else step} | self._settings

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken: the next iteration yields the batches that remain of its epoch.

        Raises:
            ValueError: the state belongs to other lengths or settings (then nothing changes), or is incomplete.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"state must be what TokenBudgetSampler.state_dict returned, got {shown(state)}.")
        if missing := [key for key in ("epoch", "step", *self._settings) if key not in state]:
            raise ValueError(f"state has no {', '.join(missing)}: it does not come from TokenBudgetSampler.state_dict.")
        wrong = [
            f"{key} is {state[key]!r} in the state and {value!r} here"
            for key, value in self._settings.items()
            if state[key] != value
        ]
        if wrong:
            raise ValueError(
                f"state belongs to another run: {'; '.join(wrong)}. Build the sampler with the state's settings and "
                f"data, or start the epoch anew."
            )
        before = self.epoch
        self.epoch = as_int(state["epoch"], "state['epoch']", minimum=0)
        try:
            self._step = self._checked_step(as_int(state["step"], "state['step']", minimum=0))
        except ValueError:
            self.epoch = before
            raise
        self._resumed = True

    def _checked_step(self, step: int) -> int:
        if step > len(self):
            raise ValueError(f"step is {step}, but epoch {self.epoch} has {len(self)} steps.")
        return step

    def _epoch_plan(self) -> EpochPlan:
        if self._plan is None or self._plan[0] != self.epoch:
            self._plan = (self.epoch, self._make_plan())
        return self._plan[1]

    def _make_plan(self) -> EpochPlan:
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch]))
        n = len(self.lengths)
        visit = np.arange(n) if self.order == "none" else permutation(bits, n)
        if self.order == "sorted":
            streams = [visit[np.argsort(self.lengths[visit], kind="stable")]]
        else:
            bucket = self.buckets.bucket_of[visit].astype(np.int32)
            grouped = visit[np.argsort(bucket, kind="stable")]
            ends = np.cumsum(np.bincount(bucket, minlength=self.buckets.n_buckets))
            streams = np.split(grouped, ends[:-1]) if n else []
        return plan_epoch(
            self.lengths,
            streams,
            Budget(self.max_tokens, self.max_padding),
            self.world_size,
            by_size=self.order == "random",
            shuffled=None if self.order == "none" else bits,
        )
