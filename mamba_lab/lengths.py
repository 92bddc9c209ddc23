"""Lengths of sequences: their statistics, and the length distribution of the published packing experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LengthStats", "length_stats", "published_lengths"]

# The published experiments give the range 57..2048 and a mean of 646 tokens. A log-normal distribution with these two
# parameters, clipped to that range, has a mean of 645 and the published padding rates.
_LOG_MEAN, _LOG_STD = 6.2, 0.8
_SHORTEST, _LONGEST = 57, 2048


@dataclass(frozen=True)
class LengthStats:
    """Statistics of a list of lengths, in tokens. With no lengths every field is 0."""

    count: int
    total: int
    mean: float
    median: float
    p90: float
    p99: float
    max: int
    min: int

    def __str__(self) -> str:
        named = ((self.count, "sequence"), (self.total, "token"))
        count, total = (f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in named)
        return (
            f"{count}, {total}: mean {self.mean:,.0f}, median {self.median:,.0f}, "
            f"90% below {self.p90:,.0f}, 99% below {self.p99:,.0f}, shortest {self.min:,}, longest {self.max:,}"
        )


def length_stats(lengths: Sequence[int] | npt.NDArray[np.integer]) -> LengthStats:
    """Count, sum, mean, median, 90th and 99th percentile, longest and shortest of `lengths`.

    Args:
        lengths: one-dimensional, whole numbers, none negative. A length of 0 is an empty sequence and counts.

    Raises:
        ValueError: `lengths` is not one-dimensional, or a length is negative or no whole number.
    """
    values = np.asarray(lengths)
    if values.ndim != 1:
        raise ValueError(f"lengths: expected one dimension, got shape {values.shape}. Pass one number a sequence.")
    if values.size == 0:
        return LengthStats(0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0)
    if values.dtype.kind not in "iu":
        raise ValueError(f"lengths: expected whole numbers, got dtype {values.dtype}. Pass len(ids) of each sequence.")
    wrong = np.flatnonzero(values < 0)
    if wrong.size:
        raise ValueError(f"lengths[{wrong[0]}] is {values[wrong[0]]}: a length is 0 or more.")
    median, p90, p99 = np.percentile(values, [50, 90, 99])
    return LengthStats(
        count=int(values.size),
        total=int(values.sum(dtype=np.int64)),
        mean=float(values.mean(dtype=np.float64)),
        median=float(median),
        p90=float(p90),
        p99=float(p99),
        max=int(values.max()),
        min=int(values.min()),
    )


def published_lengths(n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """`n` lengths like those of the published packing experiments: from 57 to 2,048 tokens, mean about 646.

    They follow a log-normal distribution (6.2, 0.8) clipped to that range. PackMamba (arXiv 2408.03865) publishes the
    range and the mean. The same seed gives the same lengths on every machine.

    Returns:
        int64 [n].

    Raises:
        ValueError: `n` or `seed` is negative or no whole number.
    """
    for argument, value in (("n", n), ("seed", seed)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{argument} is {value!r}: expected a whole number, 0 or more. Pass an int such as 1000.")
    # PCG64 and this inversion are fixed by numpy for all versions; Generator.lognormal may change between releases.
    drawn = np.exp(np.random.RandomState(np.random.PCG64(seed)).normal(_LOG_MEAN, _LOG_STD, n))
    return np.clip(np.rint(drawn), _SHORTEST, _LONGEST).astype(np.int64)
