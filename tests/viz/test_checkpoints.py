from __future__ import annotations

import pytest

from mamba_lab.viz.checkpoints import checkpoint_rows, costs, held_by_distance
from mamba_lab.viz.figure import check_labels


def counted(T: int, K: int) -> tuple[int, int]:
    """The most states held and the states made, by doing it."""
    kept = [t for t in range(T) if t % K == 0]
    steps, most = T, 0
    while kept:
        first = kept.pop()
        tile = range(first, min(first + K, T))
        steps += len(tile) - 1
        most = max(most, len(kept) + len(tile))
    return most, steps


@pytest.mark.parametrize(("T", "K"), [(16, 4), (16, 1), (16, 16), (17, 4), (13, 5), (2048, 45), (1, 1), (7, 9)])
def test_costs_are_what_is_counted(T, K) -> None:
    assert costs(T, K) == counted(T, K)


def test_nothing_kept_begins_anew_for_each_token() -> None:
    assert costs(16, 0) == (1, 16 + sum(range(16)))


def test_three_plans_and_their_costs() -> None:
    fig = checkpoint_rows(16, 4)
    check_labels(fig)
    patches = fig.axes[0].patches
    assert [sum(p.get_gid() == gid for p in patches) for gid in ("kept", "again", "empty")] == [16 + 4, 3 + 1, 9 + 15]
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts[-5:] == ["7", "28", "keep none", "1", "136"]


def test_a_short_last_tile_is_made_again() -> None:
    patches = [p for p in checkpoint_rows(6, 4).axes[0].patches if p.get_gid()]
    assert [p.get_gid() for p in patches][6:12] == ["kept", "empty", "empty", "empty", "kept", "again"]


def test_the_lowest_point_is_named_and_marked() -> None:
    distances = [1, 4, 16]
    ax = held_by_distance(distances, [16, 7, 16], total=16).axes[0]
    check_labels(ax.figure)
    assert "fewest: 7 at K = 4" in [text.get_text() for text in ax.texts]
    assert [tuple(line.get_xdata()) for line in ax.lines if line.get_marker() == "D"] == [(4,)]


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="T is 17: expected 2 to 16"):
        checkpoint_rows(17, 4)
    with pytest.raises(ValueError, match="K is 1: expected 2 to 8"):
        checkpoint_rows(8, 1)
    with pytest.raises(ValueError, match="held has 1 numbers, expected 2"):
        held_by_distance([1, 2], [3], total=4)
    with pytest.raises(ValueError, match="expected 0"):
        held_by_distance([], [], total=4)
