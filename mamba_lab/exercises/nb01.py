"""Checks for notebook 01: choose what a state keeps, restart it for each sequence, compute it by doubling."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from mamba_lab.exercises.checking import Exercise, Mistake, case
from mamba_lab.exercises.compare import Rounded

_WANTED = 2  # the third number


def _states(a: list[float], b: list[float], xs: list[float]) -> list[float]:
    h, states = 0.0, []
    for a_t, b_t, x in zip(a, b, xs, strict=True):
        h = a_t * h + b_t * x
        states.append(h)
    return states


def _ends_at(a: list[float], b: list[float], xs: list[float], wanted: float) -> bool:
    """Whether the last state is ``wanted``: exact but for the rounding of a choice such as b = wanted / x."""
    rtol = max(number.rtol if isinstance(number, Rounded) else 1e-9 for number in (*a, *b))
    return math.isclose(_states(a, b, xs)[-1], wanted, rel_tol=rtol)


def _choose(xs: list[float]) -> tuple[list[float], list[float]]:
    return [1.0] * len(xs), [1.0 if t == _WANTED else 0.0 for t in range(len(xs))]


def _accept_choice(answer: Any, xs: list[float]) -> str | None:
    if not (isinstance(answer, list) and len(answer) == 2 and all(isinstance(part, list) for part in answer)):
        return "return two lists: return a, b."
    for name, part in zip("ab", answer, strict=True):
        if len(part) != len(xs):
            return f"{name} has {len(part)} numbers, expected {len(xs)}: one for each number in xs."
        if any(isinstance(number, complex) or not isinstance(number, numbers.Number) for number in part):
            return f"{name} holds something that is not a number."
        if not _fits_a_float(part):
            return f"{name} holds a number that is too large."
    a, b = (_floats(part) for part in answer)
    if _ends_at(a, b, xs, xs[_WANTED]):
        return None
    return f"the states are {_shown(_states(a, b, xs))}. The last one must be {xs[_WANTED]:g}."


def _floats(part: list[Any]) -> list[float]:
    """Fractions and decimals as floats; a float stays, with the precision that it came in. A string raises."""
    return [number if isinstance(number, float) else float(number + 0) for number in part]


def _fits_a_float(part: list[Any]) -> bool:
    try:
        return bool(_floats(part))
    except OverflowError:
        return False


def _shown(numbers: list[float]) -> str:
    return "[" + ", ".join(f"{number:.4g}" for number in numbers) + "]"


def _choice(condition: Callable[[list[float], list[float], list[float]], bool]) -> Callable[..., bool]:
    """A mistake's ``when`` for answers that are two lists; others raise, which says no."""
    return lambda answer, xs: condition(_floats(answer[0]), _floats(answer[1]), xs)


check_choose = Exercise(
    "Keep the third number",
    reference=_choose,
    accept=_accept_choice,
    cases=[
        case(xs=[3.0, 1.0, 4.0, 1.0, 5.0]),
        case(xs=[2.0, 7.0, 1.0, 8.0, 3.0]),
        case(xs=[-1.0, 6.0, -2.5, 4.0, 9.0]),
    ],
    mistakes=[
        Mistake(
            "the number itself",
            "This is the number that the state must end at. Return what leads there: the two lists a and b.",
            when=lambda answer, xs: answer == xs[_WANTED],
        ),
        Mistake(
            "a and b swapped",
            "Exchanged, the two lists are right. Return a first: how much of the old state stays.",
            when=_choice(lambda a, b, xs: _ends_at(b, a, xs, xs[_WANTED])),
        ),
        Mistake(
            "the sum of everything",
            "Every number comes in and nothing goes out, so the third one drowns in the sum.",
            when=_choice(lambda a, b, xs: set(a) == {1} and set(b) == {1}),
        ),
        Mistake(
            "erased later",
            "The third number came in, and an a of 0 after it wipes it out. Behind the third number a must be 1.",
            when=_choice(lambda a, b, xs: b[_WANTED] != 0 and 0 in a[_WANTED + 1 :]),
        ),
        Mistake(
            "kept what came before",
            "Nothing comes in after the third number, but the state still holds a part of the first two. Let it go "
            "with an a of 0 at the third number, or do not let it in.",
            when=_choice(lambda a, b, xs: set(a[_WANTED:]) == {1} and not any(b[_WANTED + 1 :]) and any(b[:_WANTED])),
        ),
        Mistake(
            "let in what came later",
            "After the third number the state is right. Then later numbers come in: their b must be 0.",
            when=_choice(lambda a, b, xs: _ends_at(a[:3], b[:3], xs[:3], xs[_WANTED]) and any(b[_WANTED + 1 :])),
        ),
        Mistake(
            "one a for all",
            "With one a between 0 and 1 the past fades at one speed, the third number too. Choose a for each number.",
            when=_choice(lambda a, b, xs: len(set(a)) == 1 and 0 < a[0] < 1),
        ),
    ],
    hints=(
        "Look at the third number first: it must come in whole, so b is 1 there.",
        "What must the fourth and the fifth number do? The state passes them by: a is 1 and b is 0.",
        "The first two must not be left in the state. Set their b to 0, or set a to 0 at the third number.",
    ),
    lesson="With its own a and b for each number, one state can keep one number and pass the rest by.",
)


