"""Checks for notebook 02: the padding of one document cut into chunks, and the documents that a stream cuts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mamba_lab.exercises.checking import Exercise, Mistake, case


def _chunks(length: int, capacity: int) -> int:
    return -(-length // capacity)


def _padding(length: int, capacity: int) -> int:
    return _chunks(length, capacity) * capacity - length


check_padding = Exercise(
    "Padding of one document",
    reference=_padding,
    cases=[
        case(length=3, capacity=4),
        case(length=4, capacity=4),
        case(length=1, capacity=8),
        case(length=7, capacity=4),
        case(length=8, capacity=4),
        case(length=1000, capacity=128),
        case(length=1024, capacity=128),
    ],
    mistakes=[
        Mistake(
            "a full chunk too many",
            "When the length divides exactly, the last chunk is full and there is no padding. This gives a whole "
            "chunk of it.",
            wrong=lambda length, capacity: capacity - length % capacity,
        ),
        Mistake(
            "counts the rest",
            "This is the number of tokens in the last chunk. Padding is what that chunk lacks.",
            wrong=lambda length, capacity: length % capacity,
        ),
        Mistake(
            "counts chunks",
            "This is the number of chunks. Their positions, less the tokens, are padding.",
            wrong=_chunks,
        ),
        Mistake(
            "negative",
            "The size is right and the sign is not: take the tokens from the positions, not the other way round.",
            wrong=lambda length, capacity: -_padding(length, capacity),
        ),
        Mistake(
            "one chunk only",
            "A document longer than the capacity fills several chunks. Only the last one can hold padding.",
            wrong=lambda length, capacity: capacity - length,
        ),
        Mistake(
            "a share instead of a number",
            "This is the padding rate: padding divided by all positions. The exercise asks for positions.",
            wrong=lambda length, capacity: _padding(length, capacity) / (_chunks(length, capacity) * capacity),
        ),
    ],
    hints=(
        "How many chunks does the document need? How many positions do they have together?",
        "length // capacity rounds down. The number of chunks must be rounded up.",
        "In Python, -length % capacity is the answer: the distance up to the next multiple.",
    ),
    lesson="Each document pays for its last chunk only, so short documents pay most for each token.",
)


def _spans(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Where each document starts and stops in the joined stream."""
    stops = list(itertools.accumulate(lengths))
    return zip([0, *stops[:-1]], stops, strict=True)


def _cuts(lengths: list[int], capacity: int) -> list[int]:
    """How many chunk edges fall inside each document."""
    return [(stop - 1) // capacity - start // capacity for start, stop in _spans(lengths)]


def _cut_documents(lengths: list[int], capacity: int) -> int:
    return sum(n > 0 for n in _cuts(lengths, capacity))


check_cut_documents = Exercise(
    "Documents that are cut",
    reference=_cut_documents,
    cases=[
        case(lengths=[3], capacity=4),
        case(lengths=[4, 4], capacity=4),
        case(lengths=[3, 2], capacity=4),
        case(lengths=[9], capacity=4),
        case(lengths=[4, 2, 3, 7], capacity=4),
        case(lengths=[4, 2, 3, 7], capacity=8),
        case(lengths=[5, 3, 1, 7, 8, 2, 20, 6], capacity=8),
        case(lengths=[1] * 30 + [100] + [1] * 30, capacity=16),
    ],
    mistakes=[
        Mistake(
            "only the long ones",
            "A short document is cut too when a chunk edge falls inside it. Where it starts in the stream decides.",
            wrong=lambda lengths, capacity: sum(n > capacity for n in lengths),
        ),
        Mistake(
            "a chunk edge at a joint counted as a cut",
            "A document that stops exactly at a chunk edge is whole. Its last token is at stop - 1: look which chunk "
            "that one is in.",
            wrong=lambda lengths, capacity: sum(
                stop // capacity != start // capacity for start, stop in _spans(lengths)
            ),
        ),
        Mistake(
            "counts cuts",
            "This is the number of chunk edges inside documents. A document that is cut twice counts once.",
            wrong=lambda lengths, capacity: sum(_cuts(lengths, capacity)),
        ),
        Mistake(
            "counts chunk edges, not documents",
            "This is the number of chunk edges in the stream. Some fall between two documents and cut nothing.",
            # With or without the edge at the very end of the stream.
            when=lambda answer, lengths, capacity: answer in ((sum(lengths) - 1) // capacity, sum(lengths) // capacity),
        ),
        Mistake(
            "looks at the ends only",
            "A document may end in the middle of a chunk and still be whole. It is cut when it also starts in "
            "another chunk.",
            wrong=lambda lengths, capacity: sum(stop % capacity != 0 for _, stop in _spans(lengths)),
        ),
        Mistake(
            "counts the whole ones",
            "These are the documents that lie in one chunk. The exercise asks for the others.",
            wrong=lambda lengths, capacity: len(lengths) - _cut_documents(lengths, capacity),
        ),
    ],
    hints=(
        "Go through the documents and keep count of where each one starts in the stream.",
        "The token at place p of the stream lies in chunk p // capacity.",
        "Compare the chunk of a document's first token with the chunk of its last, which is at start + length - 1.",
    ),
    lesson="In a joined stream the place decides who is cut: even a document of two tokens can be.",
)
