"""The packers as users call them: what they promise of any lengths, and the cases that broke other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import PackingPlan, pack_best_fit, pack_greedy, pack_sequential
from mamba_lab.lengths import published_lengths

PACKERS = (pack_sequential, pack_greedy, pack_best_fit)
every_packer = pytest.mark.parametrize("pack", PACKERS)

short_lists = st.lists(st.integers(0, 30) | st.sampled_from([1, 5, 10]), max_size=40)
buffers = st.sampled_from([1, 2, 3, 7, 1000])


def bins_of(plan: PackingPlan) -> list[list[int]]:
    """The sequences of each bin, where none was cut."""
    return [[sequence for sequence, _, _ in members] for members in plan.bins()]


def fewest_bins(lengths: list[int], capacity: int) -> int:
    """The optimum, by trying everything."""
    best = len(lengths)

    def place(i: int, rooms: tuple[int, ...]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if i == len(lengths):
            best = len(rooms)
            return
        for b, room in enumerate(rooms):
            if room >= lengths[i]:
                place(i + 1, (*rooms[:b], room - lengths[i], *rooms[b + 1 :]))
        place(i + 1, (*rooms, capacity - lengths[i]))

    place(0, ())
    return best


def test_the_running_example() -> None:
    lengths = [4, 2, 3, 7]
    assert bins_of(pack_sequential(lengths, 8)) == [[0, 1], [2], [3]]
    assert bins_of(pack_greedy(lengths, 8, buffer_size=2)) == [[0, 1], [2], [3]]
    assert bins_of(pack_best_fit(lengths, 9)) == [[0, 2], [1, 3]]
    assert pack_best_fit(lengths, 9).padding_rate == pytest.approx(2 / 18)


def test_sequential_fills_to_the_last_token() -> None:
    assert bins_of(pack_sequential([3, 5, 8, 1, 7, 1], 8)) == [[0, 1], [2], [3, 4], [5]]


def test_longest_first_and_least_room() -> None:
    # 12 opens a bin (room 8 is left), the nines share another (room 2). The 2 fits both, and best where it just fits.
    assert bins_of(pack_best_fit([9, 2, 12, 9], 20)) == [[0, 1, 3], [2]]


def test_of_bins_with_equal_room_the_first_comes_first() -> None:
    assert bins_of(pack_best_fit([6, 6, 6, 4, 4, 4], 10)) == [[0, 3], [1, 4], [2, 5]]


def test_a_buffer_closes_its_bins() -> None:
    lengths = [6, 1, 0, 4, 4, 6]
    assert bins_of(pack_greedy(lengths, 10, buffer_size=3)) == [[0, 1], [3, 5], [4]]
    assert bins_of(pack_greedy(lengths, 10, buffer_size=1)) == [[0], [1], [3], [4], [5]]
    # The empty sequence counts as one of the three.
    assert bins_of(pack_greedy(lengths, 10, buffer_size=4)) == [[0, 3], [1], [4, 5]]


@every_packer
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], np.zeros(0, np.int64), torch.zeros(0, dtype=torch.int64)])
def test_nothing_to_pack(pack: Callable[..., PackingPlan], lengths: Any) -> None:
    for overflow in ("error", "split", "truncate"):
        plan = pack(lengths, 5, overflow=overflow)
        assert (plan.n_bins, plan.n_tokens, plan.dropped, plan.padding_rate) == (0, 0, 0, 0.0)
        assert list(plan.bins()) == []
        plan.check_conserved(lengths)


@every_packer
def test_split_cuts_at_multiples_of_the_capacity(pack: Callable[..., PackingPlan]) -> None:
    plan = pack([121], 60, overflow="split")
    assert list(plan.bins()) == [[(0, 0, 60)], [(0, 60, 120)], [(0, 120, 121)]]
    plan = pack([121, 59], 60, overflow="split")
    assert list(plan.bins()) == [[(0, 0, 60)], [(0, 60, 120)], [(0, 120, 121), (1, 0, 59)]]
    assert plan.dropped == 0


@every_packer
def test_too_long_is_an_error_that_names_it(pack: Callable[..., PackingPlan]) -> None:
    with pytest.raises(ValueError, match=r"lengths\[1\] is 4, above the capacity 3\. .*'split'.*'truncate'"):
        pack([2, 4, 1], 3)
    with pytest.raises(ValueError, match=r"lengths\[1\] is 4, above the capacity 3, and so are 2 others\."):
        pack([2, 4, 1, 9, 5], 3)


@every_packer
def test_truncate_keeps_the_start_and_counts_the_rest(pack: Callable[..., PackingPlan]) -> None:
    plan = pack([4], 3, overflow="truncate")
    assert (list(plan.bins()), plan.dropped) == ([[(0, 0, 3)]], 1)
    plan = pack([4, 2, 9], 3, overflow="truncate")
    assert sorted(piece for members in plan.bins() for piece in members) == [(0, 0, 3), (1, 0, 2), (2, 0, 3)]
    assert plan.dropped == 7


@every_packer
@pytest.mark.parametrize("n", [5_000, 1_000_000])
def test_one_long_sequence_in_the_middle_of_many(pack: Callable[..., PackingPlan], n: int) -> None:
    lengths = published_lengths(n)
    lengths[n // 2] = 5000
    with pytest.raises(ValueError, match=rf"lengths\[{n // 2}\] is 5000, above the capacity 2048\. "):
        pack(lengths, 2048)
    for overflow, dropped in (("split", 0), ("truncate", 5000 - 2048)):
        plan = pack(lengths, 2048, overflow=overflow)
        assert plan.bin_tokens.max() <= 2048
        assert plan.dropped == dropped
        plan.check_conserved(lengths)


@given(short_lists, st.integers(1, 40), st.sampled_from(["split", "truncate"]), st.sampled_from(PACKERS), buffers)
@settings(max_examples=300, deadline=None)
def test_what_every_plan_promises(lengths: list[int], capacity: int, overflow: Any, pack: Any, buffer: int) -> None:
    more = {"buffer_size": buffer} if pack is pack_greedy else {}
    plan = pack(lengths, capacity, overflow=overflow, **more)
    # The public constructor checks what the packers' own path trusts.
    PackingPlan(plan.capacity, plan.offsets, plan.sequence, plan.start, plan.stop, plan.dropped)
    plan.check_conserved(lengths)
    assert plan.dropped == (sum(max(n - capacity, 0) for n in lengths) if overflow == "truncate" else 0)
    assert (plan.bin_tokens > 0).all()  # no empty bin; the last open one is there
    bins = list(plan.bins())
    assert all(members == sorted(members) for members in bins)
    assert bins == sorted(bins, key=lambda members: members[0])
    if overflow == "split":
        pieces = sorted(piece for members in bins for piece in members)
        assert pieces == [(i, at, min(at + capacity, n)) for i, n in enumerate(lengths) for at in range(0, n, capacity)]
    again = pack(np.array(lengths, np.int32), capacity, overflow=overflow, **more)
    assert list(again.bins()) == bins
    if max(lengths, default=0) <= capacity:
        assert list(pack(lengths, capacity, **more).bins()) == bins


@given(short_lists, st.integers(30, 60), buffers)
@settings(max_examples=150, deadline=None)
def test_greedy_is_best_fit_on_each_buffer(lengths: list[int], capacity: int, buffer: int) -> None:
    expected = []
    for first in range(0, len(lengths), buffer):
        part = pack_best_fit(lengths[first : first + buffer], capacity)
        expected += [[first + i for i in members] for members in bins_of(part)]
    assert bins_of(pack_greedy(lengths, capacity, buffer_size=buffer)) == expected


@given(short_lists, st.integers(30, 60))
@settings(max_examples=150, deadline=None)
def test_sequential_keeps_data_order_and_wastes_no_room(lengths: list[int], capacity: int) -> None:
    plan = pack_sequential(lengths, capacity)
    assert plan.sequence.tolist() == [i for i, n in enumerate(lengths) if n]
    firsts = [lengths[members[0]] for members in bins_of(plan)]
    assert all(held + after > capacity for held, after in zip(plan.bin_tokens.tolist(), firsts[1:], strict=False))


@given(st.lists(st.integers(1, 20), max_size=7), st.integers(20, 30))
@settings(max_examples=200, deadline=None)
def test_best_fit_stays_near_the_optimum(lengths: list[int], capacity: int) -> None:
    optimum = fewest_bins(lengths, capacity)
    plan = pack_best_fit(lengths, capacity)
    assert optimum <= plan.n_bins <= 11 / 9 * optimum + 6 / 9


@every_packer
def test_all_that_fits_goes_into_one_bin(pack: Callable[..., PackingPlan]) -> None:
    assert bins_of(pack([3, 0, 4, 3], 10)) == [[0, 2, 3]]


@every_packer
@pytest.mark.parametrize(
    "convert",
    [
        tuple,
        lambda lengths: np.array(lengths, np.int32),
        lambda lengths: np.array(lengths, np.uint8),
        lambda lengths: np.array(lengths, ">i8"),
        lambda lengths: np.repeat(lengths, 2)[::2],
        lambda lengths: torch.tensor(lengths, dtype=torch.int32),
        lambda lengths: torch.tensor(lengths).repeat_interleave(2)[::2],
    ],
)
def test_any_form_of_lengths(pack: Callable[..., PackingPlan], convert: Callable[[list[int]], Any]) -> None:
    lengths = [5, 3, 0, 4, 2, 6] * 3
    assert list(pack(convert(lengths), 8).bins()) == list(pack(lengths, 8).bins())


@every_packer
@pytest.mark.parametrize("n", [100, 30_000])
def test_lengths_are_read_and_nothing_else(pack: Callable[..., PackingPlan], n: int) -> None:
    lengths = published_lengths(n)
    before = lengths.copy()
    lengths.setflags(write=False)
    plan = pack(lengths, 2048)
    assert np.array_equal(lengths, before)
    lengths.setflags(write=True)
    first = list(plan.bins())
    lengths[:] = 1
    assert list(plan.bins()) == first


@every_packer
@pytest.mark.parametrize("n", [300, 20_000])
@pytest.mark.parametrize("capacity", [1, 1_000_000, 2**20 + 1, 2**31 - 1])
def test_any_capacity(pack: Callable[..., PackingPlan], capacity: int, n: int) -> None:
    lengths = published_lengths(n) if capacity > 1 else np.arange(n) % 2
    plan = pack(lengths, capacity)
    plan.check_conserved(lengths)
    assert plan.capacity == capacity
    assert plan.bin_tokens.max() <= capacity
    if capacity == 1:
        assert bins_of(plan) == [[i] for i in range(1, n, 2)]
    if capacity == 2**31 - 1:
        assert plan.n_bins == (-(-n // 1024) if pack is pack_greedy else 1)


@every_packer
def test_long_sequences_at_the_largest_capacity(pack: Callable[..., PackingPlan]) -> None:
    top = 2**31 - 1
    assert bins_of(pack([top, 1, top - 1, top], top)) == [[0], [1, 2], [3]]


@every_packer
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"capacity": 2.0}, "capacity must be an integer"),
        ({"capacity": 2**31}, "capacity is 2147483648, above the int32 limit"),
        ({"overflow": "wrap"}, "overflow must be one of 'error', 'split', 'truncate', got 'wrap'"),
        ({"overflow": None}, "overflow must be one of .* got None"),
        ({"lengths": [3, -1]}, r"lengths\[1\] is -1"),
        ({"lengths": [1.5]}, "lengths must hold integers"),
        ({"lengths": [2**31], "overflow": "split"}, r"lengths\[0\] is 2147483648"),
        ({"lengths": [2**31 - 1, 1], "capacity": 1, "overflow": "split"}, "2147483648 pieces, more than 2147483647"),
    ],
)
def test_bad_arguments(pack: Callable[..., PackingPlan], wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(**{"lengths": [1, 2], "capacity": 4} | wrong)


def test_bad_buffers() -> None:
    with pytest.raises(ValueError, match="buffer_size must be at least 1, got 0"):
        pack_greedy([1], 4, buffer_size=0)
    assert pack_greedy([1], 4, buffer_size=2**70).n_bins == 1


def test_the_published_padding_rates() -> None:
    lengths = published_lengths(200_000)
    assert pack_sequential(lengths, 2048).padding_rate == pytest.approx(0.205, abs=0.01)
    assert pack_greedy(lengths, 2048).padding_rate < 0.004
    assert pack_best_fit(lengths, 2048).padding_rate < 0.002
