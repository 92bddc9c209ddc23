from __future__ import annotations

import math
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch

from mamba_lab.exercises.nb09 import check_combine_afresh, check_handed, check_piece
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def combine(left, right):
    return right[0] * left[0], right[0] * left[1] + right[1]


def piece(a, b):
    return reduce(combine, zip(a, b, strict=True))


def by_halves(a, b):
    if len(a) == 1:
        return a[0], b[0]
    half = len(a) // 2
    return combine(by_halves(a[:half], b[:half]), by_halves(a[half:], b[half:]))


def by_states(a, b):
    """What the piece does to 0 and to 1."""

    def end(h):
        for keep, add in zip(a, b, strict=True):
            h = keep * h + add
        return h

    return [end(1) - end(0), end(0)]


@pytest.mark.parametrize("f", [piece, by_halves, by_states, lambda a, b: torch.tensor(piece(a, b))])
def test_piece_is_right(f):
    assert_solution_passes(check_piece, f)


def own_decay(a, b):
    h = 0.0
    for keep, add in zip(a, b, strict=True):
        h = keep * (h + add)
    return math.prod(a), h


def test_piece_wrong_answers():
    assert_stub_fails(check_piece, stub)
    assert_wrong_answers(
        check_piece,
        {
            "forgets the decay": lambda a, b: (np.prod(a), np.sum(b)),
            "adds the decays": lambda a, b: (sum(a), piece(a, b)[1]),
            "left and right exchanged": lambda a, b: reduce(lambda p, q: combine(q, p), zip(a, b, strict=True)),
            "decays its own input": own_decay,
            "the last token's a": lambda a, b: (a[-1], piece(a, b)[1]),
            "b first": lambda a, b: piece(a, b)[::-1],
            "one pair a token": lambda a, b: list(accumulate(zip(a, b, strict=True), combine)),
            "the state alone": lambda a, b: piece(a, b)[1],
        },
    )


def afresh(left, right):
    if right[0]:
        return right
    return left[0], *combine(left[1:], right[1:])


def afresh_by_choice(left, right):
    (start1, a1, b1), (start2, a2, b2) = left, right
    keep = torch.where(torch.tensor(start2), torch.zeros(2), torch.tensor([a1, b1]) * a2)
    return start1 or start2, keep[0].item(), (keep[1] + b2).item()


@pytest.mark.parametrize("f", [afresh, afresh_by_choice])
def test_combine_afresh_is_right(f):
    assert_solution_passes(check_combine_afresh, f)


def test_the_solution_is_associative_where_a_product_is_broken():
    triples = [(False, 0.5, 4.0), (False, 0.5, math.nan), (True, 0.0, 2.0), (False, 0.25, 8.0), (True, 0.0, 1.0)]
    for p in triples:
        for q in triples:
            for r in triples:
                left, right = afresh(afresh(p, q), r), afresh(p, afresh(q, r))
                assert np.array_equal(left, right, equal_nan=True)


def only_numbers(left, right):
    return left[0] or right[0], *combine(left[1:], right[1:])


def test_combine_afresh_wrong_answers():
    assert_stub_fails(check_combine_afresh, stub)
    assert_wrong_answers(
        check_combine_afresh,
        {
            "multiplies by zero": only_numbers,
            "asks the left piece": lambda left, right: (
                (True, 0.0, right[2]) if left[0] else (right[0], *combine(left[1:], right[1:]))
            ),
            "a start on either side": lambda left, right: (
                (True, 0.0, right[2]) if left[0] or right[0] else (False, *combine(left[1:], right[1:]))
            ),
            "forgets a start on the left": lambda left, right: (right[0], *afresh(left, right)[1:]),
            "begins with nothing": lambda left, right: (True, 0.0, 0.0) if right[0] else afresh(left, right),
            "multiplies the decays": lambda left, right: (
                (True, right[1] * left[1], right[2]) if right[0] else afresh(left, right)
            ),
            "hides NaN inside a sequence": lambda left, right: (
                afresh(left, right)[0],
                *np.nan_to_num(afresh(left, right)[1:], posinf=0),
            ),
            "left and right exchanged": lambda left, right: (
                right if right[0] else (left[0], *combine(right[1:], left[1:]))
            ),
            "wrong values": lambda left, right: left,
        },
    )


