"""Checks for notebook 03: the size of a padded batch, and batches that keep to a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable

from mamba_lab.exercises.checking import Exercise, Mistake, case

Batches = list[list[int]]


def _padded_size(lengths: list[int]) -> int:
    return len(lengths) * max(lengths)


check_padded_size = Exercise(
    "Size of a padded batch",
    reference=_padded_size,
    cases=[
        case(lengths=[5]),
        case(lengths=[1, 3]),
        case(lengths=[2, 2, 2]),
        case(lengths=[4, 2, 3, 7]),
        case(lengths=[900, 3, 3, 3]),
    ],
    mistakes=[
        Mistake(
            "sum of the lengths",
            "These are the real tokens. The machine also computes the padding: every row is as long as the longest.",
            wrong=sum,
        ),
        Mistake(
            "number of documents",
            "This is the number of rows. Each of them is as long as the longest document.",
            wrong=len,
        ),
        Mistake(
            "padding only",
            "These are the positions that hold nothing. The size counts the real tokens too.",
            wrong=lambda lengths: _padded_size(lengths) - sum(lengths),
        ),
        Mistake(
            "one row only",
            "This is the length of one row. There is a row for each document.",
            wrong=max,
        ),
        Mistake(
            "the last for the longest",
            "Rows are as long as the longest document, wherever it stands in the list.",
            wrong=lambda lengths: len(lengths) * lengths[-1],
        ),
        Mistake(
            "documents times the sum",
            "This makes each row as long as all documents together. A row is as long as the longest document.",
            wrong=lambda lengths: len(lengths) * sum(lengths),
        ),
        Mistake(
            "longest times longest",
            "The width is right: the longest document. The height is the number of documents.",
            wrong=lambda lengths: max(lengths) ** 2,
        ),
    ],
    hints=(
        "Draw the batch as a rectangle: one row for each document. How wide is it?",
        "Rows times the longest row: len(lengths) and max(lengths).",
    ),
    lesson="A batch costs its rectangle, so one long document is paid for in every row.",
)


def _batches(lengths: list[int], is_full: Callable[[list[int]], bool]) -> Batches:
    """Batches in order; a new one begins where ``is_full`` says so of the lengths with the next document."""
    batches: Batches = []
    for i, n in enumerate(lengths):
        if not batches or is_full([lengths[k] for k in batches[-1]] + [n]):
            batches.append([])
        batches[-1].append(i)
    return batches


def _budget_batches(lengths: list[int], max_tokens: int) -> Batches:
    return _batches(lengths, lambda batch: _padded_size(batch) > max_tokens)


def _checks_after_adding(lengths: list[int], max_tokens: int) -> Batches:
    return _batches(lengths, lambda batch: _padded_size(batch[:-1]) > max_tokens)


def _starts_empty(lengths: list[int], max_tokens: int) -> Batches:
    batches: Batches = [[]]
    for i, n in enumerate(lengths):
        if _padded_size([lengths[k] for k in batches[-1]] + [n]) > max_tokens:
            batches.append([])
        batches[-1].append(i)
    return batches


def _keeps_longest(lengths: list[int], max_tokens: int) -> Batches:
    batches: Batches = []
    longest = 0
    for i, n in enumerate(lengths):
        longest = max(longest, n)
        if not batches or (len(batches[-1]) + 1) * longest > max_tokens:
            batches.append([])
        batches[-1].append(i)
    return batches


check_budget_batches = Exercise(
    "Batches within a budget of tokens",
    reference=_budget_batches,
    cases=[
        case(lengths=[3], max_tokens=4),
        case(lengths=[3, 3], max_tokens=7),
        case(lengths=[3, 3], max_tokens=5),
        case(lengths=[3, 3], max_tokens=6),
        case(lengths=[1, 4], max_tokens=6),
        case(lengths=[4, 1], max_tokens=6),
        case(lengths=[9, 2], max_tokens=8),
        case(lengths=[4, 2, 3, 7], max_tokens=14),
        case(lengths=[6, 6, 2, 2, 2, 2], max_tokens=12),
        case(lengths=[2, 2, 5, 1, 1, 30, 3, 3, 4, 12, 2], max_tokens=16),
    ],
    mistakes=[
        Mistake(
            "counts real tokens",
            "The sum of the lengths keeps to the budget, the batch does not: padding counts too. Use rows times the "
            "longest row.",
            wrong=lambda lengths, max_tokens: _batches(lengths, lambda batch: sum(batch) > max_tokens),
        ),
        Mistake(
            "forgets the last batch",
            "The documents that are left when the loop ends make up a batch too.",
            wrong=lambda lengths, max_tokens: _budget_batches(lengths, max_tokens)[:-1],
        ),
        Mistake(
            "checks after adding",
            "The batch is over the budget before it is closed. Ask first whether the next document still fits.",
            wrong=_checks_after_adding,
        ),
        Mistake(
            "an empty first batch",
            "A document that is over the budget by itself closes a batch that holds nothing. Close only what holds "
            "something.",
            wrong=_starts_empty,
        ),
        Mistake(
            "lengths instead of indices",
            "The batches are right, but they hold lengths. Two documents may have one length: return their indices.",
            wrong=lambda lengths, max_tokens: [[lengths[i] for i in b] for b in _budget_batches(lengths, max_tokens)],
        ),
        Mistake(
            "longest of the old batch kept",
            "The longest document belongs to a batch that is closed. A new batch begins with a new longest.",
            wrong=_keeps_longest,
        ),
        Mistake(
            "takes the newcomer for the longest",
            "The batch may hold a longer document than the next one. Rows are as long as the longest of both.",
            wrong=lambda lengths, max_tokens: _batches(lengths, lambda batch: len(batch) * batch[-1] > max_tokens),
        ),
        Mistake(
            "forgets how a newcomer widens the rows",
            "The next document may be longer than all in the batch. Then every row grows with it.",
            wrong=lambda lengths, max_tokens: _batches(
                lengths, lambda batch: len(batch) * max(batch[:-1]) > max_tokens
            ),
        ),
        Mistake(
            "refuses an exact fit",
            "A batch of exactly max_tokens is within the budget. Begin a new one only above it.",
            wrong=lambda lengths, max_tokens: _batches(lengths, lambda batch: _padded_size(batch) >= max_tokens),
        ),
    ],
    hints=(
        "Keep one open batch. For each document ask: how big is the batch with it?",
        "The size with the next document is (documents in the batch + 1) times the longest of them all.",
        "When that is over max_tokens and the batch holds something, close it and open a new one. At the end, close "
        "the last one too.",
    ),
    lesson="A budget on the padded size bounds the memory of every batch, whatever documents come.",
)
