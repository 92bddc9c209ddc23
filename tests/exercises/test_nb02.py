from __future__ import annotations

import math

import numpy as np
import pytest

from mamba_lab.batching import chunk_fixed
from mamba_lab.exercises.nb02 import check_cut_documents, check_padding
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def fill(length, capacity):
    places = 0
    while places < length:
        places += capacity
    return places - length


def by_plan(length, capacity):
    plan = chunk_fixed([length], capacity)
    return plan.n_bins * plan.capacity - plan.n_tokens


@pytest.mark.parametrize(
    "padding",
    [lambda length, capacity: -length % capacity, fill, by_plan, lambda n, c: np.int64(np.ceil(n / c) * c - n)],
)
def test_padding_is_right(padding):
    assert_solution_passes(check_padding, padding)


def test_padding_wrong_answers():
    assert_stub_fails(check_padding, stub)
    assert_wrong_answers(
        check_padding,
        {
            "a full chunk too many": lambda n, c: (n // c + 1) * c - n,
            "counts the rest": lambda n, c: n - n // c * c,
            "counts chunks": lambda n, c: math.ceil(n / c),
            "negative": lambda n, c: n - math.ceil(n / c) * c,
            "one chunk only": lambda n, c: c - n,
            "a share instead of a number": lambda n, c: fill(n, c) / (n + fill(n, c)),
            "wrong values": lambda n, c: max(c - n, 0),
        },
    )


def token_by_token(lengths, capacity):
    place, n_cut = 0, 0
    for n in lengths:
        n_cut += len({(place + k) // capacity for k in range(n)}) > 1
        place += n
    return n_cut


def by_arrays(lengths, capacity):
    stops = np.cumsum(lengths)
    starts = stops - lengths
    return np.sum(starts // capacity != (stops - 1) // capacity)


def by_pieces(lengths, capacity):
    plan = chunk_fixed(lengths, capacity, across=True)
    _, pieces = np.unique(plan.sequence, return_counts=True)
    return int((pieces > 1).sum())


@pytest.mark.parametrize("cut_documents", [token_by_token, by_arrays, by_pieces])
def test_cut_documents_is_right(cut_documents):
    assert_solution_passes(check_cut_documents, cut_documents)


def walk(count):
    """Sum of ``count(start, stop, capacity)`` over the documents."""

    def f(lengths, capacity):
        start = total = 0
        for n in lengths:
            total += count(start, start + n, capacity)
            start += n
        return total

    return f


def test_cut_documents_wrong_answers():
    assert_stub_fails(check_cut_documents, stub)
    assert_wrong_answers(
        check_cut_documents,
        {
            "only the long ones": lambda lengths, c: sum((n - 1) // c > 0 for n in lengths),
            "a chunk edge at a joint counted as a cut": walk(lambda start, stop, c: start // c != stop // c),
            "counts cuts": walk(lambda start, stop, c: sum(p % c == 0 for p in range(start + 1, stop))),
            "counts chunk edges, not documents": lambda lengths, c: math.ceil(sum(lengths) / c) - 1,
            "looks at the ends only": walk(lambda start, stop, c: stop % c > 0),
            "counts the whole ones": walk(lambda start, stop, c: start // c == (stop - 1) // c),
            "wrong type": lambda lengths, c: [n for n in lengths if n > c],
        },
    )


def test_the_edge_at_the_end_of_the_stream_is_a_chunk_edge_too():
    assert check_cut_documents.run(lambda n, c: sum(n) // c).mistake == "counts chunk edges, not documents"
