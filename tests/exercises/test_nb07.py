from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch

from mamba_lab.batching import Boundaries
from mamba_lab.exercises.nb07 import check_earliest, check_may_hear, check_who_hears
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers
from mamba_lab.viz.leak_widget import block_leaks


def stub(*inputs): ...


def number_of(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def mask(lengths):
    number = number_of(lengths)
    return (number[:, None] == number[None, :]) & np.tri(len(number), dtype=bool)


def by_tensors(lengths):
    number = Boundaries.from_lengths(lengths).seq_idx
    return (number[:, None] == number[None, :]).tril()


def by_loop(lengths):
    number = number_of(lengths).tolist()
    return [[number[t] == number[s] and s <= t for s in range(len(number))] for t in range(len(number))]


@pytest.mark.parametrize("may_hear", [mask, by_tensors, by_loop])
def test_may_hear_is_right(may_hear):
    assert_solution_passes(check_may_hear, may_hear)


def test_may_hear_wrong_answers():
    assert_stub_fails(check_may_hear, stub)
    assert_wrong_answers(
        check_may_hear,
        {
            "one causal triangle": lambda lengths: np.tri(sum(lengths), dtype=bool),
            "hears the future": lambda lengths: number_of(lengths)[:, None] == number_of(lengths)[None, :],
            "deaf to itself": lambda lengths: mask(lengths) & ~np.eye(sum(lengths), dtype=bool),
            "rows and columns swapped": lambda lengths: mask(lengths).T,
            "the forbidden pairs": lambda lengths: ~mask(lengths),
            "one mask a document": lambda lengths: [np.tri(n, dtype=bool).tolist() for n in lengths],
            "numbers of documents": lambda lengths: np.eye(len(lengths), dtype=bool),
            "wrong type": lambda lengths: sum(lengths),
        },
    )


def who_hears(
    f,
    xs,
    lengths,
    *,
    groups=lambda lengths: [[s] for s in range(sum(lengths))],
    outputs=lambda lengths: range(sum(lengths)),
    noticed=lambda a, b: a != b,
    leak=lambda a, b: a != b,
    pair=lambda a, b: (a, b),
    collect=set,
):
    """The solution, with one thing changed."""
    number, before, pairs = number_of(lengths).tolist(), f(xs), []
    for group in groups(lengths):
        changed = list(xs)
        for s in group:
            changed[s] += 1
        after = f(changed)
        heard = [number[t] for t in outputs(lengths) if noticed(before[t], after[t])]
        pairs += [pair(number[group[0]], hearer) for hearer in heard if leak(number[group[0]], hearer)]
    return sorted(collect(pairs))


def by_matrix(f, xs, lengths):
    number, before = number_of(lengths), np.array(f(xs))
    moved = [np.array(f((np.array(xs) + one).tolist())) != before for one in np.eye(len(xs))]
    found = {(int(number[s]), int(number[t])) for s, t in zip(*np.nonzero(moved), strict=True)}
    return sorted((a, b) for a, b in found if a != b)


@pytest.mark.parametrize("f", [who_hears, by_matrix, lambda *inputs: [list(pair) for pair in who_hears(*inputs)]])
def test_who_hears_is_right(f):
    assert_solution_passes(check_who_hears, f)


def spans(lengths):
    ends = [0, *accumulate(lengths)]
    return [range(a, b) for a, b in pairwise(ends)]


def variant(**change):
    return lambda f, xs, lengths: who_hears(f, xs, lengths, **change)


def token_pairs(f, xs, lengths):
    number, before = number_of(lengths), f(xs)
    found = []
    for s in range(len(xs)):
        after = f([x + (i == s) for i, x in enumerate(xs)])
        found += [(s, t) for t in range(len(xs)) if after[t] != before[t] and number[s] != number[t]]
    return found


def never_restored(f, xs, lengths):
    before = f(xs)
    for s in range(len(xs)):
        xs[s] += 1
    return [] if f(xs) == before else [(0, 1)]


def not_put_back(f, xs, lengths):
    number, before, now, pairs = number_of(lengths).tolist(), f(xs), list(xs), set()
    for s in range(len(xs)):
        now[s] += 1
        after = f(now)
        pairs |= {(number[s], number[t]) for t in range(len(xs)) if after[t] != before[t] and number[s] != number[t]}
    return sorted(pairs)


def changed_to(change):
    """The solution with another change in place of + 1."""

    def f(model, xs, lengths):
        number, before, pairs = number_of(lengths).tolist(), model(xs), set()
        for s in range(len(xs)):
            after = model([change(x) if i == s else x for i, x in enumerate(xs)])
            pairs |= {(number[s], number[t]) for t in range(len(xs)) if after[t] != before[t]}
        return sorted(pair for pair in pairs if pair[0] != pair[1])

    return f


@pytest.mark.parametrize("change", [lambda x: x, lambda x: 2 * x, lambda x: -x, lambda x: 0.0, lambda x: 1.0])
def test_who_hears_without_a_real_change(change):
    assert check_who_hears.run(changed_to(change)).mistake == "no real change"


def test_who_hears_wrong_answers():
    assert_stub_fails(check_who_hears, stub)
    assert_wrong_answers(
        check_who_hears,
        {
            "changes a whole document at once": variant(groups=spans),
            "changes only the first token": variant(groups=lambda lengths: [d[:1] for d in spans(lengths)]),
            "changes only the last token": variant(groups=lambda lengths: [d[-1:] for d in spans(lengths)]),
            "looks only at the first output": variant(outputs=lambda lengths: [d[0] for d in spans(lengths)]),
            "looks only at the last output": variant(outputs=lambda lengths: [d[-1] for d in spans(lengths) if d]),
            "the change is never put back": not_put_back,
            "no real change": changed_to(lambda x: 2 * x),
            "right pairs, wrong order": lambda f, xs, lengths: who_hears(f, xs, lengths)[::-1],
            "only the next document": variant(leak=lambda a, b: b == a + 1),
            "only later documents": variant(leak=lambda a, b: a < b),
            "its own document counts": variant(leak=lambda a, b: True),
            "hearer first": variant(pair=lambda a, b: (b, a)),
            "nearly equal is taken for equal": variant(noticed=lambda a, b: abs(a - b) > 1e-5),
            "pairs of tokens": token_pairs,
            "a pair more than once": variant(collect=list),
            "changes its input": never_restored,
            "wrong type": lambda f, xs, lengths: who_hears(f, xs, lengths) != [],
        },
    )


def starts_of(lengths):
    return [0, *accumulate(lengths)][:-1]


def earliest(lengths, W, blocks):
    starts = starts_of(lengths)

    def heard(token, blocks):
        if blocks == 0:
            return token
        start = max(s for s, n in zip(starts, lengths, strict=True) if n and s <= token)
        return heard(max(0, start - W + 1), blocks - 1)

    return [heard(start, blocks) for start in starts]


def measured(lengths, W, blocks):
    sizes = block_leaks(lengths, reset_convolution=False, reset_scan=True, blocks=blocks, taps=W)
    return [int(np.flatnonzero(sizes[start])[0]) for start in starts_of(lengths)]


@pytest.mark.parametrize("f", [earliest, measured, lambda *inputs: torch.tensor(earliest(*inputs))])
def test_earliest_is_right(f):
    """What the exercise says is what autograd finds in random blocks."""
    assert_solution_passes(check_earliest, f)


def test_earliest_wrong_answers():
    assert_stub_fails(check_earliest, stub)
    assert_wrong_answers(
        check_earliest,
        {
            "W tokens back": lambda lengths, W, blocks: earliest(lengths, W + 1, blocks),
            "W - 1 more for each block": lambda lengths, W, blocks: [
                max(0, s - (W - 1) * blocks) for s in starts_of(lengths)
            ],
            "one block only": lambda lengths, W, blocks: earliest(lengths, W, 1),
            "before the first token": lambda lengths, W, blocks: [s - (W - 1) * blocks for s in starts_of(lengths)],
            "stops at the document before": lambda lengths, W, blocks: [
                max(s - (W - 1) * blocks, starts_of(lengths)[max(0, i - 1)]) for i, s in enumerate(starts_of(lengths))
            ],
            "hears no other document": lambda lengths, W, blocks: starts_of(lengths),
            "how many, not which": lambda lengths, W, blocks: [
                s - e for s, e in zip(starts_of(lengths), earliest(lengths, W, blocks), strict=True)
            ],
            "wrong type": lambda lengths, W, blocks: W - 1,
        },
    )
