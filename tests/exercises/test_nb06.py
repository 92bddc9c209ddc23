from __future__ import annotations

import numpy as np
import pytest

from mamba_lab.batching import PackingPlan, pack_best_fit
from mamba_lab.exercises.nb06 import check_first_fit_decreasing, check_least_rows, check_padding_rate
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def by_plan(bins, capacity):
    lengths = [n for b in bins for n in b]
    places = iter(range(len(lengths)))
    return PackingPlan.from_bins([[next(places) for _ in b] for b in bins], lengths, capacity).padding_rate


@pytest.mark.parametrize(
    "padding_rate",
    [
        lambda bins, capacity: 1 - sum(sum(b) for b in bins) / (len(bins) * capacity),
        lambda bins, capacity: np.mean([1 - sum(b) / capacity for b in bins]),
        by_plan,
    ],
)
def test_padding_rate_is_right(padding_rate):
    assert_solution_passes(check_padding_rate, padding_rate)


def test_padding_rate_wrong_answers():
    def empty(bins, capacity):
        return sum(capacity - sum(b) for b in bins)

    def tokens(bins):
        return sum(n for b in bins for n in b)

    assert_stub_fails(check_padding_rate, stub)
    assert_wrong_answers(
        check_padding_rate,
        {
            "valid ratio": lambda bins, capacity: tokens(bins) / capacity / len(bins),
            "positions instead of a share": empty,
            "padding for each token": lambda bins, capacity: empty(bins, capacity) / tokens(bins),
            "one row's capacity": lambda bins, capacity: empty(bins, capacity) / capacity,
            "rows padded to the longest pack": lambda bins, capacity: (
                1 - tokens(bins) / (len(bins) * max(sum(b) for b in bins))
            ),
            "counts documents for tokens": lambda bins, capacity: 1 - sum(len(b) for b in bins) / capacity / len(bins),
            "per cent": lambda bins, capacity: 100 * empty(bins, capacity) / (len(bins) * capacity),
            "wrong type": lambda bins, capacity: [empty([b], capacity) / capacity for b in bins],
        },
    )


def first_fit(lengths, capacity):
    rows = []
    for n in sorted(lengths, reverse=True):
        for row in rows:
            if capacity - sum(row) >= n:
                row.append(n)
                break
        else:
            rows.append([n])
    return rows


def by_free_room(lengths, capacity):
    free, rows = np.zeros(0, int), []
    for n in np.sort(lengths)[::-1]:
        if len(fits := np.flatnonzero(free >= n)):
            rows[fits[0]].append(n)
            free[fits[0]] -= n
        else:
            rows.append([n])
            free = np.append(free, capacity - n)
    return tuple(np.array(row) for row in rows)


@pytest.mark.parametrize("first_fit_decreasing", [first_fit, by_free_room])
def test_first_fit_decreasing_is_right(first_fit_decreasing):
    assert_solution_passes(check_first_fit_decreasing, first_fit_decreasing)


def packer(order=lambda lengths: sorted(lengths, reverse=True), room=0, choose=lambda fits, rows: fits[0], opens=True):
    """The packer with one thing changed."""

    def f(lengths, capacity):
        rows = []
        for n in order(lengths):
            fits = [row for row in rows if capacity - sum(row) >= n + room]
            if fits and (row := choose(fits, rows)) is not None:
                row.append(n)
            elif opens or not rows:
                rows.append([n])
        return rows

    return f


def room_behind_the_first(lengths, capacity):
    rows = []
    for n in sorted(lengths, reverse=True):
        fits = [row for row in rows if n <= capacity - row[0]]
        if fits:
            fits[0].append(n)
        else:
            rows.append([n])
    return rows


def with_places(lengths, capacity):
    rows, free = [], []
    for i in np.argsort(-np.array(lengths), kind="stable"):
        fits = [k for k, room in enumerate(free) if room >= lengths[i]]
        if not fits:
            rows.append([])
            free.append(capacity)
        k = fits[0] if fits else -1
        rows[k].append(int(i))
        free[k] -= lengths[i]
    return rows


def test_first_fit_decreasing_wrong_answers():
    assert packer()([4, 2, 7, 3], 9) == first_fit([4, 2, 7, 3], 9) == [[7, 2], [4, 3]]
    assert_stub_fails(check_first_fit_decreasing, stub)
    assert_wrong_answers(
        check_first_fit_decreasing,
        {
            "forgets to sort": packer(order=list),
            "sorts shortest first": packer(order=sorted),
            "looks at the last row only": packer(choose=lambda fits, rows: rows[-1] if fits[-1] is rows[-1] else None),
            "takes the tightest": packer(choose=lambda fits, rows: max(fits, key=sum)),
            "takes the emptiest": packer(choose=lambda fits, rows: min(fits, key=sum)),
            "refuses an exact fit": packer(room=1),
            "indices instead of lengths": with_places,
            "order inside a row": lambda lengths, capacity: [sorted(row) for row in first_fit(lengths, capacity)],
            "a row above capacity": room_behind_the_first,
            "a document lost": packer(opens=False),
            "wrong type": lambda lengths, capacity: len(first_fit(lengths, capacity)),
        },
    )


def in_data_order(lengths, capacity):
    """The right rows, each in the order in which its documents come in the data."""
    rows = [sorted(row) for row in with_places(lengths, capacity)]
    return [[lengths[i] for i in row] for row in rows]


@pytest.mark.parametrize("answer", [in_data_order, lambda *case: sorted(first_fit(*case))])
def test_the_right_rows_in_another_order_are_not_taken_for_unsorted(answer):
    assert check_first_fit_decreasing.run(answer).mistake == "order inside a row"


@pytest.mark.parametrize(
    "least_rows",
    [
        lambda lengths, capacity: max(-(-sum(lengths) // capacity), len([n for n in lengths if n > capacity / 2])),
        lambda lengths, capacity: max(np.ceil(np.sum(lengths) / capacity), (np.array(lengths) * 2 > capacity).sum()),
    ],
)
def test_least_rows_is_right(least_rows):
    assert_solution_passes(check_least_rows, least_rows)


def test_least_rows_wrong_answers():
    def full(lengths, capacity):
        return int(np.ceil(sum(lengths) / capacity))

    def long(lengths, capacity):
        return len([n for n in lengths if n > capacity / 2])

    assert_stub_fails(check_least_rows, stub)
    assert_wrong_answers(
        check_least_rows,
        {
            "the tokens alone": full,
            "rounds down": lambda lengths, capacity: max(sum(lengths) // capacity, long(lengths, capacity)),
            "the long ones alone": long,
            "exactly half counted as long": lambda lengths, capacity: max(
                full(lengths, capacity), len([n for n in lengths if n >= capacity / 2])
            ),
            "adds both numbers": lambda lengths, capacity: full(lengths, capacity) + long(lengths, capacity),
            "best fit's count": lambda lengths, capacity: pack_best_fit(lengths, capacity).n_bins,
            "the smaller of both": lambda lengths, capacity: min(full(lengths, capacity), long(lengths, capacity)),
            "one row a document": lambda lengths, capacity: len(lengths),
            "wrong values": lambda lengths, capacity: max(full(lengths, capacity), long(lengths, capacity), 2),
        },
    )
