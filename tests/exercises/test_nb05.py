from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from mamba_lab.batching import Boundaries, PackingPlan, pack_collate, pack_sequential
from mamba_lab.exercises.nb05 import check_batch_cu_seqlens, check_pack_split, check_position_indices
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def by_loop(lengths):
    positions = []
    for n in lengths:
        positions += range(n)
    return positions


@pytest.mark.parametrize(
    "position_indices",
    [
        by_loop,
        lambda lengths: [p for n in lengths for p in range(n)],
        lambda lengths: Boundaries.from_lengths(lengths).position_indices,
        lambda lengths: np.concatenate([np.arange(n) for n in [0, *lengths]]),
    ],
)
def test_position_indices_is_right(position_indices):
    assert_solution_passes(check_position_indices, position_indices)


def test_position_indices_wrong_answers():
    assert_stub_fails(check_position_indices, stub)
    assert_wrong_answers(
        check_position_indices,
        {
            "counts through": lambda lengths: list(range(sum(lengths))),
            "counts from 1": lambda lengths: [p for n in lengths for p in range(1, n + 1)],
            "sequence numbers": lambda lengths: np.repeat(np.arange(len(lengths)), lengths),
            "cumulative lengths": lambda lengths: [0, *accumulate(lengths)],
            "one list a sequence": lambda lengths: [list(range(n)) for n in lengths],
            "counts down": lambda lengths: [p for n in lengths for p in reversed(range(n))],
            "each sequence one too long": lambda lengths: [p for n in lengths for p in range(n + 1)],
            "wrong type": lambda lengths: sum(lengths),
            "raises": lambda lengths: list(range(lengths)),
        },
    )


def test_one_list_a_sequence_may_leave_out_empty_ones():
    result = check_position_indices.run(lambda lengths: [list(range(n)) for n in lengths if n])
    assert result.mistake == "one list a sequence"


def places(rows, capacity):
    cu = [0]
    for number, lengths in enumerate(rows, start=1):
        for n in lengths:
            cu.append(cu[-1] + n)
        if cu[-1] < number * capacity:
            cu.append(number * capacity)
    return cu


def by_package(rows, capacity):
    lengths = [n for row in rows for n in row]
    numbers = iter(range(len(lengths)))
    plan = PackingPlan.from_bins([[next(numbers) for _ in row] for row in rows], lengths, capacity)
    return pack_collate(plan, [[1] * n for n in lengths], pad_id=0).boundaries.cu_seqlens


@pytest.mark.parametrize(
    "batch_cu_seqlens",
    [
        places,
        by_package,
        lambda rows, capacity: sorted({0} | {p for r, n in enumerate([*rows, []]) for p in
                                             [r * capacity, *(r * capacity + e for e in accumulate(n))]}),
    ],
)  # fmt: skip
def test_batch_cu_seqlens_is_right(batch_cu_seqlens):
    assert_solution_passes(check_batch_cu_seqlens, batch_cu_seqlens)


def loop(offset=True, padding=True, guard=True, lead=True, last=True):
    """The solution with one thing changed."""

    def f(rows, capacity):
        cu = [0] if lead else []
        for number, lengths in enumerate(rows):
            end = number * capacity if offset else 0
            for n in lengths:
                end += n
                cu.append(end)
            stop = (number + 1) * capacity if offset else capacity
            if padding and (end < stop or not guard):
                cu.append(stop)
        return cu if last else cu[:-1]

    return f


def runs_on(rows, capacity):
    cu = [0]
    for number, lengths in enumerate(rows):
        for n in lengths:
            cu.append(cu[-1] + n)
        if lengths:
            cu[-1] = (number + 1) * capacity
        else:
            cu.append((number + 1) * capacity)
    return cu


def unpadded(rows, capacity):
    cu = [0]
    for lengths in rows:
        cu += [cu[-1] + e for e in accumulate(lengths)]
    return cu


def row_lengths(rows, capacity):
    return np.diff(places(rows, capacity))


def many_paddings(rows, capacity):
    return unpadded([[*lengths, *[1] * (capacity - sum(lengths))] for lengths in rows], capacity)


def own_zero(rows, capacity):
    return [p for lengths in rows for p in places([lengths], capacity)]


