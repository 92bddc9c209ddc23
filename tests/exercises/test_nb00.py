from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mamba_lab.exercises.nb00 import check_leaks, check_valid_ratio
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def loop_ratio(lengths):
    longest, real = 0, 0
    for n in lengths:
        longest, real = max(longest, n), real + n
    return real / (longest * len(lengths))


@pytest.mark.parametrize(
    "valid_ratio",
    [
        lambda lengths: sum(lengths) / (len(lengths) * max(lengths)),
        lambda lengths: np.mean(lengths) / np.max(lengths),
        lambda lengths: (torch.tensor(lengths) / max(lengths)).mean(),
        loop_ratio,
    ],
)
def test_valid_ratio_is_right(valid_ratio):
    assert_solution_passes(check_valid_ratio, valid_ratio)


def test_valid_ratio_wrong_answers():
    def sorts(lengths):
        lengths.sort()
        return sum(lengths) / (len(lengths) * lengths[-1])

    assert_stub_fails(check_valid_ratio, stub)
    assert_wrong_answers(
        check_valid_ratio,
        {
            "padding rate instead": lambda lengths: sum(max(lengths) - n for n in lengths) / all_places(lengths),
            "number of documents forgotten": lambda lengths: sum(lengths) / max(lengths),
            "percent instead of a share": lambda lengths: round(100 * loop_ratio(lengths), 6),
            "upside down": lambda lengths: all_places(lengths) / sum(lengths),
            "mean over sum": lambda lengths: np.mean(lengths) / np.sum(lengths),
            "longest over sum": lambda lengths: max(lengths) / sum(lengths),
            "mean length": lambda lengths: sum(lengths) / len(lengths),
            "rounded down": lambda lengths: sum(lengths) // (len(lengths) * max(lengths)),
            "changes its input": sorts,
            "wrong type": lambda lengths: f"{loop_ratio(lengths):.2f}",
            "wrong values": lambda lengths: round(loop_ratio(lengths), 2),
        },
    )


def all_places(lengths):
    return len(lengths) * max(lengths)


def one_by_one(predict, ids, start):
    before = predict(ids)
    for place in range(start):
        other = list(ids)
        other[place] += 7
        after = predict(other)
        for t in range(start, len(ids)):
            for x, y in zip(before[t], after[t], strict=True):
                if x != y:
                    return True
    return False


def zeros(predict, ids, start):
    return bool((np.array(predict([0] * start + ids[start:])) != np.array(predict(ids)))[start:].any())


def random_tokens(predict, ids, start):
    other = [random.Random(i).choice([k for k in range(100) if k != i]) for i in ids[:start]]
    return predict(other + ids[start:])[start:] != predict(ids)[start:]


def tensors(predict, ids, start):
    ids = torch.tensor(ids)
    other = ids.clone()
    other[:start] = 99 - other[:start]
    return not torch.equal(torch.tensor(predict(ids))[start:], torch.tensor(predict(other))[start:])


@pytest.mark.parametrize("leaks", [one_by_one, zeros, random_tokens, tensors])
def test_leaks_is_right(leaks):
    assert_solution_passes(check_leaks, leaks)


def changed(ids, start):
    return [i + 1 if t < start else i for t, i in enumerate(ids)]


def compare(part):
    """Leak tests that change all of A and differ in what they compare."""
    return lambda predict, ids, start: part(predict(ids), predict(changed(ids, start)), start)


def one_token(place):
    def leaks(predict, ids, start):
        other = list(ids)
        other[place(start)] = 77
        return predict(ids)[start:] != predict(other)[start:]

    return leaks


def in_the_given_list(predict, ids, start):
    before = predict(ids)
    for t in range(start):
        ids[t] += 1
    return predict(ids)[start:] != before[start:]


def test_leaks_wrong_answers():
    assert_stub_fails(check_leaks, stub)
    assert_wrong_answers(
        check_leaks,
        {
            "removes A instead of changing it": lambda predict, ids, start: (
                predict(ids[start:]) != predict(ids)[start:]
            ),
            "compares document A with itself too": compare(lambda x, y, start: x != y),
            "always says yes": lambda predict, ids, start: True,
            "compares with a tolerance": compare(lambda x, y, start: not np.allclose(x[start:], y[start:])),
            "changes the last token of A only": one_token(lambda start: start - 1),
            "looks at the first output only": compare(lambda x, y, start: x[start] != y[start]),
            "changes the first token of A only": one_token(lambda start: 0),
            "skips the first output of B": compare(lambda x, y, start: x[start + 1 :] != y[start + 1 :]),
            "looks at the last output only": compare(lambda x, y, start: x[-1] != y[-1]),
            "puts A in another order": lambda predict, ids, start: (
                predict(sorted(ids[:start], reverse=True) + ids[start:])[start:] != predict(ids)[start:]
            ),
            "one token and one output": lambda predict, ids, start: predict([77, *ids[1:]])[-1] != predict(ids)[-1],
            "the first token only, and a tolerance": lambda predict, ids, start: (
                not np.allclose(predict([ids[0] + 1, *ids[1:]])[start:], predict(ids)[start:])
            ),
            "compares the winners only": compare(
                lambda x, y, start: np.argmax(x, axis=1)[start:].tolist() != np.argmax(y, axis=1)[start:].tolist()
            ),
            "always says no": lambda predict, ids, start: predict(ids)[start:] != predict(list(ids))[start:],
            "changes its input": in_the_given_list,
            "raises": lambda predict, ids, start: predict(ids[:start] * 2 + ids[start:])[len(ids)] > 0,
        },
    )


@pytest.mark.parametrize(
    "same",
    [
        lambda x, y: np.allclose(x, y),
        lambda x, y: np.max(np.abs(np.subtract(x, y))) < 1e-6,
        lambda x, y: np.max(np.abs(np.subtract(x, y))) < 1e-9,
        lambda x, y: np.allclose(x, y, rtol=1e-6, atol=0),
        lambda x, y: np.array_equal(np.round(x, 3), np.round(y, 3)),
    ],
)
def test_every_kind_of_tolerance_misses_a_faint_leak(same):
    result = check_leaks.run(compare(lambda x, y, start: not same(x[start:], y[start:])))
    assert result.mistake == "compares with a tolerance"


def test_the_card_names_the_black_box():
    text = check_leaks.run(compare(lambda x, y, start: x[start] != y[start])).card.to_text()
    assert "predict = speaks_up_at_the_end" in text
    assert "start = 3" in text


def test_black_boxes_hold_what_their_names_say():
    """``expected`` comes from a test that changes tokens one by one, by several amounts."""
    for inputs in check_leaks.cases:
        predict, ids, start = inputs.values()
        heard = {
            t
            for place in range(start)
            for step in (-5, 1, 40)
            for t, (x, y) in enumerate(
                zip(predict(ids), predict([*ids[:place], ids[place] + step, *ids[place + 1 :]]), strict=True)
            )
            if x != y and t >= start
        }
        quiet = predict.__name__ in ("hears_nothing", "hears_itself", "knows_its_place", "forgets_at_2")
        assert bool(heard) is not quiet, predict.__name__
