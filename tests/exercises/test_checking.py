"""A check names the mistake, shows the smallest failing case, and survives whatever a reader's function does."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from mamba_lab.exercises import CheckResult, Exercise, Mistake, case
from mamba_lab.exercises.card import show_value
from mamba_lab.exercises.compare import same
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers

Sequences = list[list[int]]


def targets(sequences: Sequences) -> list[int]:
    return [t for s in sequences for t in [*s[1:], -100][: len(s)]]


def unmasked(sequences: Sequences) -> list[int]:
    stream = [t for s in sequences for t in s]
    return [*stream[1:], -100]


def twice(sequences: Sequences) -> list[int]:
    return [t for s in sequences for t in [*s[2:], -100, -100][: len(s)]]


def masked(sequences: Sequences) -> list[int]:
    return [-100 for s in sequences for _ in s]


def off_the_end(sequences: Sequences) -> list[int]:
    return [s[i + 1] for s in sequences for i in range(len(s))]


def build(**changes: object) -> Exercise:
    spec: dict = {
        "reference": targets,
        "cases": [case(sequences=[[1, 2], [3]]), case(sequences=[[1, 2, 3], [4, 5]])],
        "mistakes": [
            Mistake(
                "boundary left unmasked", "The last token has the next document's first as target.", wrong=unmasked
            ),
            Mistake("shifted twice", "The targets are two tokens ahead.", wrong=twice),
            Mistake("all masked", "No position teaches.", when=lambda answer, sequences: set(answer) == {-100}),
            Mistake("off the end", "The last token has no next one.", raises=IndexError),
        ],
        "hints": ("Look at each last token.", "Use [*s[1:], -100]."),
        "lesson": "A last token has no target.",
        "seconds": 0.4,
    }
    return Exercise("Targets", **{**spec, **changes})


CHECK = build()


def endless(sequences: Sequences) -> list[int]:
    while True:
        pass


def stubborn(sequences: Sequences) -> list[int]:
    try:
        time.sleep(60)
    except:  # noqa: E722
        return endless(sequences)
    return []


def changing(sequences: Sequences) -> list[int]:
    answer = targets(sequences)
    sequences.pop()
    return answer


def deep(sequences: Sequences) -> list[int]:
    return deep(sequences)


def raising(error: BaseException):
    def f(sequences: Sequences) -> list[int]:
        raise error

    return f


class Hostile:
    """A value that fights back whatever is asked of it."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparing")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no printing")


ODD = {
    "None": lambda s: None,
    "Ellipsis": lambda s: ...,
    "a hostile value": lambda s: Hostile(),
    "a list of hostile values": lambda s: [Hostile()],
    "NaN": lambda s: [float("nan")] * 3,
    "a string": lambda s: "three",
    "a dict": lambda s: {"a": 1},
    "a function": lambda s: print,
    "a generator": lambda s: (x for x in targets(s)),
    "a generator that raises": lambda s: (1 / 0 for _ in s),
    "complex numbers": lambda s: [1j, 2j, 3j],
    "a tensor that needs a gradient": lambda s: torch.ones(3, requires_grad=True),
    "bfloat16": lambda s: torch.ones(3, dtype=torch.bfloat16),
    "ragged": lambda s: [[1], [2, 3], 4],
    "too few arguments": list,
    "too many arguments": lambda a, b: [],
    "prints": lambda s: print("x" * 10**6) or 5,
    "endless": endless,
    "endless, catches everything": stubborn,
    "changes its input": changing,
    "too deep": deep,
    "exits": raising(SystemExit(3)),
    "interrupts": raising(KeyboardInterrupt()),
    "bare BaseException": raising(BaseException("bare")),
    "an exception without text": raising(ValueError()),
    "a class": list,
    "no function": 3,
    "no function, hostile": Hostile(),
    "nothing": None,
}


