from __future__ import annotations

import numpy as np
import pytest
import torch

from mamba_lab.exercises.nb01 import check_choose, check_doubling, check_remember_each
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


@pytest.mark.parametrize(
    "choose",
    [
        lambda xs: ([1, 1, 1, 1, 1], [0, 0, 1, 0, 0]),
        lambda xs: ([1, 1, 0, 1, 1], [1, 1, 1, 0, 0]),
        lambda xs: [(7, -3, 0, 1, 1), (2, 2, 1, 0, 0)],
        lambda xs: ([1, 1, 0, 0.5, 2], [1, 1, 1, 0, 0]),
        lambda xs: ([1, 0, 0, 0, 0], [0, 0, 0, 0, xs[2] / xs[4]]),
        lambda xs: ([1.0] * 5, [xs[2] / xs[0], 0, 0, 0, 0]),
        lambda xs: (np.ones(5), np.eye(5)[2]),
        lambda xs: torch.stack([torch.ones(5), torch.eye(5)[2]]),
    ],
)
def test_choose_is_right(choose):
    assert_solution_passes(check_choose, choose)


def test_choose_wrong_answers():
    assert_stub_fails(check_choose, stub)
    assert_wrong_answers(
        check_choose,
        {
            "the number itself": lambda xs: xs[2],
            "a and b swapped": lambda xs: ([0, 0, 1, 0, 0], [1, 1, 1, 1, 1]),
            "the sum of everything": lambda xs: ([1] * 5, [1] * 5),
            "erased later": lambda xs: ([0, 0, 0, 0, 0], [0, 0, 1, 0, 0]),
            "kept what came before": lambda xs: ([1] * 5, [1, 1, 1, 0, 0]),
            "let in what came later": lambda xs: ([1, 1, 0, 1, 1], [1] * 5),
            "one a for all": lambda xs: ([0.5] * 5, [0, 0, 1, 0, 0]),
            "wrong answer": lambda xs: ([0, 0, 1], [0, 0, 1]),
            "raises": lambda xs: ([1] * 5, [0, 0, 1 / 0, 0, 0]),
        },
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1, 1, 1, 1, 1], "return two lists"),
        (([1] * 5, [0, 0, 1, 0]), "b has 4 numbers, expected 5"),
        ((["1"] * 5, [0] * 5), "a holds something that is not a number"),
        (([1] * 5, [0] * 5), "the states are [0, 0, 0, 0, 0]. The last one must be 4."),
        (([1] * 5, [float("nan")] * 5), "The last one must be 4."),
        (([1, 1, 1, 1, 1], [0, 0, 1.001, 0, 0]), "the states are"),
    ],
)
def test_choose_says_what_is_wrong_with_an_answer(answer, said):
    result = check_choose.run(lambda xs: answer)
    assert result.mistake == "wrong answer"
    assert said in result.message


def test_choose_takes_no_list_made_for_one_case():
    assert not check_choose.run(lambda xs: ([1, 1, 0, 0, 0], [0, 0, 0, 0, 4 / 5])).ok


def by_masks(a, b, position):
    states, h = [], 0
    for a_t, b_t, p in zip(a, b, position, strict=True):
        h = a_t * (p > 0) * h + b_t
        states.append(h)
    return states


def each_alone(a, b, position):
    states = np.array(b, dtype=float)
    for t in range(len(b)):
        if position[t]:
            states[t] += a[t] * states[t - 1]
    return states


def by_pieces(a, b, position):
    out, starts = [], [t for t, p in enumerate(position) if p == 0]
    for start, stop in zip(starts, [*starts[1:], len(position)], strict=True):
        h = torch.tensor(b[start])
        out.append(h)
        for t in range(start + 1, stop):
            h = a[t] * h + b[t]
            out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("remember_each", [by_masks, each_alone, by_pieces])
def test_remember_each_is_right(remember_each):
    assert_solution_passes(check_remember_each, remember_each)


def recurrence(body):
    """``body(h, a_t, b_t, p)`` gives (state to show, state to carry on)."""

    def f(a, b, position):
        h, states = 0.0, []
        for t in range(len(b)):
            shown, h = body(h, a[t], b[t], position[t])
            states.append(shown)
        return states

    return f


