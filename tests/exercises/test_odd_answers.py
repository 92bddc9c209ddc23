"""Answers that are huge, endless, hostile or of an unusual kind: a check still ends soon and says what is wrong."""

from __future__ import annotations

import itertools
import time
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from mamba_lab.exercises import Exercise, case
from mamba_lab.exercises.card import show_value
from mamba_lab.exercises.compare import MOST_ITEMS, AnswerTooLarge, differences, plain, same
from mamba_lab.exercises.nb00 import check_valid_ratio
from mamba_lab.exercises.nb01 import check_choose, check_doubling
from mamba_lab.exercises.nb03 import check_budget_batches
from mamba_lab.exercises.running import call

CHECKS = [check_valid_ratio, check_choose, check_budget_batches]


class NoFloat(float):
    def __float__(self) -> float:
        raise RuntimeError("no float")


class BadGetattr:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Exits:
    """Leaves the interpreter whenever it is compared or shown."""

    def __eq__(self, other: object) -> bool:
        raise SystemExit

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise SystemExit


class EndlessWhenShown:
    def __repr__(self) -> str:
        while True:
            pass


class ShownOnce:
    """Its first showings work: what the check has tried may fail later."""

    left = 2

    def __repr__(self) -> str:
        self.left -= 1
        if self.left < 0:
            raise SystemExit
        return "shown"


def nested(depth: int) -> list:
    out: list = []
    for _ in range(depth):
        out = [out]
    return out


def cycle() -> list:
    out: list = []
    out.append(out)
    return out


def doubled(depth: int) -> list:
    """2**depth items in the memory of depth lists."""
    out: list = [0]
    for _ in range(depth):
        out = [out, out]
    return out


