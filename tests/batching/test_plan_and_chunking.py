from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import PackingPlan, chunk_fixed

lengths_lists = st.lists(st.integers(0, 40), max_size=12)


def plan(offsets: list[int], pieces: list[tuple[int, int, int]], capacity: int = 8, dropped: int = 0) -> PackingPlan:
    sequence, start, stop = np.array(pieces, np.int64).reshape(-1, 3).T
    return PackingPlan(
        capacity, np.array(offsets), sequence.copy(), start.astype(np.int32), stop.astype(np.int32), dropped
    )


def test_the_running_example_in_chunks() -> None:
    made = chunk_fixed((4, 2, 3, 7), 5)
    assert list(made.bins()) == [[(0, 0, 4)], [(1, 0, 2)], [(2, 0, 3)], [(3, 0, 5)], [(3, 5, 7)]]
    assert made.padding_rate == pytest.approx(9 / 25)
    joined = chunk_fixed((4, 2, 3, 7), 5, across=True)
    assert list(joined.bins()) == [
        [(0, 0, 4), (1, 0, 1)],
        [(1, 1, 2), (2, 0, 3), (3, 0, 1)],
        [(3, 1, 6)],
        [(3, 6, 7)],
    ]
    assert joined.bin_tokens.tolist() == [5, 5, 5, 1]
    assert joined.padding_rate == pytest.approx(4 / 20)
    assert (made.dropped, joined.dropped) == (0, 0)


def test_drop_last_counts_what_it_drops() -> None:
    assert list(chunk_fixed([7, 5, 3], 5, drop_last=True).bins()) == [[(0, 0, 5)], [(1, 0, 5)]]
    assert chunk_fixed([7, 5, 3], 5, drop_last=True).dropped == 5
    joined = chunk_fixed([7, 5, 4], 5, across=True, drop_last=True)
    assert joined.dropped == 1
    assert joined.n_tokens == 15


