"""Length buckets, decided from all lengths before anything is sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ._checks import IntsLike, as_int, as_lengths

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, eq=False)
class Buckets:
    """Samples grouped by length, shortest bucket first. No bucket is empty.

    Attributes:
        edges: int64 [n_buckets + 1]; bucket b holds the lengths ``edges[b] <= length < edges[b + 1]``.
        bucket_of: int64 [n], the bucket of each sample.
        spread: int64 [n_buckets], longest minus shortest length in each bucket.
    """

    edges: Int64Array
    bucket_of: Int64Array
    spread: Int64Array

    @property
    def n_buckets(self) -> int:
        """The number of buckets."""
        return len(self.edges) - 1

    def indices(self, bucket: int) -> Int64Array:
        """The samples of a bucket, int64, in data-set order."""
        if not 0 <= as_int(bucket, "bucket", minimum=0) < self.n_buckets:
            raise ValueError(f"bucket is {bucket}, but there are buckets 0 to {self.n_buckets - 1}.")
        return np.flatnonzero(self.bucket_of == bucket)


def bucket_by_length(lengths: IntsLike, n_buckets: int = 8, *, max_spread: int | None = None) -> Buckets:
    """Cut the length distribution into buckets of about equally many samples.

    Equal lengths always share a bucket, so a few frequent lengths can give fewer buckets than asked. ``max_spread``
    can give more: a bucket that is too wide is split into equal parts, and empty parts are left out.

    Args:
        lengths: [n], the tokens of each sample.
        n_buckets: how many quantile buckets to make.
        max_spread: the largest difference between two lengths of one bucket, in tokens; no limit by default.

    Raises:
        ValueError: a bad length, ``n_buckets`` below 1, a negative ``max_spread``.
    """
    host = as_lengths(lengths)
    n_buckets = as_int(n_buckets, "n_buckets", minimum=1)
    if max_spread is not None:
        max_spread = as_int(max_spread, "max_spread", minimum=0)
    if len(host) == 0:
        return Buckets(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    ranked = np.sort(host)
    # With a bucket a sample nothing is left to split.
    n_buckets = min(n_buckets, len(ranked))
    # The quantile edges are lengths that occur, so the smallest length of each bucket is its lower edge.
    lower = np.unique(ranked[np.arange(n_buckets) * len(ranked) // n_buckets])
    if max_spread is not None:
        lower = _split_wide(ranked, lower, max_spread)
    bounds = np.append(np.searchsorted(ranked, lower), len(ranked))
    return Buckets(
        edges=np.append(lower, ranked[-1] + 1),
        bucket_of=np.searchsorted(lower, host, side="right") - 1,
        spread=ranked[bounds[1:] - 1] - lower,
    )


def _split_wide(ranked: Int64Array, lower: Int64Array, max_spread: int) -> Int64Array:
    """Lower edges so that no bucket is wider than ``max_spread``: equal parts, each from the first length in it."""
    edges = []
    last = np.append(ranked[np.searchsorted(ranked, lower[1:]) - 1], ranked[-1])
    for low, high in zip(lower.tolist(), last.tolist(), strict=True):
        span = high - low + 1
        parts = -(-span // (max_spread + 1))
        edges.append(low - (-span * np.arange(parts) // parts))
    return np.unique(ranked[np.searchsorted(ranked, np.concatenate(edges))])