Step = Callable[[float, float, float, bool], float]


def _running(step: Step) -> Callable[[list[float], list[float], list[int]], list[float]]:
    """The recurrence whose next state is ``step(h, a, b, whether a sequence starts)``."""

    def states_of(a: list[float], b: list[float], position: list[int]) -> list[float]:
        h, states = 0.0, []
        for a_t, b_t, place in zip(a, b, position, strict=True):
            h = step(h, a_t, b_t, place == 0)
            states.append(h)
        return states

    return states_of


_remember_each = _running(lambda h, a_t, b_t, first: (0.0 if first else a_t * h) + b_t)


def _reset_late(a: list[float], b: list[float], position: list[int]) -> list[float]:
    behind = [0 if t and position[t - 1] == 0 else 1 for t in range(len(position))]
    return _remember_each(a, b, behind)


def _reset_early(a: list[float], b: list[float], position: list[int]) -> list[float]:
    before = [0 if t + 1 < len(position) and position[t + 1] == 0 else 1 for t in range(len(position))]
    return _remember_each(a, b, before)


check_remember_each = Exercise(
    "A recurrence that restarts",
    reference=_remember_each,
    cases=[
        case(a=[0.5], b=[8.0], position=[0]),
        case(a=[0.5, 0.5], b=[8.0, 4.0], position=[0, 1]),
        case(a=[0.5, 0.5], b=[8.0, 4.0], position=[0, 0]),
        case(a=[0.5] * 4, b=[8.0, 4.0, 2.0, 1.0], position=[0, 1, 0, 1]),
        case(a=[0.9, 0.5, 0.25, 0.8, 1.0, 0.1], b=[1.0, -2.0, 3.0, 5.0, -4.0, 2.0], position=[0, 1, 2, 0, 0, 1]),
        case(
            a=[0.5, 1.0, 0.25, 0.5, 0.75, 0.5, 1.0, 0.5, 0.25, 0.5, 1.0, 0.75, 0.5, 0.25, 0.5, 1.0],
            b=[3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0, 5.0, 8.0, 9.0, 7.0, 9.0, 3.0],
            position=[0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6],
        ),
    ],
    mistakes=[
        Mistake(
            "no reset",
            "The state runs on from one sequence into the next. Where position is 0, nothing of it may stay.",
            wrong=_running(lambda h, a_t, b_t, first: a_t * h + b_t),
        ),
        Mistake(
            "reset one token late",
            "The first token still hears the sequence before, and the second no longer hears the first. Drop the old "
            "state before the first token comes in, not after.",
            wrong=_reset_late,
        ),
        Mistake(
            "reset one token early",
            "The state goes at the last token of a sequence, which loses its own past. Drop it one token later.",
            wrong=_reset_early,
        ),
        Mistake(
            "drops the first token's own input",
            "At a start only the old state goes. The first token brings its own b: there the state is b.",
            wrong=_running(lambda h, a_t, b_t, first: 0.0 if first else a_t * h + b_t),
        ),
        Mistake(
            "resets everywhere but at a start",
            "The condition is the wrong way round: position is 0 at a start and more than 0 elsewhere.",
            wrong=_running(lambda h, a_t, b_t, first: (a_t * h if first else 0.0) + b_t),
        ),
        Mistake(
            "only the last states",
            "This is one state for each sequence, its last. Return the state after every token.",
            wrong=lambda a, b, position: [
                h
                for h, following in zip(_remember_each(a, b, position), [*position[1:], 0], strict=True)
                if following == 0
            ],
        ),
    ],
    hints=(
        "Write the plain recurrence first: h = a_t * h + b_t, and collect every h.",
        "Where position is 0, what comes from the left must not count. Which part of the rule comes from the left?",
        "At a start treat a_t as 0. Then h = 0 * h + b_t: the old state is gone and the token's own b stays.",
    ),
    lesson="A zero in place of a at each start is all that the recurrence needs to keep sequences apart.",
)


