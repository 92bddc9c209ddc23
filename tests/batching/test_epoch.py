from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mamba_lab.batching import TokenBudgetSampler, _epoch


def padding_rate(lengths: np.ndarray) -> float:
    padded = len(lengths) * lengths.max()
    return float((padded - lengths.sum()) / padded) if padded else 0.0


def test_a_split_keeps_to_the_padding_limit() -> None:
    # Halves of two would put 30 beside 100.
    low, high = _epoch._split(np.array([2, 0, 1, 3]), np.array([100, 30, 100, 100]), 0.2)
    assert (low.tolist(), high.tolist()) == ([1], [0, 2, 3])
    low, high = _epoch._split(np.arange(4), np.array([100, 30, 100, 100]), 1.0)
    assert (low.tolist(), high.tolist()) == ([1, 0], [2, 3])


@given(st.lists(st.integers(0, 60), min_size=2, max_size=20), st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]))
@settings(max_examples=100, deadline=None)
def test_a_legal_batch_has_a_legal_split(values: list[int], max_padding: float) -> None:
    lengths = np.array(values, np.int64)
    assume(padding_rate(lengths) <= max_padding)
    halves = _epoch._split(np.arange(len(lengths)), lengths, max_padding)
    assert sorted(np.concatenate(halves).tolist()) == list(range(len(lengths)))
    for half in halves:
        assert len(half)
        assert padding_rate(lengths[half]) <= max_padding


def test_the_last_step_is_shared_out_evenly() -> None:
    # 24 samples make batches of 10, 10 and 4. Halving the largest would give eight ranks between 2 and 5 samples.
    sizes = [len(*TokenBudgetSampler([10] * 24, 100, rank=rank, world_size=8)) for rank in range(8)]
    assert sizes == [3] * 8


def test_dealing_evens_out_what_the_steps_differ() -> None:
    steps = np.arange(6).reshape(3, 2)
    dealt = _epoch._dealt(steps, np.array([10, 8, 9, 5, 10, 6]))
    # Loads 10 and 8; then the 9 goes to the second rank: 15 and 17; then the 10 to the first: 25 and 23.
    assert dealt.tolist() == [[0, 1], [3, 2], [4, 5]]


def test_a_step_groups_batches_of_like_size() -> None:
    numbers, padded = np.arange(4), np.array([5, 9, 6, 8])
    assert _epoch._grouped(numbers, padded, 2, by_size=True).tolist() == [[1, 3], [2, 0]]
    assert _epoch._grouped(numbers, padded, 2, by_size=False).tolist() == [[0, 1], [2, 3]]