@given(lengths_lists, st.integers(1, 12), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_chunks_conserve_tokens(lengths: list[int], capacity: int, across: bool, drop_last: bool) -> None:
    made = chunk_fixed(lengths, capacity, across=across, drop_last=drop_last)
    made.check_conserved(lengths)
    # The public constructor checks what chunk_fixed's own path trusts.
    PackingPlan(made.capacity, made.offsets, made.sequence, made.start, made.stop, made.dropped)
    flat = [(s, t) for row in made.bins() for s, start, stop in row for t in range(start, stop)]
    everything = [(s, t) for s, n in enumerate(lengths) for t in range(n)]
    assert len(flat) + made.dropped == len(everything)
    if not drop_last:
        assert flat == everything
    else:
        assert set(flat) <= set(everything)
        assert flat == sorted(flat)
        assert (made.bin_tokens == capacity).all()
    if across:
        assert (made.bin_tokens[:-1] == capacity).all()
        assert made.n_bins == (sum(lengths) // capacity if drop_last else -(-sum(lengths) // capacity))
    else:
        assert (np.diff(made.offsets) == 1).all()


def test_case_11_a_long_sequence_is_cut_in_place() -> None:
    assert list(chunk_fixed([121], 60).bins()) == [[(0, 0, 60)], [(0, 60, 120)], [(0, 120, 121)]]


def test_case_10_nothing() -> None:
    for lengths in ([], [0], [0, 0]):
        for across in (False, True):
            made = chunk_fixed(lengths, 4, across=across)
            assert (made.n_bins, made.n_tokens, made.padding_rate, made.dropped) == (0, 0, 0.0, 0)
            assert list(made.bins()) == []


def test_a_million_documents() -> None:
    lengths = np.random.default_rng(0).integers(57, 2048, 1_000_000)
    for across in (False, True):
        made = chunk_fixed(lengths, 512, across=across)
        assert made.n_tokens == lengths.sum()
        assert made.n_bins == (-(-lengths.sum() // 512) if across else (-(-lengths // 512)).sum())


@pytest.mark.parametrize(
    ("lengths", "capacity", "message"),
    [
        ([4], 0, "capacity must be at least 1, got 0"),
        ([4], 2.0, "capacity must be an integer"),
        ([4], 2**31, "capacity is 2147483648, above the int32 limit"),
        ([4, -2], 3, r"lengths\[1\] is -2"),
        ([4.5], 3, r"lengths\[0\] is 4.5"),
    ],
)
def test_bad_chunking(lengths: object, capacity: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chunk_fixed(lengths, capacity)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offsets", "pieces", "message"),
    [
        ([0, 2, 1, 2], [(0, 0, 3), (1, 0, 2)], r"offsets\[2\] is 1, below 2"),
        ([1, 2], [(0, 0, 3), (1, 0, 2)], "offsets must start at 0"),
        ([0, 1], [(0, 0, 3), (1, 0, 2)], "end at the number of pieces, 2"),
        ([0, 1], [(0, 3, 3)], r"piece 0 is tokens 3:3 of sequence 0"),
        ([0, 1], [(0, -1, 3)], r"piece 0 is tokens -1:3"),
        ([0, 1], [(-1, 0, 3)], r"of sequence -1"),
        ([0, 0, 2], [(0, 0, 5), (1, 0, 4)], "bin 1 holds 9 tokens, more than the capacity 8"),
    ],
)
def test_a_plan_is_checked(offsets: list[int], pieces: list[tuple[int, int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(offsets, pieces)


def test_a_plan_checks_dtypes_shapes_and_counts() -> None:
    good = plan([0, 1], [(0, 0, 3)])
    with pytest.raises(ValueError, match="start must be a NumPy int32 array"):
        PackingPlan(8, good.offsets, good.sequence, good.sequence, good.stop)
    with pytest.raises(ValueError, match="one entry a piece, got 1, 0, 1"):
        PackingPlan(8, good.offsets, good.sequence, good.start[:0], good.stop)
    with pytest.raises(ValueError, match="offsets must be a NumPy int64 array"):
        PackingPlan(8, [0, 1], good.sequence, good.start, good.stop)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dropped must be at least 0"):
        plan([0, 1], [(0, 0, 3)], dropped=-1)


def test_from_bins() -> None:
    made = PackingPlan.from_bins([[2, 0], [], [(3, 2, 7)]], [4, 2, 3, 7], 8)
    assert list(made.bins()) == [[(2, 0, 3), (0, 0, 4)], [], [(3, 2, 7)]]
    assert made.dropped == 2 + 2
    assert made.n_bins == 3
    assert made.padding_rate == pytest.approx(1 - 12 / 24)
    assert list(PackingPlan.from_bins(made.bins(), [4, 2, 3, 7], 8).bins()) == list(made.bins())


@pytest.mark.parametrize(
    ("bins", "message"),
    [
        ([[4]], r"bins\[0\], piece 0 names sequence 4, but lengths has 4"),
        ([[0], [-1]], r"bins\[1\], piece 0 .*must be at least 0"),
        ([[0, 1], [0]], "token 0 of sequence 0 is in two places"),
        ([[(3, 0, 4)], [(3, 3, 7)]], "token 3 of sequence 3 is in two places"),
        ([[(1, 0, 3)]], "tokens 0:3 of sequence 1, which has only 2"),
        ([[0], [2, (1, 1, 1)]], r"bins\[1\], piece 1 is tokens 1:1"),
        ([[(1, 0, 2**31)]], r"bins\[0\], piece 0: stop is 2147483648, above the int32 limit"),
        ([[(0, 0.9, 2.7)]], r"bins\[0\], piece 0: start must be an integer of at least 0, got 0\.9"),
        ([[0], [1, (2, 0, float("nan"))]], r"bins\[1\], piece 1: stop must be an integer.*got nan"),
        ([[(0, "0", "2")]], r"piece 0: start must be an integer.*got '0'"),
        ([[(True, 0, 1)]], r"piece 0: sequence must be an integer.*got True"),
        ([["0"]], r"bins\[0\], piece 0 \(a sequence number.*got '0'"),
        (["01"], r"bins\[0\] must be a list of sequence numbers.*got '01'"),
        ([[(0, 1)]], r"bins\[0\], piece 0 must be .*tuple \(sequence, start, stop\), got \(0, 1\)"),
        ([[(0, 1, 2, 3)]], r"bins\[0\], piece 0 must be .*got \(0, 1, 2, 3\)"),
        ([0, 1], r"bins\[0\] must be a list of sequence numbers.*got 0"),
        (None, "bins must be a list of bins.*got None"),
        ([[2**70]], r"bins\[0\], piece 0 names sequence 1180591620717411303424"),
        ([[(0, 0, 2**70)]], r"bins\[0\], piece 0: stop is 1180591620717411303424"),
        ([[0, 3]], "bin 0 holds 11 tokens, more than the capacity 8"),
    ],
)
def test_bad_bins(bins: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackingPlan.from_bins(bins, [4, 2, 3, 7], 8)  # type: ignore[arg-type]


def test_conservation_is_checked_against_the_lengths() -> None:
    made = plan([0, 2], [(0, 0, 3), (1, 0, 2)])
    made.check_conserved([3, 2])
    for lengths, message in (
        ([3], "piece 1 is of sequence 1, but lengths has 1"),
        ([3, 1], "which has only 1"),
        ([3, 4], "holds 5 tokens and counts 0 as dropped, but the data set has 7"),
    ):
        with pytest.raises(ValueError, match=message):
            made.check_conserved(lengths)
    plan([0, 2], [(0, 0, 3), (1, 0, 2)], dropped=2).check_conserved([3, 4])
