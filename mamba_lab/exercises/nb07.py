"""Checks for notebook 07: which pairs may depend on each other, who hears whom, and how far one reset reaches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from mamba_lab.exercises.checking import Exercise, Mistake, case

Mask = list[list[bool]]
Numbers = list[float]
Model = Callable[[Numbers], Numbers]
Pairs = list[tuple[int, int]]

_FAINT = 2.0**-20


def _numbers(lengths: list[int]) -> list[int]:
    """The document of each token."""
    return [number for number, n in enumerate(lengths) for _ in range(n)]


def _mask(lengths: list[int], allowed: Callable[[int, int, bool], bool]) -> Mask:
    """``allowed(output, input, same document)`` for every pair."""
    number = _numbers(lengths)
    return [[allowed(t, s, number[t] == number[s]) for s in range(len(number))] for t in range(len(number))]


def _may_hear(lengths: list[int]) -> Mask:
    return _mask(lengths, lambda t, s, same: same and s <= t)


check_may_hear = Exercise(
    "Who may hear whom",
    reference=_may_hear,
    cases=[
        case(lengths=[2]),
        case(lengths=[1, 1]),
        case(lengths=[2, 1]),
        case(lengths=[1, 3]),
        case(lengths=[2, 0, 2]),
        case(lengths=[4, 2, 3, 7]),
    ],
    mistakes=[
        Mistake(
            "one causal triangle",
            "This lets every token hear all that stand before it, those of other documents too. That is the leak.",
            wrong=lambda lengths: _mask(lengths, lambda t, s, same: s <= t),
        ),
        Mistake(
            "hears the future",
            "Inside a document a token here hears those that come after it. An input may not stand behind the output.",
            wrong=lambda lengths: _mask(lengths, lambda t, s, same: same),
        ),
        Mistake(
            "deaf to itself",
            "An output hears the token at its own place too: the diagonal is True.",
            wrong=lambda lengths: _mask(lengths, lambda t, s, same: same and s < t),
        ),
        Mistake(
            "rows and columns swapped",
            "The triangles stand on their heads. Row t is an output, and column s an input that it may hear.",
            wrong=lambda lengths: _mask(lengths, lambda t, s, same: same and s >= t),
        ),
        Mistake(
            "the forbidden pairs",
            "True and False are exchanged: True says that output t may hear input s.",
            wrong=lambda lengths: _mask(lengths, lambda t, s, same: not (same and s <= t)),
        ),
        Mistake(
            "one mask a document",
            "Each triangle is right. The pack needs one mask for all its tokens, with False between documents.",
            when=lambda answer, lengths: [m for m in answer if m] == [_may_hear([n]) for n in lengths if n],
        ),
        Mistake(
            "numbers of documents",
            "A mask over documents is too coarse: it needs a row for each output token and a column for each input.",
            when=lambda answer, lengths: len(answer) == len(lengths) != sum(lengths),
        ),
    ],
    hints=(
        "Two questions decide about a pair: do both tokens belong to one document, and does the input come first?",
        "Make seq_idx as in notebook 05: number = [0, 0, 0, 0, 1, 1, ...].",
        "True where number[t] == number[s] and s <= t.",
    ),
    lesson="Attention takes this mask as it is. A recurrence has no pairs, only one state that it passes on.",
)


def _box(name: str, outputs: Callable[[Numbers], Iterable[float]]) -> Model:
    """A black box under the name that its card shows: one number a token in, one out."""

    def f(xs: Numbers) -> Numbers:
        return [float(y) for y in outputs([float(x) for x in xs])]

    f.__name__ = name
    return f


def _sums(xs: Numbers, starts: tuple[int, ...] = ()) -> Numbers:
    total, out = 0.0, []
    for t, x in enumerate(xs):
        total = x if t in starts else total + x
        out.append(total)
    return out


def _hears_tokens_back(back: int) -> Model:
    name = f"convolution_with_{back + 1}_taps"
    return _box(name, lambda xs: [sum(xs[max(0, t - back) : t + 1]) for t in range(len(xs))])


_linear_layer = _box("linear_layer", lambda xs: [3 * x + 1 for x in xs])
_scan = _box("scan", _sums)
_first_token = _box("hears_the_first_token", lambda xs: [x + xs[0] for x in xs])
_last_speaks = _box("only_the_last_output_hears", lambda xs: [*xs[:-1], sum(xs)])
_next_token = _box("hears_the_next_token", lambda xs: [a + b for a, b in zip(xs, [*xs[1:], 0.0], strict=True)])
_difference = _box("hears_the_first_difference", lambda xs: [*xs[:2], *(x + xs[1] - xs[0] for x in xs[2:])])
_whispers = _box("scan_that_whispers", lambda xs: [1 + _FAINT * y for y in _sums(xs)])


def _resets_at(*starts: int) -> Model:
    return _box("scan_with_reset_at_" + "_".join(map(str, starts)), lambda xs: _sums(xs, starts))


def _heard(
    f: Model,
    xs: Numbers,
    tokens: Iterable[tuple[int, ...]],
    changed: Callable[[float, float], bool],
    *,
    change: Callable[[float], float] = lambda x: x + 1,
    back: bool = True,
) -> set[tuple[int, int]]:
    """(token changed, output that noticed), where each tuple of ``tokens`` is changed together, and put ``back``."""
    before, now = f(list(xs)), list(xs)
    found: set[tuple[int, int]] = set()
    for group in tokens:
        now = [change(x) if s in group else x for s, x in enumerate(xs if back else now)]
        after = f(list(now))
        found |= {(group[0], t) for t in range(len(xs)) if changed(before[t], after[t])}
    return found


def _each_token(lengths: list[int]) -> list[tuple[int, ...]]:
    return [(s,) for s in range(sum(lengths))]


def _pairs(
    f: Model,
    xs: Numbers,
    lengths: list[int],
    *,
    tokens: Callable[[list[int]], list[tuple[int, ...]]] = _each_token,
    changed: Callable[[float, float], bool] = lambda before, after: before != after,
    keep: Callable[[int, int], bool] = lambda speaker, hearer: speaker != hearer,
    hears: Callable[[list[int], int], bool] = lambda lengths, t: True,
    change: Callable[[float], float] = lambda x: x + 1,
    back: bool = True,
) -> Pairs:
    number = _numbers(lengths)
    heard = _heard(f, xs, tokens(lengths), changed, change=change, back=back)
    pairs = {(number[s], number[t]) for s, t in heard if hears(lengths, t)}
    return sorted(pair for pair in pairs if keep(*pair))


def _documents(lengths: list[int]) -> list[tuple[int, ...]]:
    ends = [0, *itertools.accumulate(lengths)]
    return [tuple(range(a, b)) for a, b in itertools.pairwise(ends) if a < b]


def _no_real_change(answer: Pairs, f: Model, xs: Numbers, lengths: list[int]) -> bool:
    """Nothing found, or what is found where a factor 2, or the number 0 or 1 itself, is taken for a change."""
    changes: list[Callable[[float], float]] = [lambda x: 2 * x, lambda x: -x, lambda x: 0.0, lambda x: 1.0]
    found = [_pairs(f, xs, lengths, change=change) for change in changes]
    return [tuple(pair) for pair in answer] in [[], *found]


def _every_time(f: Model, xs: Numbers, lengths: list[int]) -> Pairs:
    number = _numbers(lengths)
    heard = _heard(f, xs, _each_token(lengths), lambda before, after: before != after)
    return sorted((number[s], number[t]) for s, t in heard if number[s] != number[t])


def _token_pairs(f: Model, xs: Numbers, lengths: list[int]) -> Pairs:
    number = _numbers(lengths)
    heard = _heard(f, xs, _each_token(lengths), lambda before, after: before != after)
    return sorted((s, t) for s, t in heard if number[s] != number[t])


check_who_hears = Exercise(
    "Which documents hear each other",
    reference=_pairs,
    cases=[
        case(f=_linear_layer, xs=[2.0, 5.0], lengths=[1, 1]),
        case(f=_scan, xs=[2.0, 5.0], lengths=[1, 1]),
        case(f=_scan, xs=[1.0, 2.0, 3.0], lengths=[1, 1, 1]),
        case(f=_scan, xs=[0.0, 1.0, 0.0], lengths=[1, 1, 1]),
        case(f=_resets_at(2), xs=[1.0, 2.0, 3.0, 4.0], lengths=[2, 2]),
        case(f=_hears_tokens_back(1), xs=[1.0, 2.0, 3.0, 4.0, 5.0], lengths=[2, 2, 1]),
        case(f=_first_token, xs=[4.0, 3.0, 2.0, 1.0], lengths=[2, 2]),
        case(f=_last_speaks, xs=[1.0, 1.0, 2.0, 3.0], lengths=[2, 2]),
        case(f=_next_token, xs=[1.0, 2.0, 3.0, 4.0], lengths=[2, 2]),
        case(f=_difference, xs=[1.0, 5.0, 3.0, 4.0], lengths=[2, 2]),
        case(f=_whispers, xs=[1.0, 2.0, 3.0], lengths=[2, 1]),
        case(f=_hears_tokens_back(3), xs=[float(x % 5) for x in range(16)], lengths=[4, 2, 3, 7]),
        case(f=_resets_at(4, 9), xs=[float(x % 3) for x in range(16)], lengths=[4, 2, 3, 7]),
    ],
    mistakes=[
        Mistake(
            "changes a whole document at once",
            "Equal changes can cancel: hears_the_first_difference notices none. Change one token at a time.",
            wrong=lambda f, xs, lengths: _pairs(f, xs, lengths, tokens=_documents),
        ),
        Mistake(
            "changes only the first token",
            "A convolution hears the end of the document before it, not its beginning. Change every token in turn.",
            wrong=lambda f, xs, lengths: _pairs(
                f, xs, lengths, tokens=lambda lengths: [d[:1] for d in _documents(lengths)]
            ),
        ),
        Mistake(
            "only later documents",
            "hears_the_next_token leaks backwards: the second document speaks, and the first one hears. Compare all "
            "outputs, before the change too.",
            wrong=lambda f, xs, lengths: _pairs(f, xs, lengths, keep=lambda a, b: a < b),
        ),
        Mistake(
            "changes only the last token",
            "The end of a document is not all that can be heard: hears_the_first_token. Change every token in turn.",
            wrong=lambda f, xs, lengths: _pairs(
                f, xs, lengths, tokens=lambda lengths: [d[-1:] for d in _documents(lengths)]
            ),
        ),
        Mistake(
            "looks only at the first output",
            "The first output of a document may hear nothing, and a later one something. Compare all of them.",
            wrong=lambda f, xs, lengths: _pairs(
                f, xs, lengths, hears=lambda lengths, t: t in {d[0] for d in _documents(lengths)}
            ),
        ),
        Mistake(
            "looks only at the last output",
            "The last output of a document may hear nothing, and an earlier one something. Compare all of them.",
            wrong=lambda f, xs, lengths: _pairs(
                f, xs, lengths, hears=lambda lengths, t: t in {d[-1] for d in _documents(lengths)}
            ),
        ),
        Mistake(
            "the change is never put back",
            "Each run has the changes of the runs before it, so what one token did is put down to the next ones too. "
            "Begin each run with a fresh copy of xs.",
            wrong=lambda f, xs, lengths: _pairs(f, xs, lengths, back=False),
        ),
        Mistake(
            "only the next document",
            "A scan is heard by all documents that follow, not only by the next one.",
            wrong=lambda f, xs, lengths: _pairs(f, xs, lengths, keep=lambda a, b: b == a + 1),
        ),
        Mistake(
            "its own document counts",
            "A document may hear itself. Only pairs of two different documents are leaks.",
            wrong=lambda f, xs, lengths: _pairs(f, xs, lengths, keep=lambda a, b: True),
        ),
        Mistake(
            "hearer first",
            "The pairs are turned round. The document that was changed comes first, the one that noticed second.",
            wrong=lambda f, xs, lengths: sorted((b, a) for a, b in _pairs(f, xs, lengths)),
        ),
        Mistake(
            "nearly equal is taken for equal",
            "A leak may be faint, and it is still one. Without a leak the outputs are equal to the bit, so compare "
            "with !=.",
            wrong=lambda f, xs, lengths: _pairs(
                f, xs, lengths, changed=lambda before, after: abs(before - after) > 1e-5
            ),
        ),
        Mistake(
            "right pairs, wrong order",
            "All pairs are there, each once. Sort them: return sorted(pairs).",
            when=lambda answer, f, xs, lengths: sorted(map(list, answer)) == [*map(list, _pairs(f, xs, lengths))],
        ),
        Mistake(
            "no real change",
            "In some runs f gets the numbers that it got before: 2 * 0 and -0 are 0, and an output that is compared "
            "with itself never moves. Add something to the token, and compare with a run before it.",
            when=_no_real_change,
        ),
        Mistake(
            "pairs of tokens",
            "These are tokens. Say which documents they belong to, and name each pair once.",
            wrong=_token_pairs,
        ),
        Mistake(
            "a pair more than once",
            "The pairs are right, but several tokens found the same one. Collect them in a set.",
            wrong=_every_time,
        ),
    ],
    hints=(
        "Run f once as it is. Then, for each token, run it on a copy in which this one token is changed.",
        "number[t] is the document of token t. A changed output t and a changed token s of two documents are a leak.",
        "Collect (number[s], number[t]) in a set, and return sorted(...) of it.",
    ),
    lesson="This is how this course tests its own operators: change one token, and demand that no foreign bit moves.",
)


def _starts(lengths: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)][:-1]


def _earliest(lengths: list[int], W: int, blocks: int) -> list[int]:
    starts, number = _starts(lengths), _numbers(lengths)
    heard = list(range(len(number)))
    for _ in range(blocks):
        heard = [heard[max(0, starts[number[t]] - (W - 1))] for t in range(len(number))]
    return [heard[start] for start in starts]


check_earliest = Exercise(
    "How far back a convolution leaks",
    reference=_earliest,
    cases=[
        case(lengths=[3], W=4, blocks=1),
        case(lengths=[5, 2], W=2, blocks=1),
        case(lengths=[5, 2], W=4, blocks=1),
        case(lengths=[1, 2], W=4, blocks=1),
        case(lengths=[4, 2, 3, 7], W=4, blocks=1),
        case(lengths=[5, 2], W=3, blocks=2),
        case(lengths=[4, 2, 3, 7], W=4, blocks=2),
        case(lengths=[4, 2, 3, 7], W=4, blocks=3),
        case(lengths=[9, 5, 5, 5], W=2, blocks=2),
        case(lengths=[9, 5, 5, 5], W=1, blocks=3),
    ],
    mistakes=[
        Mistake(
            "W tokens back",
            "One of the W taps is the token itself. The convolution looks W - 1 tokens back.",
            wrong=lambda lengths, W, blocks: _earliest(lengths, W + 1, blocks),
        ),
        Mistake(
            "W - 1 more for each block",
            "That is what convolutions alone would do. Between two of them stands a scan, which carries all of a "
            "document: the second convolution hears the last tokens of a document that has heard its own beginning.",
            wrong=lambda lengths, W, blocks: [max(0, start - blocks * (W - 1)) for start in _starts(lengths)],
        ),
        Mistake(
            "one block only",
            "This is right for one block. The second block hears outputs of the first, and each of those has heard "
            "earlier tokens itself.",
            wrong=lambda lengths, W, blocks: _earliest(lengths, W, 1),
        ),
        Mistake(
            "before the first token",
            "Nothing stands before token 0: take the larger of 0 and the place.",
            wrong=lambda lengths, W, blocks: [start - blocks * (W - 1) for start in _starts(lengths)],
        ),
        Mistake(
            "stops at the document before",
            "A convolution without a reset knows no documents. Where the one before is short, it looks past it.",
            wrong=lambda lengths, W, blocks: [
                max(start - blocks * (W - 1), before)
                for start, before in zip(_starts(lengths), [0, *_starts(lengths)], strict=False)
            ],
        ),
        Mistake(
            "hears no other document",
            "These are the documents' own starts. The convolution is not told about them, and looks past them.",
            wrong=lambda lengths, W, blocks: _starts(lengths),
        ),
        Mistake(
            "how many, not which",
            "This counts the tokens before the start that are heard. Return the place of the earliest one in the pack.",
            wrong=lambda lengths, W, blocks: [
                start - early for start, early in zip(_starts(lengths), _earliest(lengths, W, blocks), strict=True)
            ],
        ),
    ],
    hints=(
        "One block first: which token does the convolution see from a document's first token?",
        "Keep a list `heard` with one place for each token, at first its own. A block replaces the entry of each "
        "token of a document by that of the earliest token that the convolution saw.",
        "In each block: heard[t] = old_heard[max(0, start of t's document - (W - 1))].",
    ),
    lesson="Each block carries the leak one document further at least. A deep model with one reset hears everything.",
)