@pytest.mark.parametrize("name", ODD)
def test_a_check_never_raises_and_always_ends(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    result = CHECK(ODD[name])
    assert time.monotonic() - began < 8
    assert isinstance(result, CheckResult)
    assert result.ok == (name == "a generator")
    assert (result.mistake is None) == result.ok
    assert result.message
    out = capsys.readouterr().out
    assert out.startswith("✓" if result.ok else "✗")
    assert len(out) < 6000
    assert result.card.to_html().startswith("<div")


@pytest.mark.parametrize(
    ("f", "mistake"),
    [
        (unmasked, "boundary left unmasked"),
        (twice, "shifted twice"),
        (masked, "all masked"),
        (off_the_end, "off the end"),
        (endless, "endless"),
        (changing, "changes its input"),
        (deep, "raises"),
        (lambda s: None, "not solved"),
        (raising(NotImplementedError()), "not solved"),
        (lambda s: ..., "not solved"),
        (lambda s: 5, "wrong type"),
        (lambda s: targets(s)[:-1], "wrong length"),
        (lambda s: [9, *targets(s)[1:]], "wrong values"),
        (lambda s: [float("nan"), *targets(s)[1:]], "not a number"),
        (targets([[1]]), "not a function"),
    ],
)
def test_mistakes_are_named(f: object, mistake: str) -> None:
    assert CHECK.run(f).mistake == mistake


def test_the_smallest_failing_case_is_shown() -> None:
    """This one is right on the first case and wrong on the second."""

    def half(sequences: Sequences) -> list[int]:
        return targets(sequences) if len(sequences[0]) < 3 else [0] * 5

    text = CHECK.run(half).card.to_text()
    assert "sequences = [[1, 2, 3], [4, 5]]" in text
    first = CHECK.run(lambda s: [0] * len(targets(s))).card.to_text()
    assert "sequences = [[1, 2], [3]]" in first


def test_a_mistake_must_explain_every_failing_case() -> None:
    """On [[1]] two mistakes give one answer; the larger case tells them apart."""
    check = Exercise(
        "Sum",
        reference=lambda x: sum(x) + 1,
        cases=[case(x=[2]), case(x=[2, 3])],
        mistakes=[Mistake("first only", "one", wrong=lambda x: x[0]), Mistake("no one added", "two", wrong=sum)],
    )
    assert check.run(lambda x: x[0]).mistake == "first only"
    assert check.run(lambda x: sum(x)).mistake == "no one added"
    # Nothing explains both cases, and one number can agree by chance: no mistake is named.
    assert check.run(lambda x: x[0] if len(x) == 1 else 99).mistake == "wrong values"


def test_a_list_may_be_explained_by_its_smallest_case() -> None:
    check = Exercise(
        "Doubled",
        reference=lambda x: [2 * v for v in x],
        cases=[case(x=[2]), case(x=[2, 3])],
        mistakes=[Mistake("unchanged", "one", wrong=list)],
    )
    assert check.run(lambda x: list(x) if len(x) == 1 else [0, 0]).mistake == "unchanged"


def test_a_list_of_one_is_shown_as_a_list() -> None:
    check = Exercise("Doubled", reference=lambda x: [2 * v for v in x], cases=[case(x=[2])])
    assert "expected       [4]" in check.run(lambda x: None).card.to_text()
    wrong = check.run(lambda x: [5]).card
    assert "expected       [4]" in wrong.to_text()
    assert "got            [5]" in wrong.to_text()
    assert ">[5]<" in wrong.to_html()


def test_places_that_differ_are_marked() -> None:
    result = build(mistakes=()).run(lambda s: [*targets(s)[:-1], 7])
    lines = [line.split() for line in result.card.to_text().splitlines()]
    assert ["expected", "2", "-100", "-100"] in lines
    assert ["got", "2", "-100", "7"] in lines
    assert ["✓", "✓", "✗"] in lines
    page = result.card.to_html()
    assert re.findall("[✓✗]", page) == ["✗", "✓", "✓", "✗"]
    assert page.count("2px dashed") == 1, "the wrong place differs in its border, not only in its colour"


def test_of_a_table_the_first_wrong_row_is_shown() -> None:
    check = Exercise("Rows", reference=lambda n: [[1, 2], [3, n]], cases=[case(n=4)])
    text = check.run(lambda n: [[1, 2], [3, 9]]).card.to_text()
    assert re.search(r"expected\[1\] +3  4", text)
    assert re.search(r"got\[1\] +3  9", text)
    assert "1 value differs, at [1][1]" in text


def test_success_shows_the_lesson_and_is_constant() -> None:
    first, second = CHECK.run(targets), CHECK.run(lambda s: tuple(targets(s)))
    assert (
        first.card.to_text() == second.card.to_text() == "✓ Targets: right on all 2 cases.\nA last token has no target."
    )
    assert first.card.to_html() == second.card.to_html()


def test_the_stub_card_shows_the_task_and_no_answer() -> None:
    text = CHECK.run(lambda s: None).card.to_text()
    assert "Not solved yet" in text
    assert "sequences = [[1, 2], [3]]" in text
    assert "expected" in text
    assert "got" not in text


def test_an_error_names_the_readers_line() -> None:
    def divides(sequences: Sequences) -> list[int]:
        n = 0
        return [1 // n]

    message = CHECK.run(divides).message
    assert message.startswith("it raised ZeroDivisionError")
    assert "line 3 of divides: return [1 // n]" in message
    assert __file__ not in message


def test_inputs_are_copies() -> None:
    CHECK.run(changing)
    assert CHECK.cases[0] == case(sequences=[[1, 2], [3]])
    assert CHECK.run(targets).ok


def test_arrays_and_tensors_in_and_out() -> None:
    check = Exercise("Half", reference=lambda x: x / 2, cases=[case(x=torch.tensor([1.0, 3.0]))])
    assert check.run(lambda x: [0.5, 1.5]).ok
    assert check.run(lambda x: x.numpy() / 2).ok
    assert check.run(lambda x: x.mul_(0.5)).mistake == "changes its input"
    assert check.run(lambda x: (x / 2)[None]).mistake == "wrong length"


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([1, 2], (1, 2), True),
        ([1, 2], np.array([1, 2], np.int32), True),
        ([1, 2], torch.tensor([1, 2]), True),
        (range(2), [0, 1], True),
        (1.0, 1.00001, True),
        (1.0, 1.001, False),
        (10**6, 10**6 + 1, False),
        (float("nan"), float("nan"), True),
        (0.0, float("nan"), False),
        (float("inf"), float("inf"), True),
        ([1, 2], [1, 2, 3], False),
        ([[1]], [1], False),
        ({"a": [1]}, {"a": (1,)}, True),
        ({"a": 1}, {"b": 1}, False),
        ("1", 1, False),
        (None, 0, False),
        (True, 1, True),
    ],
)
def test_same(a: object, b: object, equal: bool) -> None:
    assert same(a, b) is equal
    assert same(b, a) is equal


