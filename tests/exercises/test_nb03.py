from __future__ import annotations

import numpy as np
import pytest

from mamba_lab.batching import pad_collate
from mamba_lab.exercises.nb03 import check_budget_batches, check_padded_size
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def by_batch(lengths):
    return pad_collate([np.zeros(n, dtype=np.int32) for n in lengths], pad_id=1).input_ids.numel()


@pytest.mark.parametrize(
    "padded_size",
    [lambda lengths: max(lengths) * len(lengths), lambda lengths: np.max(lengths) * np.size(lengths), by_batch],
)
def test_padded_size_is_right(padded_size):
    assert_solution_passes(check_padded_size, padded_size)


def test_padded_size_wrong_answers():
    assert_stub_fails(check_padded_size, stub)
    assert_wrong_answers(
        check_padded_size,
        {
            "sum of the lengths": lambda lengths: int(np.sum(lengths)),
            "number of documents": lambda lengths: len(lengths),
            "padding only": lambda lengths: sum(max(lengths) - n for n in lengths),
            "one row only": lambda lengths: sorted(lengths)[-1],
            "documents times the sum": lambda lengths: len(lengths) * sum(lengths),
            "longest times longest": lambda lengths: max(lengths) ** 2,
            "the last for the longest": lambda lengths: lengths[-1] * len(lengths),
            "changes its input": lambda lengths: len(lengths) * (lengths.sort() or lengths[-1]),
            "wrong type": lambda lengths: [max(lengths)] * len(lengths),
        },
    )


def open_batch(lengths, max_tokens):
    batches, batch, longest = [], [], 0
    for i, n in enumerate(lengths):
        if batch and (len(batch) + 1) * max(longest, n) > max_tokens:
            batches.append(batch)
            batch, longest = [], 0
        batch.append(i)
        longest = max(longest, n)
    batches.append(batch)
    return batches


def from_the_left(lengths, max_tokens):
    start, batches = 0, []
    while start < len(lengths):
        stop = start + 1
        while stop < len(lengths) and max(lengths[start : stop + 1]) * (stop + 1 - start) <= max_tokens:
            stop += 1
        batches.append(np.arange(start, stop))
        start = stop
    return tuple(batches)


def generator(lengths, max_tokens):
    yield from open_batch(lengths, max_tokens)


@pytest.mark.parametrize("budget_batches", [open_batch, from_the_left, generator])
def test_budget_batches_is_right(budget_batches):
    assert_solution_passes(check_budget_batches, budget_batches)


def greedy(over, guard=True, last=True, reset=True, item=lambda i, n: i):
    """The open batch with one thing changed; ``over(rows, longest, n, real, budget)`` closes it before n comes in."""

    def f(lengths, max_tokens):
        batches, batch, longest, real = [], [], 0, 0
        for i, n in enumerate(lengths):
            if (batch or not guard) and over(len(batch), longest, n, real, max_tokens):
                batches.append(batch)
                batch, real = [], 0
                longest = 0 if reset else longest
            batch.append(item(i, n))
            longest, real = max(longest, n), real + n
        return [*batches, batch] if last else batches

    return f


def right(rows, longest, n, real, budget):
    return (rows + 1) * max(longest, n) > budget


def adds_first(lengths, max_tokens):
    batches, batch = [], []
    for i in range(len(lengths)):
        batch.append(i)
        if len(batch) * max(lengths[k] for k in batch) > max_tokens:
            batches.append(batch)
            batch = []
    return [*batches, batch] if batch else batches


def test_budget_batches_wrong_answers():
    assert open_batch([4, 2, 3, 7], 14) == greedy(right)([4, 2, 3, 7], 14) == [[0, 1, 2], [3]]
    assert_stub_fails(check_budget_batches, stub)
    assert_wrong_answers(
        check_budget_batches,
        {
            "counts real tokens": greedy(lambda rows, longest, n, real, budget: real + n > budget),
            "forgets the last batch": greedy(right, last=False),
            "checks after adding": adds_first,
            "an empty first batch": greedy(right, guard=False),
            "lengths instead of indices": greedy(right, item=lambda i, n: n),
            "longest of the old batch kept": greedy(right, reset=False),
            "takes the newcomer for the longest": greedy(
                lambda rows, longest, n, real, budget: (rows + 1) * n > budget
            ),
            "forgets how a newcomer widens the rows": greedy(
                lambda rows, longest, n, real, budget: (rows + 1) * longest > budget
            ),
            "refuses an exact fit": greedy(
                lambda rows, longest, n, real, budget: (rows + 1) * max(longest, n) >= budget
            ),
            "wrong length": lambda lengths, max_tokens: [[i] for i in range(len(lengths))],
            "wrong type": lambda lengths, max_tokens: len(open_batch(lengths, max_tokens)),
        },
    )
