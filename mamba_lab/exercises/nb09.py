"""Checks for notebook 09: a piece's pair, an operator that starts afresh, and what is handed from chunk to chunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, pairwise

from mamba_lab.exercises.checking import Exercise, Mistake, case
from mamba_lab.exercises.compare import plain, same

Numbers = list[float]
Pair = tuple[float, float]
Triple = tuple[bool, float, float]
Span = tuple[int, int]

_NAN = math.nan


def _end(a: Iterable[float], b: Iterable[float], h: float = 0.0) -> float:
    for keep, add in zip(a, b, strict=True):
        h = keep * h + add
    return h


def _piece(a: Numbers, b: Numbers) -> Pair:
    return float(math.prod(a)), _end(a, b)


check_piece = Exercise(
    "The pair of a piece",
    reference=_piece,
    cases=[
        case(a=[0.5], b=[4.0]),
        case(a=[0.5, 0.25], b=[4.0, 2.0]),
        case(a=[0.5, 0.5, 0.5], b=[8.0, 4.0, 2.0]),
        case(a=[0.5, 0.0, 0.25], b=[8.0, 4.0, 2.0]),
        case(a=[0.0, 0.5, 0.5, 0.5], b=[4.0, 3.0, 5.0, 4.0]),
        case(a=[2.0, -1.0, 0.5, 3.0], b=[1.0, 5.0, -2.0, 7.0]),
    ],
    mistakes=[
        Mistake(
            "forgets the decay",
            "b is not the sum of all that came in: what came early has been multiplied by every later a.",
            wrong=lambda a, b: (math.prod(a), sum(b)),
        ),
        Mistake(
            "adds the decays",
            "b is right. Factors that follow each other multiply: a is their product, not their sum.",
            wrong=lambda a, b: (sum(a), _end(a, b)),
        ),
        Mistake(
            "left and right exchanged",
            "This reads the piece from its end. The later pair's a multiplies the earlier pair's b: a2 b1 + b2.",
            wrong=lambda a, b: (math.prod(a), _end(a[::-1], b[::-1])),
        ),
        Mistake(
            "decays its own input",
            "A token's a multiplies the state before it, not what the token itself adds: a h + b, not a (h + b).",
            wrong=lambda a, b: (math.prod(a), _end([1.0, *a], [*b, 0.0])),
        ),
        Mistake(
            "the last token's a",
            "b is right. What comes in passes through all tokens of the piece, not through the last one only.",
            wrong=lambda a, b: (a[-1], _end(a, b)),
        ),
        Mistake(
            "b first",
            "Both numbers are right, in the wrong order: the pair is (a, b).",
            wrong=lambda a, b: (_end(a, b), math.prod(a)),
        ),
        Mistake(
            "one pair a token",
            "The last of these is the answer: one pair for the whole piece, not one for each token.",
            when=lambda answer, a, b: (
                bool(answer) and all(isinstance(pair, list) for pair in answer) and answer[-1] == list(_piece(a, b))
            ),
        ),
        Mistake(
            "the state alone",
            "That is b, the state after the piece when 0 came in. A piece is a pair: what is its a?",
            when=lambda answer, a, b: isinstance(answer, (int, float)),
        ),
    ],
    hints=(
        "Begin with the first token's pair and combine it with the next one, token after token.",
        "combine((a1, b1), (a2, b2)) is (a2 * a1, a2 * b1 + b2).",
        "pair = (1.0, 0.0), then for each token pair = (a_t * pair[0], a_t * pair[1] + b_t).",
    ),
    lesson="The pair says what the piece does to any state that comes in. One zero in it, and nothing comes through.",
)


def _afresh(left: Triple, right: Triple) -> Triple:
    (start1, a1, b1), (start2, a2, b2) = left, right
    if start2:
        return True, 0.0, b2
    return start1, a2 * a1, a2 * b1 + b2


def _variant(
    when: Callable[[bool, bool], bool] = lambda start1, start2: start2,
    afresh: Callable[[Triple, Triple], Triple] = lambda left, right: (True, 0.0, right[2]),
    start: Callable[[bool, bool], bool] = lambda start1, start2: start1,
) -> Callable[[Triple, Triple], Triple]:
    """The operator with one thing changed: when it starts afresh, with what, and which start it reports otherwise."""

    def combine(left: Triple, right: Triple) -> Triple:
        (start1, a1, b1), (start2, a2, b2) = left, right
        if when(start1, start2):
            return afresh(left, right)
        return start(start1, start2), a2 * a1, a2 * b1 + b2

    return combine


def _turned(left: Triple, right: Triple) -> Triple:
    (start1, a1, b1), (start2, a2, b2) = left, right
    if start2:
        return True, 0.0, b2
    return start1, a2 * a1, a1 * b2 + b1


# What an operator gives that starts afresh where the left piece holds a start.
_LEFT_ASKED: tuple[Callable[[Triple, Triple], Triple], ...] = (
    lambda left, right: (True, 0.0, right[2]),
    lambda left, right: (True, 0.0, left[2]),
    lambda left, right: right,
)


def _one_of(*wrong: Callable[..., object]) -> Callable[..., bool]:
    """Whether an answer is what one of these gives: one mistake that is written in several ways."""
    return lambda answer, *inputs: any(same(answer, plain(w(*inputs))) for w in wrong)


check_combine_afresh = Exercise(
    "Combine, and start afresh",
    reference=_afresh,
    cases=[
        case(left=(False, 0.5, 4.0), right=(False, 0.25, 2.0)),
        case(left=(False, 0.5, 4.0), right=(True, 0.0, 2.0)),
        case(left=(True, 0.0, 4.0), right=(False, 0.5, 2.0)),
        case(left=(True, 0.0, 4.0), right=(True, 0.0, 2.0)),
        case(left=(False, 0.5, _NAN), right=(True, 0.0, 2.0)),
        case(left=(True, 0.0, math.inf), right=(True, 0.0, 2.0)),
        case(left=(False, _NAN, 4.0), right=(True, 0.0, 2.0)),
        case(left=(False, 0.5, _NAN), right=(False, 0.5, 2.0)),
    ],
    mistakes=[
        Mistake(
            "multiplies the decays",
            "b is right. a is still a product with the left one, and 0 times NaN is NaN: after a start it is 0.0.",
            wrong=_variant(afresh=lambda left, right: (True, right[1] * left[1], right[2])),
        ),
        Mistake(
            "multiplies by zero",
            "0 times NaN is NaN, and 0 times infinity too: a broken sequence reaches the next one. Where the right "
            "piece holds a start, do not multiply. Take its b.",
            wrong=_variant(when=lambda start1, start2: False, start=lambda start1, start2: start1 or start2),
        ),
        Mistake(
            "a start on either side",
            "Where only the left piece holds a start, its b belongs to the same sequence as the right piece. It "
            "decays and goes on.",
            wrong=_variant(when=lambda start1, start2: start1 or start2),
        ),
        Mistake(
            "asks the left piece",
            "A start in the left piece is in the past: its b goes on. It is the right piece's start that lets "
            "nothing through.",
            when=_one_of(
                *(
                    _variant(when=lambda start1, start2: start1, afresh=afresh, start=lambda start1, start2: start2)
                    for afresh in _LEFT_ASKED
                )
            ),
        ),
        Mistake(
            "forgets a start on the left",
            "The numbers are right. But a piece holds a start if either half holds one, and a later combination asks.",
            wrong=_variant(start=lambda start1, start2: start2),
        ),
        Mistake(
            "begins with nothing",
            "A start drops what comes from the left. What the right piece itself adds, its b, stays.",
            wrong=_variant(afresh=lambda left, right: (True, 0.0, 0.0)),
        ),
        Mistake(
            "hides NaN inside a sequence",
            "NaN inside its own sequence has to stay: it is how a broken sequence is found. Do not replace values, "
            "choose between them.",
            when=lambda answer, left, right: not right[0] and math.isnan(left[2]) and math.isfinite(answer[2]),
        ),
        Mistake(
            "left and right exchanged",
            "The right piece comes later: its a multiplies the left b. So b is a2 b1 + b2.",
            wrong=_turned,
        ),
    ],
    hints=(
        "Which of the two pieces must hold a start, so that nothing from the left comes through?",
        "An if, not a product: if right[0] is True, the answer does not use left's numbers at all.",
        "With a start on the right: (True, 0.0, b2). Otherwise: (start1, a2 * a1, a2 * b1 + b2).",
    ),
    lesson="This operator is associative too, so any parallel scan takes it as it is: a segmented scan.",
)


def _spans(lengths: list[int]) -> list[Span]:
    return list(pairwise(accumulate(lengths, initial=0)))


def _chunks(start: int, stop: int, size: int) -> list[Span]:
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def _handed(
    a: Numbers,
    b: Numbers,
    lengths: list[int],
    size: int,
    *,
    chunks: Callable[[int, int, int], list[Span]] = _chunks,
    begin: Callable[[float], float] = lambda before: 0.0,
    go_on: Callable[[float, Numbers, Numbers], float] = lambda h, a, b: _end(a, b, h),
    leaving: bool = False,
) -> Numbers:
    out, h = [], 0.0
    for start, stop in _spans(lengths):
        h = begin(h)
        for first, last in chunks(start, stop, size):
            after = go_on(h, a[first:last], b[first:last])
            out.append(after if leaving else h)
            h = after
    return out


def _from_the_packs_start(a: Numbers, b: Numbers, lengths: list[int], size: int, *, begin: str) -> Numbers:
    """Chunks that know nothing of sequences; h is set to 0 at a start before or after it is noted, or never."""
    starts, h, out = {start for start, _ in _spans(lengths)}, 0.0, []
    for t in range(sum(lengths)):
        if t in starts and begin == "before":
            h = 0.0
        if t % size == 0:
            out.append(h)
        h = b[t] if t in starts and begin == "after" else a[t] * h + b[t]
    return out


check_handed = Exercise(
    "What each chunk is handed",
    reference=_handed,
    cases=[
        case(a=[0.5, 0.5], b=[4.0, 2.0], lengths=[2], size=1),
        case(a=[0.5] * 4, b=[4.0, 2.0, 6.0, 8.0], lengths=[4], size=2),
        case(a=[0.5] * 4, b=[4.0, 2.0, 6.0, 8.0], lengths=[1, 3], size=2),
        case(a=[0.5] * 5, b=[1.0, 2.0, 3.0, 4.0, 5.0], lengths=[5], size=2),
        case(a=[0.5, 0.25, 0.5, 0.25, 0.5], b=[8.0, 4.0, 2.0, 4.0, 8.0], lengths=[3, 0, 2], size=2),
        case(
            a=[0.5] * 16,
            b=[4.0, 3.0, 5.0, 4.0, 2.0, 4.0, 6.0, 4.0, 5.0, 1.0, 4.0, 2.0, 3.0, 5.0, 5.0, 6.0],
            lengths=[4, 2, 3, 7],
            size=2,
        ),
    ],
    mistakes=[
        Mistake(
            "chunks counted from the pack's start",
            "A sequence's chunks begin at its own first token, so that it is cut as it would be alone.",
            when=_one_of(*(partial(_from_the_packs_start, begin=begin) for begin in ("before", "after", "never"))),
        ),
        Mistake(
            "handed across a start",
            "A sequence's first chunk is handed 0, not the state of the sequence before.",
            wrong=lambda a, b, lengths, size: _handed(a, b, lengths, size, begin=lambda before: before),
        ),
        Mistake(
            "handed on without decay",
            "What enters a chunk decays through all of its tokens before it leaves: a h + b, with the chunk's whole a.",
            wrong=lambda a, b, lengths, size: _handed(a, b, lengths, size, go_on=lambda h, a, b: h + _end(a, b)),
        ),
        Mistake(
            "only the chunk before",
            "Each chunk hands on what it made from 0. What it was handed itself has to go on too.",
            wrong=lambda a, b, lengths, size: _handed(a, b, lengths, size, go_on=lambda h, a, b: _end(a, b)),
        ),
        Mistake(
            "what leaves, not what enters",
            "These are the states after each chunk. A chunk is handed the state before its first token.",
            wrong=lambda a, b, lengths, size: _handed(a, b, lengths, size, leaving=True),
        ),
        Mistake(
            "drops the short last chunk",
            "A sequence's last chunk may be shorter than the others, and is one all the same.",
            wrong=lambda a, b, lengths, size: _handed(
                a,
                b,
                lengths,
                size,
                chunks=lambda start, stop, n: [c for c in _chunks(start, stop, n) if c[1] - c[0] == n],
            ),
        ),
        Mistake(
            "a chunk too many",
            "Where a length is a multiple of the size, this has an empty chunk at the end. An empty sequence has none.",
            wrong=lambda a, b, lengths, size: _handed(
                a,
                b,
                lengths,
                size,
                chunks=lambda start, stop, n: _chunks(start, stop, n) + [(stop, stop)] * ((stop - start) % n == 0),
            ),
        ),
        Mistake(
            "one list a sequence",
            "The numbers belong into one list, chunk after chunk.",
            when=lambda answer, *inputs: (
                bool(answer) and isinstance(answer[0], list) and [x for one in answer for x in one] == _handed(*inputs)
            ),
        ),
    ],
    hints=(
        "Take one sequence: range(start, stop, size) gives the first token of each of its chunks.",
        "Keep one number h, the state that is handed on. Note it before each chunk, then run the chunk from it.",
        "At a sequence's start h = 0.0. Through a chunk: for each token h = a[t] * h + b[t].",
    ),
    lesson="One number a chunk in place of one a token: from these, all states can be made again.",
)