def test_many_right_answers() -> None:
    def fits(answer: list[int], lengths: list[int], room: int) -> str | None:
        return None if sum(lengths[i] for i in answer) <= room and answer else f"{answer} doesn't fit into {room}"

    spec = {"reference": lambda lengths, room: [0], "cases": [case(lengths=[2, 3], room=3)], "accept": fits}
    check = Exercise("Bin", **spec)
    assert check.run(lambda lengths, room: [1]).ok
    result = check.run(lambda lengths, room: [0, 1])
    assert (result.mistake, result.message) == ("wrong answer", "[0, 1] doesn't fit into 3")
    assert "one that fits" in result.card.to_text()
    assert re.findall("[✓✗]", result.card.to_text()) == ["✗"], "no place is marked: other answers are right too"
    assert check.run(lambda lengths, room: "ab").mistake == "wrong type"
    assert check.run(lambda lengths, room: None).mistake == "not solved"


def test_hints_come_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    check = build()
    for _ in range(3):
        check.hint()
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2: Look at each last token.",
        "Hint 2 of 2: Use [*s[1:], -100].",
        "Hint 2 of 2: Use [*s[1:], -100].",
    ]
    build()(masked, hint=True)
    assert capsys.readouterr().out.splitlines()[-1] == "Hint 1 of 2: Look at each last token."
    build(hints=()).hint()
    assert capsys.readouterr().out == "There are no hints for this exercise.\n"


