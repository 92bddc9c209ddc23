from __future__ import annotations

import numpy as np
import pytest

from mamba_lab.lengths import LengthStats, length_stats, published_lengths


def test_statistics_of_the_running_example() -> None:
    stats = length_stats([4, 2, 3, 7])
    assert (stats.count, stats.total, stats.mean, stats.median, stats.min, stats.max) == (4, 16, 4.0, 3.5, 2, 7)
    assert stats.p90 == pytest.approx(6.1)
    assert "4 sequences" in str(stats)
    assert str(length_stats([1])).startswith("1 sequence, 1 token: mean 1")
    assert "longest 7" in str(stats)


def test_no_lengths_give_zeros() -> None:
    assert length_stats([]) == LengthStats(0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0)


def test_a_sum_beyond_32_bits() -> None:
    assert length_stats(np.full(3, 2**30, dtype=np.int32)).total == 3 * 2**30


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, -1, 2], r"lengths\[1\] is -1"),
        ([1.5, 2.0], "whole numbers"),
        ([float("nan")], "whole numbers"),
        ([[1, 2]], "one dimension"),
    ],
)
def test_wrong_lengths_are_named(lengths: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        length_stats(lengths)  # type: ignore[arg-type]


def test_published_range_mean_and_type() -> None:
    lengths = published_lengths(200_000)
    assert lengths.dtype == np.int64
    assert (lengths.min(), lengths.max()) == (57, 2048)
    assert lengths.mean() == pytest.approx(646, abs=4)


def test_published_lengths_depend_on_the_seed_alone() -> None:
    assert np.array_equal(published_lengths(1000, seed=3), published_lengths(1000, seed=3))
    assert not np.array_equal(published_lengths(1000, seed=3), published_lengths(1000, seed=4))
    # Fixed for every machine and numpy release.
    assert published_lengths(5).tolist() == FIRST_FIVE
    assert len(published_lengths(0)) == 0
    assert published_lengths(np.int32(5), np.int64(0)).tolist() == FIRST_FIVE  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", None, True])
def test_a_wrong_count_or_seed_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match=rf"^n is {wrong!r}: expected a whole number, 0 or more"):
        published_lengths(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"^seed is {wrong!r}: expected a whole number, 0 or more"):
        published_lengths(3, wrong)  # type: ignore[arg-type]


FIRST_FIVE = [166, 940, 1632, 860, 883]