def replaced_first(left, right):
    return afresh(left, right) if right[0] else afresh((*left[:2], np.nan_to_num(left[2])), right)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (replaced_first, "hides NaN inside a sequence"),
        (lambda p, q: q if p[0] else (q[0], *combine(p[1:], q[1:])), "asks the left piece"),
        (lambda p, q: (True, 0.0, p[2]) if p[0] else (q[0], *combine(p[1:], q[1:])), "asks the left piece"),
    ],
)
def test_a_mistake_is_known_however_it_is_written(wrong, name):
    assert check_combine_afresh.run(wrong).mistake == name


def handed(a, b, lengths, size):
    out = []
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        h = 0.0
        for t in range(start, stop):
            if (t - start) % size == 0:
                out.append(h)
            h = a[t] * h + b[t]
    return out


def by_pairs(a, b, lengths, size):
    """Each chunk's pair first, then a short pass over the pairs."""
    out = []
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        ends = [(t, min(t + size, stop)) for t in range(start, stop, size)]
        pairs = [piece(a[i:j], b[i:j]) for i, j in ends]
        out += [h for _, h in accumulate(pairs, combine, initial=(1.0, 0.0))][: len(pairs)]
    return out


@pytest.mark.parametrize("f", [handed, by_pairs, lambda *inputs: torch.tensor(handed(*inputs))])
def test_handed_is_right(f):
    assert_solution_passes(check_handed, f)


def variant(
    *,
    chunks=lambda start, stop, size: [(t, min(t + size, stop)) for t in range(start, stop, size)],
    keeps=lambda h: 0.0,
    through=None,
    after=False,
):
    def f(a, b, lengths, size):
        out, h = [], 0.0
        for start, stop in pairwise(accumulate(lengths, initial=0)):
            h = keeps(h)
            for i, j in chunks(start, stop, size):
                p, q = piece([1.0, *a[i:j]], [0.0, *b[i:j]])
                new = through(h, p, q) if through else p * h + q
                out.append(new if after else h)
                h = new
        return out

    return f


def from_the_packs_start(a, b, lengths, size):
    starts, h, out = set(accumulate(lengths, initial=0)), 0.0, []
    for t in range(sum(lengths)):
        if t % size == 0:
            out.append(h)
        h = b[t] if t in starts else a[t] * h + b[t]
    return out


def noted_after_the_reset(a, b, lengths, size):
    starts, h, out = set(accumulate(lengths, initial=0)), 0.0, []
    for t in range(sum(lengths)):
        h = 0.0 if t in starts else h
        out += [h] if t % size == 0 else []
        h = a[t] * h + b[t]
    return out


def never_reset(a, b, lengths, size):
    return handed(a, b, [sum(lengths)], size)


@pytest.mark.parametrize("wrong", [noted_after_the_reset, never_reset])
def test_chunks_from_the_packs_start_are_known_with_any_reset(wrong):
    assert check_handed.run(wrong).mistake == "chunks counted from the pack's start"


def by_sequence(a, b, lengths, size):
    spans = pairwise(accumulate(lengths, initial=0))
    return [handed(a[i:j], b[i:j], [j - i], size) for i, j in spans]


def test_handed_wrong_answers():
    assert_stub_fails(check_handed, stub)
    assert_wrong_answers(
        check_handed,
        {
            "chunks counted from the pack's start": from_the_packs_start,
            "handed across a start": variant(keeps=lambda h: h),
            "handed on without decay": variant(through=lambda h, p, q: h + q),
            "only the chunk before": variant(through=lambda h, p, q: q),
            "what leaves, not what enters": variant(after=True),
            "drops the short last chunk": variant(
                chunks=lambda start, stop, size: [(t, t + size) for t in range(start, stop - size + 1, size)]
            ),
            "a chunk too many": variant(
                chunks=lambda start, stop, size: [(t, min(t + size, stop)) for t in range(start, stop + 1, size)]
            ),
            "one list a sequence": by_sequence,
            "wrong type": lambda a, b, lengths, size: sum(b),
        },
    )