ODD = {
    "huge int": lambda: 10**400,
    "very huge int": lambda: 1 << 10**6,
    "huge fraction": lambda: Fraction(10**400),
    "signalling NaN": lambda: Decimal("sNaN"),
    "no float": lambda: NoFloat(3.0),
    "list of huge": lambda: [10**400] * 5,
    "pair of huge": lambda: ([10**400] * 5, [10**400] * 5),
    "nested generators": lambda: ((1 for _ in range(5)), (1 for _ in range(5))),
    "bad getattr": BadGetattr,
    "list of bad getattr": lambda: [BadGetattr()],
    "exits": Exits,
    "list of exits": lambda: [Exits()] * 3,
    "shown once": ShownOnce,
    "deep": lambda: nested(900),
    "cycle": cycle,
    "doubled": lambda: doubled(60),
    "long list": lambda: [0] * 300_000,
    "list just within": lambda: [0] * (MOST_ITEMS - 1),
    "table just within": lambda: [[0] * 99 for _ in range(999)],
    "long array": lambda: np.zeros(10**6),
    "array without memory": lambda: np.broadcast_to(np.float32(1), (10**6, 10**6)),
    "long tensor": lambda: torch.zeros(10**6),
    "long string": lambda: "x" * 10**7,
    "big set": lambda: set(range(10**5)),
    "long range": lambda: range(10**30),
    "repeat": lambda: itertools.repeat(0),
    "count": itertools.count,
    "endless in a tuple": lambda: (itertools.repeat(0), itertools.repeat(0)),
    "meta tensor": lambda: torch.zeros(3, device="meta"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.title)
def test_every_check_ends_soon_with_a_card(check: Exercise, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    result = check(lambda *inputs: ODD[name]())
    assert time.monotonic() - began < 5
    assert not result.ok
    assert result.message
    assert result.mistake != "not solved"
    out = capsys.readouterr().out
    assert out.startswith("✗")
    assert len(out) < 6000


def test_a_value_that_is_shown_for_ever_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    check = Exercise("One", reference=lambda x: x, cases=[case(x=1)], seconds=0.2)
    result = check(lambda x: EndlessWhenShown())
    assert result.mistake == "unreadable"
    assert "could not be read" in capsys.readouterr().out


def test_the_outer_clock_goes_on_after_an_inner_one() -> None:
    from mamba_lab.exercises.running import TimeIsUp, deadline

    def outlasts() -> None:
        with deadline(0.3):
            call(lambda: None, {}, 5)
            while True:
                pass

    began = time.monotonic()
    with pytest.raises(TimeIsUp):
        outlasts()
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("answer", ["long list", "long array", "repeat", "doubled", "long range"])
def test_what_is_too_large_has_the_wrong_length(answer: str) -> None:
    result = check_doubling.run(lambda a, b: ODD[answer]())
    assert result.mistake == "wrong length"
    assert "more than 100,000 items, expected 1." in result.message


def test_a_function_that_is_no_function_may_be_endless() -> None:
    assert check_valid_ratio.run(itertools.repeat(0)).mistake == "not a function"


def test_a_meta_tensor_is_no_stub() -> None:
    result = check_valid_ratio.run(lambda lengths: torch.zeros((), device="meta"))
    assert result.mistake == "unreadable"
    assert "values cannot be read" in result.message


def test_an_input_made_huge_is_a_changed_input() -> None:
    def fills(lengths: list[int]) -> float:
        answer = sum(lengths) / (len(lengths) * max(lengths))
        lengths.extend([0] * MOST_ITEMS)
        return answer

    def ties(lengths: list[Any]) -> float:
        answer = sum(lengths) / (len(lengths) * max(lengths))
        lengths[0] = lengths
        return answer

    assert check_valid_ratio.run(fills).mistake == "changes its input"
    assert check_valid_ratio.run(ties).mistake == "changes its input"


def test_differences_stop_at_the_first_few() -> None:
    assert differences([0] * 9, [1] * 9, most=2) == [(0,), (1,)]
    assert len(differences([0] * 1000, [1] * 1000)) == 100
    check = Exercise("Many", reference=lambda n: [1] * n, cases=[case(n=500)])
    assert "100 or more values differ, the first at [0]" in check.run(lambda n: [0] * n).message


def test_the_limit_counts_items_of_all_levels() -> None:
    assert len(plain([0] * MOST_ITEMS)) == MOST_ITEMS
    for value in ([0] * (MOST_ITEMS + 1), [[0] * MOST_ITEMS], [np.zeros(MOST_ITEMS)]):
        with pytest.raises(AnswerTooLarge):
            plain(value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_answer_is_judged_by_its_own_precision(dtype: torch.dtype) -> None:
    assert check_valid_ratio.run(lambda lengths: (torch.tensor(lengths, dtype=dtype) / max(lengths)).mean()).ok
    assert not check_valid_ratio.run(lambda lengths: torch.tensor(0.9 * sum(lengths) / max(lengths), dtype=dtype)).ok


def test_precision_of_arrays() -> None:
    assert same(np.float16(1 / 3), 1 / 3)
    assert same(np.array([1 / 3], np.float16), [1 / 3])
    assert not same(float(np.float16(1 / 3)), 1 / 3), "a Python float has no excuse"
    assert not same(np.float16(0.34), 1 / 3)
    assert not same(np.float64(np.float16(1 / 3)), 1 / 3)


NUMBERS = [float, Fraction, Decimal, np.float16, np.float32, torch.tensor]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_choice_may_be_of_any_real_numbers(number: Any) -> None:
    def choose(xs: list[float]) -> Any:
        return [number(1) for _ in xs], [number(int(t == 2)) for t in range(len(xs))]

    assert check_choose.run(choose).ok


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_choice_in_low_precision_may_be_rounded(dtype: Any) -> None:
    """b = x / the last number, in the dtype: the last state is wrong by its rounding."""

    def choose(xs: list[float]) -> Any:
        return np.zeros(5, dtype), np.array([0, 0, 0, 0, xs[2] / xs[4]], dtype)

    assert check_choose.run(choose).ok
    assert not check_choose.run(lambda xs: (np.zeros(5, dtype), np.array([0, 0, 0, 0, 0.9], dtype))).ok


def test_a_choice_of_numbers_that_are_too_large_is_told_so() -> None:
    result = check_choose.run(lambda xs: ([10**400] * 5, [1] * 5))
    assert result.message == "a holds a number that is too large."
    assert check_choose.run(lambda xs: ([1] * 5, ["1"] * 5)).message == "b holds something that is not a number."
    assert check_choose.run(lambda xs: ([1] * 5, [1j] * 5)).message == "b holds something that is not a number."


@pytest.mark.parametrize(
    "form",
    [
        deque,
        lambda batches: [iter(batch) for batch in batches],
        lambda batches: (deque(batch) for batch in batches),
        lambda batches: dict(enumerate(batches)).values(),
    ],
)
def test_batches_may_come_in_any_sequence(form: Any) -> None:
    assert check_budget_batches.run(lambda *inputs: form(check_budget_batches.reference(*inputs))).ok


def helper(x: int) -> int:
    return x // 0


def listed(x: int) -> list[int]:
    return [x // k for k in (0,)]


def test_lines_are_counted_in_the_function_that_holds_them() -> None:
    def asks(x: int) -> int:
        y = x
        return helper(y)

    def comprehends(x: int) -> list[int]:
        y = x
        return [y // k for k in (0,)]

    def asks_for_a_list(x: int) -> list[int]:
        return listed(x)

    assert call(asks, {"x": 1}, 1).line == "line 2 of helper: return x // 0"
    assert call(comprehends, {"x": 1}, 1).line == "line 3 of comprehends: return [y // k for k in (0,)]"
    assert call(asks_for_a_list, {"x": 1}, 1).line == "line 2 of listed: return [x // k for k in (0,)]"
    assert call(lambda x: x // 0, {"x": 1}, 1).line.startswith("line 1 of <lambda>: ")


def test_long_values_are_shown_by_their_ends() -> None:
    text = show_value([[7] * 1000, *range(10**5)])
    assert text.startswith("[[7, 7, ")
    assert text.endswith("99998, 99999]")
    assert len(text) < 250
    assert show_value("a" * 10**6 + "b").endswith("ab'")
    assert show_value(10**5000) == "a number of about 5,000 digits"
    assert show_value(set(range(1000))) == "a set of 1,000"


def test_the_answer_of_an_exercise_with_many_is_hidden_before_the_first_try() -> None:
    assert "one that fits" not in check_choose.run(lambda xs: None).card.to_text()
    assert "one that fits" in check_choose.run(lambda xs: ([1] * 5, [1] * 5)).card.to_text()
