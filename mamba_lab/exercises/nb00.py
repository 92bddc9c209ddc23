"""Checks for notebook 00: the valid ratio, and a test for leaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from mamba_lab.exercises.checking import Exercise, Mistake, case

Rows = list[list[float]]
Predict = Callable[[list[int]], Rows]

# Steps that a 32-bit number still holds, so that a test on tensors finds them too.
_FAINT, _TINY = 2.0**-23, 2.0**-40


def _valid_ratio(lengths: list[int]) -> float:
    return sum(lengths) / (len(lengths) * max(lengths))


check_valid_ratio = Exercise(
    "Valid ratio of padded documents",
    reference=_valid_ratio,
    cases=[
        case(lengths=[5]),
        case(lengths=[1, 3]),
        case(lengths=[2, 2]),
        case(lengths=[4, 2, 3, 7]),
        case(lengths=[1, 1, 1, 97]),
    ],
    mistakes=[
        Mistake(
            "padding rate instead",
            "This is the share of positions that hold nothing. The valid ratio is 1 minus that.",
            wrong=lambda lengths: 1 - _valid_ratio(lengths),
        ),
        Mistake(
            "number of documents forgotten",
            "The longest document gives the length of one row. There is a row for each document.",
            wrong=lambda lengths: sum(lengths) / max(lengths),
        ),
        Mistake(
            "percent instead of a share",
            "The number is right in percent. A share lies between 0 and 1.",
            wrong=lambda lengths: 100 * _valid_ratio(lengths),
        ),
        Mistake(
            "upside down",
            "This is positions divided by real tokens. A share has the part above and the whole below.",
            wrong=lambda lengths: 1 / _valid_ratio(lengths),
        ),
        Mistake(
            "mean over sum",
            "The mean length divided by the sum is 1 over the number of documents, whatever they hold. Divide by the "
            "number of positions: rows times the longest.",
            wrong=lambda lengths: 1 / len(lengths),
        ),
        Mistake(
            "longest over sum",
            "This is one row over the real tokens. A share is the part over the whole: real tokens over positions.",
            wrong=lambda lengths: max(lengths) / sum(lengths),
        ),
        Mistake(
            "mean length",
            "This is the mean length of a document. Divide by the longest too: all rows are as long as that one.",
            wrong=lambda lengths: sum(lengths) / len(lengths),
        ),
        Mistake(
            "rounded down",
            "The sign // throws the fraction away. A share needs /.",
            wrong=lambda lengths: math.floor(_valid_ratio(lengths)),
        ),
    ],
    hints=(
        "How many rows are there, and how long is each of them? That gives the number of positions.",
        "Real tokens: sum(lengths). Positions: len(lengths) times max(lengths).",
    ),
    lesson="The longest document sets the length of every row, so one long document makes the whole batch expensive.",
)


def _box(name: str, rows: Callable[[list[int]], Iterable[Iterable[float]]]) -> Predict:
    """A black box under the name that its card shows: token ids to one row of scores for each."""

    def predict(ids: list[int]) -> Rows:
        return [[float(score) for score in row] for row in rows([int(i) for i in ids])]

    predict.__name__ = name
    return predict


def _sums(ids: list[int], reset: int = -1) -> list[int]:
    """Running sums that begin anew at place ``reset``."""
    total, out = 0, []
    for place, i in enumerate(ids):
        total = i if place == reset else total + i
        out.append(total)
    return out


def _with(ids: list[int], heard: Iterable[float]) -> list[tuple[float, float]]:
    """Two scores a token: 60, and what the token hears. The second wins where much is heard."""
    return [(60.0, score) for _, score in zip(ids, heard, strict=True)]


def _back(ids: list[int], step: int) -> list[int]:
    """What stands ``step`` places to the left of each token, 0 where nothing does."""
    return [ids[t - step] if t >= step else 0 for t in range(len(ids))]


def _only_last(ids: list[int]) -> list[int]:
    return [sum(ids) if t == len(ids) - 1 else 0 for t in range(len(ids))]


def _resets_at(place: int) -> Callable[[list[int]], list[tuple[float, float]]]:
    return lambda ids: _with(ids, _sums(ids, reset=place))


_hears_nothing = _box("hears_nothing", lambda ids: [(60, 0)] * len(ids))
_hears_itself = _box("hears_itself", lambda ids: _with(ids, ids))
_knows_its_place = _box("knows_its_place", lambda ids: _with(ids, [i + 40 * t for t, i in enumerate(ids)]))
_adds_up_everything = _box("adds_up_everything", lambda ids: _with(ids, _sums(ids)))
_hears_one_token_back = _box("hears_one_token_back", lambda ids: _with(ids, _back(ids, 1)))
_hears_two_tokens_back = _box("hears_two_tokens_back", lambda ids: _with(ids, _back(ids, 2)))
_hears_the_first_token = _box("hears_the_first_token", lambda ids: _with(ids, ids[:1] * len(ids)))
_speaks_up_at_the_end = _box("speaks_up_at_the_end", lambda ids: _with(ids, _only_last(ids)))
_whispers = _box("whispers", lambda ids: _with(ids, [1 + _FAINT * s for s in _sums(ids)]))
_whispers_near_zero = _box("whispers_near_zero", lambda ids: _with(ids, [_TINY * s for s in _sums(ids)]))


def _leaks(predict: Predict, ids: list[int], start: int) -> bool:
    changed = [i + 1 for i in ids[:start]] + ids[start:]
    return predict(changed)[start:] != predict(ids)[start:]


def _compares_everything(predict: Predict, ids: list[int], start: int) -> bool:
    return predict([i + 1 for i in ids[:start]] + ids[start:]) != predict(ids)


def _removes_a(predict: Predict, ids: list[int], start: int) -> bool:
    return predict(ids[start:]) != predict(ids)[start:]


def _shuffles_a(predict: Predict, ids: list[int], start: int) -> bool:
    return predict(ids[:start][::-1] + ids[start:])[start:] != predict(ids)[start:]


def _changes_one(place: Callable[[int], int]) -> Callable[[Predict, list[int], int], bool]:
    def leaks(predict: Predict, ids: list[int], start: int) -> bool:
        changed = [i + (t == place(start)) for t, i in enumerate(ids)]
        return predict(changed)[start:] != predict(ids)[start:]

    return leaks


def _compares(part: Callable[[Rows, int], object]) -> Callable[[Predict, list[int], int], bool]:
    """A test that changes all of A and compares only ``part(outputs, start)``."""

    def leaks(predict: Predict, ids: list[int], start: int) -> bool:
        changed = [i + 1 for i in ids[:start]] + ids[start:]
        return part(predict(changed), start) != part(predict(ids), start)

    return leaks


def _first_token_and_rounded(predict: Predict, ids: list[int], start: int) -> bool:
    changed = [ids[0] + 1, *ids[1:]]
    return _rounded(predict(changed), start) != _rounded(predict(ids), start)


def _looks_through_a_slit(predict: Predict, ids: list[int], start: int) -> bool:
    """Sees what every pair of one changed token and one compared output sees."""
    rows = predict(ids)
    return all(
        predict([i + (t == place) for t, i in enumerate(ids)])[output] != rows[output]
        for place in (0, start - 1)
        for output in (start, len(ids) - 1)
    )


def _winners(rows: Rows, start: int) -> list[int]:
    return [row.index(max(row)) for row in rows[start:]]


def _rounded(rows: Rows, start: int) -> Rows:
    return [[round(score, 5) for score in row] for row in rows[start:]]


# Every leak but the plain sum is there for one way to miss it. A mistake stands before those that miss more than it
# does: an answer is only True or False, so the first that explains all failures is the one that explains them best.
check_leaks = Exercise(
    "A test for leaks",
    reference=_leaks,
    cases=[
        case(predict=_hears_nothing, ids=[12, 35], start=1),
        case(predict=_hears_itself, ids=[12, 35], start=1),
        case(predict=_adds_up_everything, ids=[29, 31], start=1),
        case(predict=_knows_its_place, ids=[12, 35, 23], start=1),
        case(predict=_adds_up_everything, ids=[12, 10, 38], start=2),
        case(predict=_box("forgets_at_2", _resets_at(2)), ids=[12, 35, 23], start=2),
        case(predict=_hears_one_token_back, ids=[12, 35, 23, 31, 18], start=2),
        case(predict=_hears_two_tokens_back, ids=[12, 35, 23, 31, 18], start=2),
        case(predict=_hears_the_first_token, ids=[12, 35, 23, 31, 18], start=3),
        case(predict=_speaks_up_at_the_end, ids=[12, 35, 23, 31, 18], start=3),
        case(predict=_box("forgets_one_token_too_early", _resets_at(2)), ids=[12, 35, 23, 31, 18], start=3),
        case(predict=_box("forgets_one_token_too_late", _resets_at(3)), ids=[12, 35, 23, 31, 18], start=2),
        case(predict=_whispers, ids=[12, 35, 23, 31, 18], start=2),
        case(predict=_whispers_near_zero, ids=[12, 35, 23, 31, 18], start=2),
    ],
    mistakes=[
        Mistake(
            "removes A instead of changing it",
            "Without A, B stands in another place. An output may depend on its place without hearing a token. Keep "
            "the number of tokens and change what they are.",
            wrong=_removes_a,
        ),
        Mistake(
            "compares document A with itself too",
            "Outputs before `start` may change: A is allowed to hear A. Compare the outputs from `start` on.",
            wrong=_compares_everything,
        ),
        Mistake(
            "always says yes",
            "It finds a leak where nothing is heard at all. Compare two calls of predict.",
            wrong=lambda predict, ids, start: True,
        ),
        Mistake(
            "compares with a tolerance",
            "It misses a faint leak. Outputs that do not hear A are equal to the last bit, so compare with ==. "
            "Rounding is a tolerance too.",
            wrong=_compares(_rounded),
        ),
        Mistake(
            "changes the last token of A only",
            "This box hears an earlier token of A and not the last one. Change every token before `start`.",
            wrong=_changes_one(lambda start: start - 1),
        ),
        Mistake(
            "looks at the first output only",
            "This leak shows in a later output of B. Compare all outputs from `start` on.",
            wrong=_compares(lambda rows, start: rows[start]),
        ),
        Mistake(
            "changes the first token of A only",
            "This box hears the end of A and not its beginning. Change every token before `start`.",
            wrong=_changes_one(lambda start: 0),
        ),
        Mistake(
            "skips the first output of B",
            "This leak shows at `start` only. That output belongs to B: begin at `start`, not behind it.",
            wrong=_compares(lambda rows, start: rows[start + 1 :]),
        ),
        Mistake(
            "looks at the last output only",
            "This leak is gone before B ends. Compare all outputs from `start` on.",
            wrong=_compares(lambda rows, start: rows[-1]),
        ),
        Mistake(
            "puts A in another order",
            "The tokens are the same, only their order is new. A sum does not notice that. Put other tokens in.",
            wrong=_shuffles_a,
        ),
        Mistake(
            "one token and one output",
            "It hears a loud leak and misses those that show in few places. Change every token before `start`, and "
            "compare every output from `start` on.",
            wrong=_looks_through_a_slit,
        ),
        Mistake(
            "the first token only, and a tolerance",
            "Two things hide leaks here: only the first token of A is changed, and a faint change counts as none. "
            "Change every token before `start`, and compare with ==.",
            wrong=_first_token_and_rounded,
        ),
        Mistake(
            "compares the winners only",
            "The likeliest token can stay the same while the scores move. Compare the scores themselves.",
            wrong=_compares(_winners),
        ),
        Mistake(
            "always says no",
            "It misses a leak that is loud. Are the tokens before `start` different in the second call, and does the "
            "answer of the comparison reach the return?",
            wrong=lambda predict, ids, start: False,
        ),
    ],
    hints=(
        "Call predict twice: once with ids, once with a copy in which the tokens before `start` are different.",
        "A leak may come from any token of A and may show in any output of B. Change all of them, compare all of them.",
        "With the outputs of the two calls in x and y, the answer is x[start:] != y[start:]. A tolerance hides leaks.",
    ),
    lesson="A leak test changes everything before the start, looks at everything after it, and accepts only equality.",
)
