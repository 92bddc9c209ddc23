"""Three lines test a checker:

The solution passes, the stub fails, named wrong answers each fail with their own message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mamba_lab.exercises.checking import NOT_SOLVED, CheckResult, Exercise

_FEWEST = 3


def assert_solution_passes(check: Exercise, f: Callable[..., Any]) -> None:
    """``f`` is right on every case."""
    result = check.run(f)
    assert result.ok, f"{check.title}: the solution fails.\n{result.card.to_text()}"


def assert_stub_fails(check: Exercise, stub: Callable[..., Any]) -> None:
    """The untouched stub gets the fixed "Not solved yet" card, twice the same."""
    first, second = check.run(stub), check.run(stub)
    assert first.mistake == NOT_SOLVED, f"{check.title}: the stub gets {first.mistake!r}, expected {NOT_SOLVED!r}"
    assert first.card.to_text() == second.card.to_text()
    assert first.card.to_html() == second.card.to_html()


def assert_wrong_answers(check: Exercise, wrong: Mapping[str, Callable[..., Any]]) -> None:
    """Each function fails under the name it stands under, with a message that no other has; at least three of them.

    The names are those of the exercise's mistakes, or of the general ones ("raises", "endless", "changes its input",
    "wrong values", ...); every mistake of the exercise must occur.
    """
    assert len(wrong) >= _FEWEST, f"{check.title}: {len(wrong)} wrong answers, expected at least {_FEWEST}"
    results: dict[str, CheckResult] = {}
    for name, f in wrong.items():
        result = results[name] = check.run(f)
        assert not result.ok, f"{check.title}: the wrong answer {name!r} passes"
        assert result.mistake == name, (
            f"{check.title}: {name!r} is taken for {result.mistake!r}\n{result.card.to_text()}"
        )
    messages = [result.message for result in results.values()]
    assert len(set(messages)) == len(messages), f"{check.title}: two wrong answers get one message: {messages}"
    missing = {mistake.name for mistake in check.mistakes} - set(wrong)
    assert not missing, f"{check.title}: no wrong answer shows the mistake {sorted(missing)}"
