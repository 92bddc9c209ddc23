"""Look at an epoch's batches before training on them: what they cost, and which known mistake they show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ._checks import IntsLike, as_host_ints, as_int, as_lengths, as_share, shown


@dataclass(frozen=True)
class BatchAudit:
    """What :func:`audit_batches` found.

    Attributes:
        n_batches: how many batches were looked at.
        valid_ratio: real tokens / positions, over all of them.
        largest: positions of the largest padded batch, in tokens.
        findings: one line a mistake: its name, how many batches show it, the worst of them, the remedy.
    """

    n_batches: int
    valid_ratio: float
    largest: int
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True where no mistake was found."""
        return not self.findings

    def __str__(self) -> str:
        lines = [f"{self.n_batches} batches, valid ratio {self.valid_ratio:.0%}, largest {self.largest:,} positions"]
        return "\n".join(lines + [f"- {finding}" for finding in self.findings or ("nothing found",)])


def audit_batches(
    batches: Iterable[IntsLike],
    lengths: IntsLike,
    *,
    max_tokens: int | None = None,
    min_valid_ratio: float = 0.8,
) -> BatchAudit:
    """Check one epoch of batches that are padded to their longest sequence.

    Four mistakes are known by name: a sample lost or doubled; a batch over the budget; one long sample that drags a
    batch; lengths mixed within batches. A batch with a valid ratio under ``min_valid_ratio`` shows one of the last two:
    it is dragged where leaving out its longest sample would lift it over the limit, and mixed where not.

    Args:
        batches: indices into ``lengths``, one group a batch.
        lengths: tokens of each sequence, [n].
        max_tokens: the budget, in positions of a padded batch; None: no budget.
        min_valid_ratio: the share of real tokens that a batch should have.

    Raises:
        ValueError: an index or a length that is no integer, an index outside ``lengths``, an empty batch, a bad limit.
    """
    sizes = as_lengths(lengths)
    min_valid_ratio = as_share(min_valid_ratio, "min_valid_ratio")
    if max_tokens is not None:
        max_tokens = as_int(max_tokens, "max_tokens", minimum=1)
    if isinstance(batches, str | bytes) or not isinstance(batches, Iterable):
        raise ValueError(f"batches must be a list of batches, each a list of sample numbers, got {shown(batches)}.")
    seen = np.zeros(len(sizes), dtype=np.int64)
    padded: list[int] = []
    real = 0
    dragged: list[tuple[float, int, int]] = []  # valid ratio, batch, its longest sample
    mixed: list[tuple[float, int]] = []
    for number, batch in enumerate(batches):
        chosen = as_host_ints(batch, f"batches[{number}]").astype(np.int64)
        if not len(chosen):
            raise ValueError(f"batches[{number}] is empty: leave it out.")
        if chosen.min() < 0 or chosen.max() >= len(sizes):
            wrong = chosen[(chosen < 0) | (chosen >= len(sizes))][0]
            raise ValueError(f"batches[{number}] names sample {wrong}, but lengths has {len(sizes)} entries.")
        np.add.at(seen, chosen, 1)
        own = sizes[chosen]
        padded.append(len(own) * int(own.max()))
        real += int(own.sum())
        ratio = _valid_ratio(own)
        if ratio < min_valid_ratio:
            longest = int(own.argmax())
            if len(own) > 1 and _valid_ratio(np.delete(own, longest)) >= min_valid_ratio:
                dragged.append((ratio, number, int(chosen[longest])))
            else:
                mixed.append((ratio, number))

    findings = []
    if len(lost := np.flatnonzero(seen == 0)):
        findings.append(f"lost: {len(lost)} of {len(sizes)} samples are in no batch, the first is {lost[0]}")
    if len(doubled := np.flatnonzero(seen > 1)):
        findings.append(f"doubled: {len(doubled)} samples are in several batches, the first is {doubled[0]}")
    if max_tokens is not None and (over := sum(size > max_tokens for size in padded)):
        worst = int(np.argmax(padded))
        findings.append(
            f"over budget: {over} batches, the largest is batch {worst} with {padded[worst]:,} positions for a budget "
            f"of {max_tokens:,}; count padded positions, not samples or real tokens"
        )
    if dragged:
        ratio, number, sample = min(dragged)
        findings.append(
            f"dragged: {len(dragged)} batches, in the worst (batch {number}, {ratio:.0%} valid) sample {sample} with "
            f"{sizes[sample]:,} tokens pads all others; let long samples wait for a batch of their kind"
        )
    if mixed:
        ratio, number = min(mixed)
        findings.append(
            f"mixed lengths: {len(mixed)} batches, the worst is batch {number} with {ratio:.0%} valid; choose the "
            "bucket before the samples, and make buckets narrower"
        )
    total = sum(padded)
    return BatchAudit(len(padded), real / total if total else 1.0, max(padded, default=0), tuple(findings))


def _valid_ratio(lengths: np.ndarray) -> float:
    positions = len(lengths) * int(lengths.max())
    return float(lengths.sum()) / positions if positions else 1.0