def no_reset(h, a, b, p):
    return (a * h + b,) * 2


def forgets_after_the_first(h, a, b, p):
    h = a * h + b
    return h, 0.0 if p == 0 else h


def wipes_the_first(h, a, b, p):
    return (0.0 if p == 0 else a * h + b,) * 2


def wrong_way_round(h, a, b, p):
    if p:
        h = 0
    return (a * h + b,) * 2


def looks_ahead(a, b, position):
    h, states = 0.0, []
    for t in range(len(b)):
        if t + 1 < len(b) and position[t + 1] == 0:
            h = 0.0
        h = a[t] * h + b[t]
        states.append(h)
    return states


def ends(a, b, position):
    states = by_masks(a, b, position)
    return [h for t, h in enumerate(states) if t + 1 == len(states) or position[t + 1] == 0]


def test_remember_each_wrong_answers():
    assert_stub_fails(check_remember_each, stub)
    assert_wrong_answers(
        check_remember_each,
        {
            "no reset": recurrence(no_reset),
            "reset one token late": recurrence(forgets_after_the_first),
            "reset one token early": looks_ahead,
            "drops the first token's own input": recurrence(wipes_the_first),
            "resets everywhere but at a start": recurrence(wrong_way_round),
            "only the last states": ends,
            "wrong type": lambda a, b, position: by_masks(a, b, position)[-1],
            "raises": lambda a, b, position: [a[t + 1] * b[t] for t in range(len(b))],
        },
    )


def slices(a, b):
    a, b, reach = np.array(a), np.array(b), 1
    kept = [b.copy()]
    while reach < len(b):
        b[reach:] += a[reach:] * b[:-reach].copy()
        a[reach:] = a[reach:] * a[:-reach]
        kept.append(b.copy())
        reach *= 2
    return kept


def pairs(a, b, order=lambda left, right: (left, right)):
    state = list(zip(a, b, strict=True))
    kept = [[b for _, b in state]]
    for k in range((len(b) - 1).bit_length()):
        joined = []
        for i, pair in enumerate(state):
            if i >= 2**k:
                (a1, b1), (a2, b2) = order(state[i - 2**k], pair)
                pair = a2 * a1, a2 * b1 + b2
            joined.append(pair)
        state = joined
        kept.append([b for _, b in state])
    return kept


@pytest.mark.parametrize("doubling", [slices, pairs])
def test_doubling_is_right(doubling):
    assert_solution_passes(check_doubling, doubling)


def test_doubling_ends_in_the_states():
    for inputs in check_doubling.cases:
        a, b = inputs.values()
        assert slices(a, b)[-1].tolist() == pytest.approx(by_masks(a, b, range(len(b))))


def rounds(body, grow=lambda reach: 2 * reach):
    def f(a, b):
        a, b, reach = list(a), list(b), 1
        kept = [list(b)]
        while reach < len(b):
            a, b = body(a, b, reach)
            kept.append(list(b))
            reach = grow(reach)
        return kept

    return f


def right_round(a, b, reach):
    return (
        [x if i < reach else x * a[i - reach] for i, x in enumerate(a)],
        [y if i < reach else a[i] * b[i - reach] + y for i, y in enumerate(b)],
    )


def a_first(a, b, reach):
    a = [x if i < reach else x * a[i - reach] for i, x in enumerate(a)]
    return a, [y if i < reach else a[i] * b[i - reach] + y for i, y in enumerate(b)]


def left_to_right(a, b, reach):
    for i in range(reach, len(b)):
        b[i] += a[i] * b[i - reach]
        a[i] *= a[i - reach]
    return a, b


def test_doubling_wrong_answers():
    assert_stub_fails(check_doubling, stub)
    assert_wrong_answers(
        check_doubling,
        {
            "a renewed before b": rounds(a_first),
            "works in place": rounds(left_to_right),
            "left and right exchanged": lambda a, b: pairs(a, b, lambda left, right: (right, left)),
            "reach grows by one": rounds(right_round, grow=lambda reach: reach + 1),
            "a round too few": lambda a, b: pairs(a, b)[: max(1, (len(b) - 1).bit_length())],
            "only the states": lambda a, b: by_masks(a, b, range(len(b))),
            "without the start": lambda a, b: pairs(a, b)[1:],
        },
    )