def _combined(reach: int, a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
    """Each pair joined with the one that ends ``reach`` places to its left."""
    joined_a = [a[i] * a[i - reach] if i >= reach else a[i] for i in range(len(a))]
    joined_b = [a[i] * b[i - reach] + b[i] if i >= reach else b[i] for i in range(len(b))]
    return joined_a, joined_b


def _renewed_a(reach: int, a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
    joined_a, _ = _combined(reach, a, b)
    return joined_a, [joined_a[i] * b[i - reach] + b[i] if i >= reach else b[i] for i in range(len(b))]


def _in_place(reach: int, a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
    a, b = list(a), list(b)
    for i in range(reach, len(a)):
        a[i], b[i] = a[i] * a[i - reach], a[i] * b[i - reach] + b[i]
    return a, b


def _sides_exchanged(reach: int, a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
    joined_a, _ = _combined(reach, a, b)
    return joined_a, [a[i - reach] * b[i] + b[i - reach] if i >= reach else b[i] for i in range(len(b))]


def _doubling(
    a: list[float],
    b: list[float],
    one_round: Callable[..., tuple[list[float], list[float]]] = _combined,
    grow: Callable[[int], int] = lambda reach: 2 * reach,
) -> list[list[float]]:
    reach, kept = 1, [b]
    while reach < len(b):
        a, b = one_round(reach, a, b)
        kept.append(b)
        reach = grow(reach)
    return kept


check_doubling = Exercise(
    "The states by doubling",
    reference=lambda a, b: _doubling(a, b),
    cases=[
        case(a=[0.5], b=[3.0]),
        case(a=[0.5, 0.25], b=[8.0, 4.0]),
        case(a=[0.5, 0.25, 2.0], b=[8.0, 4.0, 1.0]),
        case(a=[0.5, 0.5, 0.5, 0.5], b=[8.0, 4.0, 2.0, 1.0]),
        case(a=[0.5, 2.0, 0.0, 1.0, 0.25], b=[3.0, 1.0, 4.0, 1.0, 5.0]),
        case(a=[0.9, 0.5, 0.25, 0.8, 1.0, 0.1, 0.7, 0.3, 0.6], b=[1.0, -2.0, 3.0, 5.0, -4.0, 2.0, 6.0, 8.0, 7.0]),
    ],
    mistakes=[
        Mistake(
            "a renewed before b",
            "The new b needs the old a. Renew both at once, or b first.",
            wrong=lambda a, b: _doubling(a, b, _renewed_a),
        ),
        Mistake(
            "works in place",
            "A pair takes in its left neighbour after that one was renewed in the same round. All pairs of a round "
            "read the round before: work on a copy.",
            wrong=lambda a, b: _doubling(a, b, _in_place),
        ),
        Mistake(
            "left and right exchanged",
            "The step on the right comes later, so its a fades what the left one brings: a2 * b1 + b2.",
            wrong=lambda a, b: _doubling(a, b, _sides_exchanged),
        ),
        Mistake(
            "reach grows by one",
            "After round k each pair covers 2**k places. The next neighbour ends that far to the left: double the "
            "reach.",
            wrong=lambda a, b: _doubling(a, b, grow=lambda reach: reach + 1),
        ),
        Mistake(
            "a round too few",
            "The last places have not yet heard the first. Go on while the reach is less than the length.",
            wrong=lambda a, b: _doubling(a, b)[:-1] if len(b) > 1 else _doubling(a, b),
        ),
        Mistake(
            "only the states",
            "This is the last round. Return a list of lists: b before the first round, then b after each.",
            wrong=lambda a, b: _doubling(a, b)[-1],
        ),
        Mistake(
            "without the start",
            "The list begins with b as it is before the first round.",
            wrong=lambda a, b: _doubling(a, b)[1:],
        ),
    ],
    hints=(
        "Start with reach = 1 and go on while reach < len(b). In each round, places below the reach stay as they are.",
        "At place i: the new b is a[i] * b[i - reach] + b[i], the new a is a[i] * a[i - reach], both from old values.",
        "Build new lists in each round, append the new b to the result, then double the reach.",
    ),
    lesson="Every place of a round can be computed at the same time, and the rounds grow with the logarithm only.",
)