def test_batch_cu_seqlens_wrong_answers():
    assert loop()([[4, 2], [3], [7]], 8) == places([[4, 2], [3], [7]], 8) == [0, 4, 6, 8, 11, 16, 23, 24]
    assert_stub_fails(check_batch_cu_seqlens, stub)
    assert_wrong_answers(
        check_batch_cu_seqlens,
        {
            "forgets padding": unpadded,
            "padding belongs to the last sequence": runs_on,
            "an empty sequence at the end of a full row": loop(guard=False),
            "begins again in each row": loop(offset=False),
            "one list a row": lambda rows, capacity: [
                [p for p in places(rows, capacity) if r * capacity <= p <= (r + 1) * capacity] for r in range(len(rows))
            ],
            "no 0 in front": loop(lead=False),
            "without the end": loop(last=False),
            "lengths, not places": row_lengths,
            "each padding position a sequence": many_paddings,
            "rows only": lambda rows, capacity: list(range(0, len(rows) * capacity + 1, capacity)),
            "wrong type": lambda rows, capacity: len(rows) * capacity,
        },
    )


def test_one_list_a_row_may_count_from_its_own_start():
    result = check_batch_cu_seqlens.run(lambda rows, capacity: [places([lengths], capacity) for lengths in rows])
    assert result.mistake == "one list a row"


def test_every_row_with_a_zero_of_its_own_begins_again():
    assert check_batch_cu_seqlens.run(own_zero).mistake == "begins again in each row"


def cut(lengths, capacity):
    return [(i, s, min(s + capacity, n)) for i, n in enumerate(lengths) for s in range(0, n, capacity)]


def split(full=lambda used, size, capacity: used + size > capacity, pieces=cut, last=True, item=lambda piece: piece):
    """The solution with one thing changed."""

    def f(lengths, capacity):
        bins, row, used = [], [], 0
        for piece in pieces(lengths, capacity):
            size = piece[2] - piece[1]
            if row and full(used, size, capacity):
                bins.append(row)
                row, used = [], 0
            row.append(item(piece))
            used += size
        return [*bins, row] if last else bins

    return f


def by_plan(lengths, capacity):
    return list(pack_sequential(lengths, capacity, overflow="split").bins())


@pytest.mark.parametrize("pack_split", [split(), by_plan, split(item=list)])
def test_pack_split_is_right(pack_split):
    assert_solution_passes(check_pack_split, pack_split)


def to_the_end(lengths, capacity):
    bins, free = [], 0
    for i, n in enumerate(lengths):
        start = 0
        while start < n:
            if not free:
                bins.append([])
                free = capacity
            take = min(free, n - start)
            bins[-1].append((i, start, start + take))
            start, free = start + take, free - take
    return bins


def first_fit(lengths, capacity):
    bins = []
    for piece in cut(lengths, capacity):
        for row in bins:
            if sum(stop - start for _, start, stop in (*row, piece)) <= capacity:
                row.append(piece)
                break
        else:
            bins.append([piece])
    return bins


def full_pieces(lengths, capacity):
    return [
        (i, s, min(s + capacity, n))
        for i, n in enumerate(lengths)
        for s in (range(0, n - capacity + 1, capacity) if n > capacity else [0])
    ]


def test_pack_split_wrong_answers():
    assert split()([121], 60) == [[(0, 0, 60)], [(0, 60, 120)], [(0, 120, 121)]]
    assert_stub_fails(check_pack_split, stub)
    assert_wrong_answers(
        check_pack_split,
        {
            "fills each row to its end": to_the_end,
            "drops the rest of a long document": split(
                pieces=lambda lengths, capacity: [(i, 0, min(n, capacity)) for i, n in enumerate(lengths)]
            ),
            "only full pieces of a long document": split(pieces=full_pieces),
            "long documents stay whole": split(
                pieces=lambda lengths, capacity: [(i, 0, n) for i, n in enumerate(lengths)]
            ),
            "a row for each piece": lambda lengths, capacity: [[piece] for piece in cut(lengths, capacity)],
            "goes back to an earlier row": first_fit,
            "refuses an exact fit": split(full=lambda used, size, capacity: used + size >= capacity),
            "forgets the last bin": split(last=False),
            "the remainder counts from 0": split(item=lambda piece: (piece[0], 0, piece[2] - piece[1])),
            "wrong type": lambda lengths, capacity: sum(lengths),
        },
    )
