"""Checks for exercises: run a reader's function on cases from small to large and name what is wrong.

A check never raises. It displays one card and returns a :class:`CheckResult`, which shows nothing itself, so
``check(f)`` may stand anywhere in a cell. The card of an untouched stub is the same on each machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mamba_lab.exercises.card import NOTHING, Card
from mamba_lab.exercises.compare import MOST_ITEMS, MOST_PLACES, differences, has_nan, kind
from mamba_lab.exercises.running import Outcome, call, deadline

NOT_SOLVED = "not solved"

Case = dict[str, Any]


def case(**inputs: Any) -> Case:
    """One case: the inputs in the order of the function's parameters;

    The names are shown, the values are passed by position.
    """
    return inputs


@dataclass(frozen=True)
class Mistake:
    """A common mistake, recognised by what it does, never by how the code reads.

    Give one of ``wrong``, a function that makes the mistake (its answers are compared with the reader's), ``when``, a
    function ``(answer, *inputs) -> bool`` that knows a wrong answer, or ``raises``, the exception that the mistake
    ends in.
    """

    name: str
    message: str
    wrong: Callable[..., Any] | None = None
    when: Callable[..., bool] | None = None
    raises: type[BaseException] | None = None

    def __post_init__(self) -> None:
        if sum(x is not None for x in (self.wrong, self.when, self.raises)) != 1:
            raise ValueError(f"mistake {self.name!r}: give exactly one of wrong, when and raises")

    def explains(self, inputs: Case, outcome: Outcome, seconds: float) -> bool:
        """Whether this mistake gives this outcome on this case."""
        if self.wrong is not None:
            return call(self.wrong, inputs, seconds).agrees(outcome)
        if self.raises is not None:
            return outcome.error == self.raises.__name__
        if outcome.error is not None:
            return False
        asked = call(partial(self.when, outcome.value), inputs, seconds)  # type: ignore[arg-type,misc]
        return asked.error is None and asked.value is True


@dataclass(frozen=True)
class CheckResult:
    """What a check found. ``mistake`` is None when ``ok``, else the mistake's name;

    ``message`` is what the card says.
    """

    ok: bool
    exercise: str
    mistake: str | None
    message: str
    card: Card = field(repr=False)

    def _ipython_display_(self) -> None:
        """The check has displayed the card; a notebook shows nothing more for the returned value."""


class Exercise:
    """A check for one exercise, used as a function: ``check = Exercise(...)``, then ``check(f)`` in the notebook.

    Args:
        title: what the exercise is called on the card.
        reference: the right function.
        cases: from smallest to largest, built with :func:`case`; the first that fails is shown.
        mistakes: the common mistakes, the likeliest first.
        hints: shown one by one by ``check.hint()``.
        accept: ``(answer, *inputs) -> str | None`` for exercises with several right answers: None when the answer is
            right, else what is wrong with it. Without it an answer must equal the reference's.
        lesson: one sentence shown when all is right.
        seconds: the whole check's time; a loop that doesn't end is stopped.

    Raises:
        ValueError: no case, or the reference fails on one: a broken spec shows when it is imported.
    """

    def __init__(
        self,
        title: str,
        *,
        reference: Callable[..., Any],
        cases: Sequence[Case],
        mistakes: Sequence[Mistake] = (),
        hints: Sequence[str] = (),
        accept: Callable[..., str | None] | None = None,
        lesson: str = "",
        seconds: float = 5.0,
    ) -> None:
        if not cases:
            raise ValueError(f"exercise {title!r}: cases is empty: give at least one case(...)")
        names = [mistake.name for mistake in mistakes]
        if len(set(names)) < len(names):
            raise ValueError(f"exercise {title!r}: two mistakes have one name: {names}")
        self.title, self.reference, self.cases = title, reference, tuple(cases)
        self.mistakes, self.hints, self.accept = tuple(mistakes), tuple(hints), accept
        self.lesson, self.seconds = lesson, seconds
        self.__name__ = title
        self._shown_hints = 0
        self._expected = [self._reference_value(number) for number in range(len(cases))]

    def __call__(self, f: Any, *, hint: bool = False) -> CheckResult:
        """Run ``f`` on every case and display what was found; ``hint=True`` also gives the next hint."""
        result = self.run(f)
        _display(result.card)
        if hint and not result.ok:
            self.hint()
        return result

    def hint(self) -> None:
        """Display the next hint."""
        if not self.hints:
            print("There are no hints for this exercise.")
            return
        number = min(self._shown_hints, len(self.hints) - 1)
        self._shown_hints += 1
        print(f"Hint {number + 1} of {len(self.hints)}: {self.hints[number]}")

    def run(self, f: Any) -> CheckResult:
        """The check without the display."""
        try:
            # f and the mistakes have their own time; this one is for values that fight back when compared or shown.
            with deadline(2 * self.seconds + 1):
                result = self._run(f)
                _ = result.card.to_text(), result.card.to_html()
                return result
        except BaseException as raised:  # a reader's __eq__ or __repr__ may raise anything, SystemExit too
            message = f"the answer could not be read ({type(raised).__name__}). Return lists, numbers or tensors."
            return self._result("unreadable", message)

    def _run(self, f: Any) -> CheckResult:
        if not callable(f):
            read = call(lambda: f, {}, self.seconds)
            what = kind(read.value) if read.error is None else f"a {type(f).__name__}"
            return self._result(
                "not a function",
                f"expected a function, and this is {what}. Pass the function's name without brackets: "
                f"check(f), not check(f(...))",
            )
        outcomes = self._outcomes(f)
        failing = [i for i, outcome in enumerate(outcomes) if self._complaint(i, outcome)]
        if not failing:
            headline = f"right on all {len(self.cases)} cases." if len(self.cases) > 1 else "right."
            return CheckResult(
                True,
                self.title,
                None,
                headline,
                Card(True, self.title, headline, notes=tuple(filter(None, [self.lesson]))),
            )
        first = failing[0]
        if self._is_stub(outcomes[first], first):
            message = "Not solved yet: the function gives None. Write its body; if you have, is a return missing?"
            return self._result(NOT_SOLVED, message, first)
        name, said = self._named(outcomes, failing) or self._complaint(first, outcomes[first])  # type: ignore[misc]
        return self._result(name, said, first, outcomes[first])

    def _outcomes(self, f: Callable[..., Any]) -> list[Outcome]:
        """One for each case until the time is up: what is endless in one case would be endless in the next."""
        end, outcomes = time.monotonic() + self.seconds, []
        for inputs in self.cases:
            outcomes.append(call(f, inputs, max(0.05, end - time.monotonic())))
            if outcomes[-1].error in ("TimeIsUp", "AnswerTooLarge"):
                break
        return outcomes

    def _complaint(self, number: int, outcome: Outcome) -> tuple[str, str] | None:
        """Name and message of what is wrong in one case as far as any exercise can tell; None when it is right."""
        expected, got = self._expected[number], outcome.value
        if outcome.error == "TimeIsUp":
            return "endless", f"it was stopped after {self.seconds:g} seconds: does a loop never end?"
        if outcome.error == "NotImplementedError":
            return NOT_SOLVED, "Not solved yet."
        if outcome.error == "AnswerTooLarge":
            size = f", expected {len(expected)}" if isinstance(expected, list) else f"; expected {kind(expected)}"
            return "wrong length", f"the answer holds more than {MOST_ITEMS:,} items{size}."
        if outcome.error == "AnswerUnreadable":
            return "unreadable", f"the answer is {outcome.message}: expected {kind(expected)}."
        if outcome.error is not None:
            where = f" ({outcome.line})" if outcome.line else ""
            return (
                "raises",
                f"it raised {outcome.error}: {outcome.message}{where}"
                if outcome.message
                else f"it raised {outcome.error}{where}",
            )
        if outcome.changed:
            names = " and ".join(outcome.changed)
            return (
                "changes its input",
                f"it changes its input {names}. Work on a copy: the caller still needs the original.",
            )
        if self.accept is not None:
            said = call(partial(self.accept, got), self.cases[number], self.seconds)
            if said.error is not None:
                return "wrong type", f"the answer has the wrong form: expected {kind(expected)}, got {kind(got)}"
            return ("wrong answer", str(said.value)) if said.value else None
        places = differences(got, expected)
        return _generic(got, expected, places) if places else None

    def _is_stub(self, outcome: Outcome, number: int) -> bool:
        if outcome.error is not None:
            return outcome.error == "NotImplementedError"
        return (outcome.value is None or outcome.value is Ellipsis) and self._expected[number] is not None

    def _named(self, outcomes: list[Outcome], failing: list[int]) -> tuple[str, str] | None:
        """The known mistake that explains every failing case; if none does, the one that explains the smallest.

        A single number agrees with many mistakes by chance, so there a second failing case must agree too.
        """
        if outcomes[failing[0]].changed or outcomes[failing[0]].error == "TimeIsUp":
            return None
        explained = {
            mistake: [i for i in failing if mistake.explains(self.cases[i], outcomes[i], self.seconds)]
            for mistake in self.mistakes
        }
        needed = 1 if isinstance(self._expected[failing[0]], list) else 2
        whole = [m for m, cases in explained.items() if cases == failing]
        partly = [m for m, cases in explained.items() if cases[:1] == failing[:1] and len(cases) >= needed]
        for mistake in (*whole, *partly):
            return mistake.name, mistake.message
        return None

    def _called(self) -> str:
        """The name under which a notebook imports this check."""
        modules = [m for name, m in list(sys.modules.items()) if name.startswith("mamba_lab.exercises.nb")]
        return next((name for m in modules for name, value in vars(m).items() if value is self), "check_...")

    def _result(
        self, name: str, message: str, number: int | None = None, outcome: Outcome | None = None
    ) -> CheckResult:
        known = any(mistake.name == name for mistake in self.mistakes)
        headline = f"this looks like: {name}." if known else message
        notes = [message] if known else []
        if number is None:
            return CheckResult(False, self.title, name, message, Card(False, self.title, headline))
        if outcome is not None and known and outcome.error is not None:
            notes.insert(0, f"It raised {outcome.error}: {outcome.message}")
        if self.hints and name != NOT_SOLVED:
            notes.append(f"For a hint ({len(self.hints)} in all), run {self._called()}.hint().")
        got = NOTHING if outcome is None or outcome.error is not None else outcome.value
        card = Card(
            False,
            self.title,
            headline,
            inputs=self.cases[number],
            # Where many answers fit, showing one before the first try would give the exercise away.
            expected=NOTHING if self.accept is not None and name == NOT_SOLVED else self._expected[number],
            got=got,
            notes=tuple(notes),
            printed=outcome.printed if outcome else "",
            one_answer=self.accept is None,
        )
        return CheckResult(False, self.title, name, message, card)

    def _reference_value(self, number: int) -> Any:
        outcome = call(self.reference, self.cases[number], self.seconds)
        if outcome.error is not None or outcome.changed:
            wrong = f"raised {outcome.error}: {outcome.message}" if outcome.error else f"changed {outcome.changed}"
            raise ValueError(f"exercise {self.title!r}, case {number}: the reference {wrong}")
        if self.accept is not None:
            said = self.accept(outcome.value, *self.cases[number].values())
            if said:
                raise ValueError(
                    f"exercise {self.title!r}, case {number}: accept refuses the reference's answer: {said}"
                )
        return outcome.value


def _generic(got: Any, expected: Any, places: list[tuple[Any, ...]]) -> tuple[str, str]:
    if has_nan(got) and not has_nan(expected):
        return "not a number", "the answer holds NaN: something was divided by zero, or a value was never filled in."
    if isinstance(expected, list) and isinstance(got, list):
        if len(got) != len(expected):
            return "wrong length", f"the answer has length {len(got)}, expected {len(expected)}."
        place = "".join(f"[{p}]" for p in places[0])
        n = len(places)
        many = f"{n} or more" if n == MOST_PLACES else n
        return (
            "wrong values",
            f"{many} value{'s differ' if n > 1 else ' differs'}, {'the first ' if n > 1 else ''}at {place}.",
        )
    if kind(got) != kind(expected):
        return "wrong type", f"expected {kind(expected)}, got {kind(got)}."
    return "wrong values", "the answer is not the expected one."


def _display(card: Card) -> None:
    page, text = _rendered(card)
    if _in_ipython():
        from IPython.display import display

        display({"text/html": page, "text/plain": text}, raw=True)
    else:
        print(text)


def _rendered(card: Card) -> tuple[str, str]:
    """HTML and text of the card; of the headline alone where a value shows itself once and not twice."""
    try:
        with deadline(2):
            return card.to_html(), card.to_text()
    except BaseException:  # from a reader's __repr__
        bare = Card(card.ok, card.title, card.headline)
        return bare.to_html(), bare.to_text()


def _in_ipython() -> bool:
    """Without importing it: outside a notebook IPython may not be installed."""
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None
