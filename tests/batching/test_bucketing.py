from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import bucket_by_length
from mamba_lab.lengths import published_lengths


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 9), st.none() | st.integers(0, 50))
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_one_bucket_of_its_length(lengths: list[int], n: int, max_spread: int | None) -> None:
    made = bucket_by_length(lengths, n, max_spread=max_spread)
    members = [made.indices(b) for b in range(made.n_buckets)]
    assert sorted(i for bucket in members for i in bucket.tolist()) == list(range(len(lengths)))
    assert (np.diff(made.edges) > 0).all()
    for b, bucket in enumerate(members):
        inside = [lengths[i] for i in bucket]
        assert inside, "an empty bucket"
        assert made.edges[b] <= min(inside)
        assert max(inside) < made.edges[b + 1]
        assert made.spread[b] == max(inside) - min(inside)
        assert (made.bucket_of[bucket] == b).all()
    if max_spread is not None:
        assert (made.spread <= max_spread).all()
    else:
        assert made.n_buckets <= n


def test_quantiles_of_the_published_lengths() -> None:
    lengths = published_lengths(20_000)
    made = bucket_by_length(lengths, 8)
    sizes = np.bincount(made.bucket_of)
    assert made.n_buckets == 8
    assert (abs(sizes / 2500 - 1) < 0.05).all()
    limited = bucket_by_length(lengths, 8, max_spread=128)
    assert limited.n_buckets > 8
    assert limited.spread.max() <= 128
    assert set(made.edges) <= set(limited.edges)


def test_more_buckets_than_samples_cost_nothing() -> None:
    assert bucket_by_length([5, 9, 7], 10**18).edges.tolist() == [5, 7, 9, 10]
    assert bucket_by_length([5, 9, 7], 2**70).bucket_of.tolist() == [0, 2, 1]


def test_a_long_tail_makes_no_empty_buckets() -> None:
    made = bucket_by_length([5, 6, 7, 70_000], 1, max_spread=10)
    assert made.bucket_of.tolist() == [0, 0, 0, 1]
    assert made.edges.tolist() == [5, 70_000, 70_001]


def test_nothing_and_ties() -> None:
    nothing = bucket_by_length([])
    assert (nothing.n_buckets, len(nothing.bucket_of), len(nothing.spread)) == (0, 0, 0)
    assert bucket_by_length([9] * 100, 8).n_buckets == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, -1],), r"lengths\[1\] is -1"),
        (([1], 0), "n_buckets must be at least 1"),
        (([1], 2.0), "n_buckets must be an integer"),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bucket_by_length(*arguments)  # type: ignore[arg-type]


def test_bad_spread_and_bucket() -> None:
    with pytest.raises(ValueError, match="max_spread must be at least 0"):
        bucket_by_length([1], max_spread=-1)
    for bucket in (-1, 1):
        with pytest.raises(ValueError, match="bucket"):
            bucket_by_length([1]).indices(bucket)
