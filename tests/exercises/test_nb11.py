from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from mamba_lab.exercises.nb11 import check_diagnose, check_learning_rate, check_pace
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers
from mamba_lab.training.optim import learning_rate_factor

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "11_training.ipynb"


def stub(*inputs): ...


def pace(steps):
    tokens, positions, seconds = np.array(steps).sum(0)
    return tokens / seconds, tokens / positions


def test_pace_is_right():
    assert_solution_passes(check_pace, pace)
    assert_solution_passes(check_pace, lambda steps: list(pace(steps)))


def test_pace_wrong_answers():
    assert_stub_fails(check_pace, stub)

    def mean(f, steps):
        return statistics.mean(f(*step) for step in steps)

    assert_wrong_answers(
        check_pace,
        {
            "padding counts": lambda s: (sum(p for _, p, _ in s) / sum(x for *_, x in s), pace(s)[1]),
            "a mean of paces": lambda s: (mean(lambda t, p, x: t / x, s), pace(s)[1]),
            "a mean of ratios": lambda s: (pace(s)[0], mean(lambda t, p, x: t / p, s)),
            "two means": lambda s: (mean(lambda t, p, x: t / x, s), mean(lambda t, p, x: t / p, s)),
            "the padding rate": lambda s: (pace(s)[0], 1 - pace(s)[1]),
            "the other way round": lambda s: pace(s)[::-1],
        },
    )


def diagnose(loss, valid_ratio, longest, grad_norm):
    if not all(math.isfinite(value) for value in loss):
        return "not a number"
    if min(loss) < loss[0] / 2:
        return "too good"
    low = [ratio < 0.8 for ratio in valid_ratio]
    usual = statistics.median(longest)
    if any(is_low and length > 2 * usual for is_low, length in zip(low, longest, strict=True)):
        return "one long sample"
    if sum(low) > len(low) / 2:
        return "padding"
    if max(loss) > 1.5 * loss[0] or max(grad_norm) > 10 * statistics.median(grad_norm):
        return "jump"
    return "healthy"


def test_diagnose_is_right():
    assert_solution_passes(check_diagnose, diagnose)


def without(sign, otherwise="healthy"):
    def f(*numbers):
        found = diagnose(*numbers)
        return otherwise if found == sign else found

    return f


def test_diagnose_wrong_answers():
    assert_stub_fails(check_diagnose, stub)

    def low(valid_ratio):
        return any(ratio < 0.8 for ratio in valid_ratio)

    assert_wrong_answers(
        check_diagnose,
        {
            "healthy whatever comes": lambda *_: "healthy",
            "compares with nan": lambda loss, *rest: (
                diagnose([v for v in loss if v == v], *rest)
                if min(loss) >= loss[0] / 2 or not any(v != v for v in loss)
                else "too good"
            ),
            "half of what?": lambda loss, v, n, g: (
                "padding" if diagnose(loss, v, n, g) == "too good" and min(loss) >= 0.5 else diagnose(loss, v, n, g)
            ),
            "every norm is large": lambda loss, v, n, g: (
                "healthy"
                if diagnose(loss, v, n, g) == "jump" and max(g) < 10 * statistics.median(g)
                else diagnose(loss, v, n, g)
            ),
            "one bad step is no habit": lambda loss, v, n, g: (
                "padding" if diagnose(loss, v, n, g) == "healthy" and low(v) else diagnose(loss, v, n, g)
            ),
            "long, and what of it?": lambda loss, v, n, g: (
                "one long sample"
                if diagnose(loss, v, n, g) == "healthy" and max(n) > 2 * statistics.median(n)
                else diagnose(loss, v, n, g)
            ),
            "calls every wave a jump": lambda loss, v, n, g: (
                "jump"
                if diagnose(loss, v, n, g) == "healthy" and max(g) > 3 * statistics.median(g)
                else diagnose(loss, v, n, g)
            ),
            "another name": lambda *numbers: diagnose(*numbers).upper(),
            "another sign was there": without("too good", "padding"),
        },
    )


@pytest.mark.parametrize("sign", ["not a number", "too good", "one long sample", "padding", "jump"])
def test_each_sign_is_asked_for(sign):
    assert not check_diagnose.run(without(sign)).ok


def test_half_of_the_first_loss_is_no_fixed_number():
    def under(limit):
        return lambda loss, *rest: "too good" if min(loss) < limit else without("too good")(loss, *rest)

    assert [check_diagnose.run(under(limit)).mistake for limit in (3, 4.45)] == ["half of what?"] * 2


def test_the_notebooks_own_gallery_is_diagnosed():
    """The table's signs find each fault of Figure 4, by the notebook's own cells."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict = {}
    exec("import torch\nfrom mamba_lab.models import MambaConfig, MambaLM", names)
    exec("from mamba_lab.tokenizer import load_tokenizer\ntokenizer = load_tokenizer()", names)
    for part in ("def plain_train(", "draw = random.Random(0)", "def gallery_run(", "causes = {"):
        (source,) = [source for source in sources if part in source]
        exec(source, names)
    assert {name: diagnose(*zip(*rows, strict=True)) for name, rows in names["causes"].items()} == {
        "healthy": "healthy",
        "lengths mixed": "padding",
        "one long sample": "one long sample",
        "labels on padding": "too good",
        "learning rate 1": "jump",
        "learning rate 10": "not a number",
    }


def rate(step, warmup, total, peak):
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / (total - warmup)
    return peak * math.cos(math.pi * done / 2) ** 2


def packages(step, warmup, total, peak):
    return peak * learning_rate_factor(step, warmup=warmup, total=total, kind="cosine")


@pytest.mark.parametrize("f", [rate, packages])
def test_learning_rate_is_right(f):
    assert_solution_passes(check_learning_rate, f)


def test_learning_rate_wrong_answers():
    assert_stub_fails(check_learning_rate, stub)

    def down(shape):
        return lambda k, w, n, peak: peak * (k + 1) / w if k < w else peak * shape((k - w) / (n - w))

    assert_wrong_answers(
        check_learning_rate,
        {
            "a first step of 0": lambda k, w, n, p: p * k / w if k < w else rate(k, w, n, p),
            "the cosine begins at 0": lambda k, w, n, p: rate(k, w, n, p) if k < w else rate(k, 0, n, p),
            "a straight line down": down(lambda x: 1 - x),
            "no warm-up": lambda k, w, n, p: rate(max(k, w), w, n, p),
            "a factor, not a rate": lambda k, w, n, p: rate(k, w, n, 1),
            "a whole wave": down(lambda x: (1 + math.cos(2 * math.pi * x)) / 2),
            "divides by nothing": lambda k, w, n, p: min((k + 1) / w, 1) * rate(max(k, w), w, n, p),
        },
    )