def test_prints_of_the_failing_case_are_kept_and_bounded() -> None:
    def chatty(sequences: Sequences) -> list[int]:
        print("looking at", sequences)
        return [0]

    text = CHECK.run(chatty).card.to_text()
    assert text.count("looking at") == 1
    assert "looking at [[1, 2], [3]]" in text


def test_html_escapes_what_readers_write() -> None:
    page = CHECK.run(lambda s: ["<script>alert(1)</script>"] * 3).card.to_html()
    assert "<script>" not in page
    assert html.escape("<script>") in page


def test_the_clock_also_stops_other_threads() -> None:
    results: list[CheckResult] = []
    thread = threading.Thread(target=lambda: results.append(CHECK.run(endless)))
    thread.start()
    thread.join(8)
    assert not thread.is_alive()
    assert results[0].mistake == "endless"


def test_the_timer_is_taken_down() -> None:
    import signal

    before = signal.getsignal(signal.SIGALRM)
    CHECK.run(targets)
    CHECK.run(endless)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cases": []}, "cases is empty"),
        ({"reference": off_the_end}, "case 0: the reference raised IndexError"),
        ({"reference": changing}, r"case 0: the reference changed \('sequences',\)"),
        ({"mistakes": [Mistake("a", "x", wrong=twice), Mistake("a", "y", wrong=masked)]}, "two mistakes have one name"),
        ({"accept": lambda answer, sequences: "never right"}, "accept refuses the reference's answer: never right"),
    ],
)
def test_a_broken_spec_shows_when_it_is_built(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)
    with pytest.raises(ValueError, match="give exactly one of"):
        Mistake("a", "b")


def test_values_are_short_and_hold_no_address() -> None:
    assert show_value([0.1 + 0.2, 1, True, None]) == "[0.3, 1, True, None]"
    assert len(show_value(list(range(10_000)))) < 250
    assert show_value(object()) == "a object"
    assert show_value(torch.tensor([1.5])) == "[1.5]"
    assert show_value(Hostile()) == "a Hostile"


def test_helpers_for_the_notebooks_tests() -> None:
    assert_solution_passes(CHECK, targets)
    assert_stub_fails(CHECK, lambda s: None)
    wrong = {
        "boundary left unmasked": unmasked,
        "shifted twice": twice,
        "all masked": masked,
        "off the end": off_the_end,
    }
    assert_wrong_answers(CHECK, wrong)
    with pytest.raises(AssertionError, match="the solution fails"):
        assert_solution_passes(CHECK, twice)
    with pytest.raises(AssertionError, match="expected 'not solved'"):
        assert_stub_fails(CHECK, twice)
    with pytest.raises(AssertionError, match="expected at least 3"):
        assert_wrong_answers(CHECK, {"shifted twice": twice})
    with pytest.raises(AssertionError, match="'all masked' is taken for 'shifted twice'"):
        assert_wrong_answers(CHECK, {**wrong, "all masked": twice})
    with pytest.raises(AssertionError, match="passes"):
        assert_wrong_answers(CHECK, {**wrong, "all masked": targets})
    del wrong["off the end"]
    with pytest.raises(AssertionError, match="no wrong answer shows the mistake"):
        assert_wrong_answers(CHECK, wrong)


CORE_ONLY = """
from mamba_lab.exercises import Exercise, case
check = Exercise("Double", reference=lambda x: 2 * x, cases=[case(x=1)])
check(lambda x: None)
"""


def test_without_ipython_and_matplotlib_a_check_prints() -> None:
    """In an environment with the core packages only."""
    block = "import sys\nfor name in ('IPython', 'matplotlib', 'ipywidgets'): sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", block + CORE_ONLY],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("✗ Double: Not solved yet")


def test_a_wrong_answer_names_the_hint_by_the_name_that_the_notebook_imports() -> None:
    from mamba_lab.exercises.nb04 import check_targets_of

    assert "run check_targets_of.hint()." in check_targets_of.run(list).card.to_text()
    assert "run check_....hint()." in build(hints=("a",)).run(lambda x: -1).card.to_text()
