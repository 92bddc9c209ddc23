"""What one step of training is known by: the four numbers to watch, and what explains them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mamba_lab.batching import Batch


@dataclass(frozen=True)
class BatchCounts:
    """What a step's micro-batches hold, counted on the host before they move to a device.

    Attributes:
        tokens: without padding.
        targets: positions that have a target.
        sequences: sequences or pieces of them, padding left out.
        positions: tokens and padding.
        longest: the longest sequence.
    """

    tokens: int
    targets: int
    sequences: int
    positions: int
    longest: int

    @property
    def valid_ratio(self) -> float:
        """Tokens over positions; without positions nothing is wasted, so 1."""
        return self.tokens / self.positions if self.positions else 1.0

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> BatchCounts:
        """Count over the micro-batches of one step, which lie on the host."""
        return cls(
            tokens=sum(batch.n_tokens for batch in batches),
            targets=sum(batch.n_target_tokens for batch in batches),
            sequences=sum(int((batch.sequence >= 0).sum()) for batch in batches),
            positions=sum(batch.input_ids.numel() for batch in batches),
            longest=max((batch.max_seqlen for batch in batches), default=0),
        )


@dataclass(frozen=True)
class StepMetrics:
    """One step, after its optimiser. The four numbers to watch are loss, valid_ratio, longest and grad_norm.

    Attributes:
        step: 1 is the first.
        epoch: 0 is the first.
        loss: in nats, the mean over the global step's weights (of all its micro-batches and ranks); 0 without any.
        valid_ratio: tokens over positions.
        longest: tokens of the longest sequence.
        grad_norm: of the mean loss's gradient over all parameters, before clipping.
        learning_rate: with which this step was taken.
        tokens: this step's, without padding.
        targets: positions that had a target.
        sequences: sequences or pieces of them.
        positions: tokens and padding.
        seconds: from asking for the data until the weights were updated.
        waiting_seconds: how much of that went into waiting for data.
        tgs: tokens (without padding) per GPU per second; without a GPU per process.
        memory_gib: the most memory so far: the run's on a GPU, as PyTorch's allocator counts it, or the process's.
        seconds_left: until the last planned step, at the mean pace of the last 50; None when the end is not known.
        skipped: the optimiser did nothing, because no position counted, or because a number was not finite.
    """

    step: int
    epoch: int
    loss: float
    valid_ratio: float
    longest: int
    grad_norm: float
    learning_rate: float
    tokens: int
    targets: int
    sequences: int
    positions: int
    seconds: float
    waiting_seconds: float
    tgs: float
    memory_gib: float
    seconds_left: float | None
    skipped: bool

    @classmethod
    def of(cls, counts: BatchCounts, *, seconds: float, **numbers: Any) -> StepMetrics:
        """From what the batches hold and the numbers that the loop has: every field that does not follow from these."""
        return cls(
            **asdict(counts),
            valid_ratio=counts.valid_ratio,
            tgs=counts.tokens / seconds if seconds > 0 else 0.0,
            seconds=seconds,
            **numbers,
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as strict JSON has them: a number that is not finite becomes None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def reset_peak_memory(device: torch.device) -> None:
    """Count a GPU's peak from here on. A process's cannot be taken back."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(device: torch.device) -> float:
    """The most memory so far in GiB: PyTorch's on a GPU, otherwise the process's; 0 where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
