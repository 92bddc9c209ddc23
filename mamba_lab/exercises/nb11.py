"""Checks for notebook 11: the pace of a run, what its four numbers say, and a learning rate that warms up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from mamba_lab.exercises.checking import Exercise, Mistake, case

Step = tuple[int, int, float]
Numbers = list[float]


def _pace(steps: list[Step]) -> tuple[float, float]:
    tokens, positions, seconds = map(sum, zip(*steps, strict=True))
    return tokens / seconds, tokens / positions


def _part(pick: Callable[[list[Step]], float], place: int) -> Callable[[list[Step]], tuple[float, float]]:
    """Right but for one of the two numbers."""
    return lambda steps: tuple(pick(steps) if i == place else value for i, value in enumerate(_pace(steps)))  # type: ignore[return-value]


check_pace = Exercise(
    "The pace of a run",
    reference=_pace,
    cases=[
        case(steps=[(100, 200, 2.0)]),
        case(steps=[(100, 100, 1.0), (100, 200, 3.0)]),
        case(steps=[(900, 1000, 1.0), (100, 1000, 4.0), (500, 500, 1.0)]),
    ],
    mistakes=[
        Mistake(
            "padding counts",
            "The pace counts positions here. Padding is work, but it is no text: count tokens.",
            wrong=_part(lambda steps: sum(p for _, p, _ in steps) / sum(s for *_, s in steps), 0),
        ),
        Mistake(
            "a mean of paces",
            "Each step's pace was averaged. A slow step takes longer, so it has to count more: all tokens over all "
            "seconds.",
            wrong=_part(lambda steps: statistics.mean(t / s for t, _, s in steps), 0),
        ),
        Mistake(
            "a mean of ratios",
            "Each step's valid ratio was averaged. Steps have different sizes: all tokens over all positions.",
            wrong=_part(lambda steps: statistics.mean(t / p for t, p, _ in steps), 1),
        ),
        Mistake(
            "two means",
            "Both numbers are means of the steps' own. Add up first, and divide once.",
            wrong=lambda steps: (
                statistics.mean(t / s for t, _, s in steps),
                statistics.mean(t / p for t, p, _ in steps),
            ),
        ),
        Mistake(
            "the padding rate",
            "This is the share of padding. The valid ratio is the rest: tokens over positions.",
            wrong=_part(lambda steps: 1 - _pace(steps)[1], 1),
        ),
        Mistake(
            "the other way round",
            "The pace comes first, then the valid ratio.",
            wrong=lambda steps: _pace(steps)[::-1],
        ),
    ],
    hints=("Three sums: tokens, positions, seconds.", "tokens / seconds is the pace, tokens / positions the ratio."),
    lesson="Add up first, divide once. Notebook 12 says the same of the loss.",
)


HEALTHY, NOT_A_NUMBER, TOO_GOOD = "healthy", "not a number", "too good"
PADDING, LONG_SAMPLE, JUMP = "padding", "one long sample", "jump"


def _diagnose(
    loss: Numbers, valid_ratio: Numbers, longest: Numbers, grad_norm: Numbers, *, order: str = "nglpj", jump: float = 10
) -> str:
    n, low = len(loss), [ratio < 0.8 for ratio in valid_ratio]
    usual = statistics.median(longest)
    signs = {
        "n": (NOT_A_NUMBER, not all(map(math.isfinite, loss))),
        "g": (TOO_GOOD, min(loss) < loss[0] / 2),
        "l": (LONG_SAMPLE, any(b and length > 2 * usual for b, length in zip(low, longest, strict=True))),
        "p": (PADDING, sum(low) > n / 2),
        "j": (JUMP, max(loss) > 1.5 * loss[0] or max(grad_norm) > jump * statistics.median(grad_norm)),
    }
    return next((name for name, seen in (signs[letter] for letter in order) if seen), HEALTHY)


_FALLING = [8.0, 7.0, 6.2, 5.7, 5.3]
_FULL = [0.98, 0.99, 0.98, 0.97, 0.99]
_LENGTHS = [900, 1000, 950, 1020, 880]
_CALM = [1.0, 0.9, 1.1, 1.0, 0.8]

check_diagnose = Exercise(
    "Diagnosis from four numbers",
    reference=_diagnose,
    cases=[
        case(loss=_FALLING, valid_ratio=_FULL, longest=_LENGTHS, grad_norm=_CALM),
        case(loss=[8.0, 7.5, math.nan, math.nan, math.nan], valid_ratio=_FULL, longest=_LENGTHS, grad_norm=_CALM),
        case(loss=[8.0, 3.0, 0.9, 0.3, 0.1], valid_ratio=_FULL, longest=_LENGTHS, grad_norm=_CALM),
        case(loss=[9.0, 7.5, 5.0, 4.4, 4.6], valid_ratio=[0.5] * 5, longest=_LENGTHS, grad_norm=_CALM),
        case(loss=[4.0, 3.5, 3.1, 2.8, 2.4], valid_ratio=_FULL, longest=_LENGTHS, grad_norm=_CALM),
        case(loss=_FALLING, valid_ratio=[0.4, 0.5, 0.3, 0.85, 0.4], longest=_LENGTHS, grad_norm=_CALM),
        case(
            loss=_FALLING,
            valid_ratio=[0.95, 0.15, 0.96, 0.97, 0.94],
            longest=[210, 3000, 190, 205, 220],
            grad_norm=_CALM,
        ),
        case(loss=_FALLING, valid_ratio=[0.95, 0.75, 0.96, 0.97, 0.94], longest=_LENGTHS, grad_norm=_CALM),
        case(loss=_FALLING, valid_ratio=_FULL, longest=[210, 500, 190, 205, 220], grad_norm=_CALM),
        case(
            loss=[8.0, 7.0, 11.0, 9.0, 8.5], valid_ratio=_FULL, longest=_LENGTHS, grad_norm=[1.0, 0.9, 45.0, 1.2, 0.8]
        ),
        case(loss=[9.0, 14.0, 22.0, 30.0, 16.0], valid_ratio=_FULL, longest=_LENGTHS, grad_norm=[0.5, 17, 9, 18, 16]),
        case(loss=_FALLING, valid_ratio=_FULL, longest=_LENGTHS, grad_norm=[1.0, 0.9, 6.0, 1.2, 0.8]),
        case(loss=[8.0, 3.0, 0.2, 0.1, math.nan], valid_ratio=_FULL, longest=_LENGTHS, grad_norm=_CALM),
    ],
    mistakes=[
        Mistake(
            "every norm is large",
            "No norm of this run leaps above the others, and yet its loss climbs to more than 1.5 times the first. "
            "Either sign is enough for a jump.",
            when=lambda answer, loss, valid_ratio, longest, grad_norm: (
                answer == HEALTHY
                and max(grad_norm) < 10 * statistics.median(grad_norm)
                and _diagnose(loss, valid_ratio, longest, grad_norm) == JUMP
            ),
        ),
        Mistake(
            "healthy whatever comes",
            "This run is not healthy. Go through the table from the top and return at the first sign that you see.",
            when=lambda answer, *_: answer == HEALTHY,
        ),
        Mistake(
            "compares with nan",
            "Comparisons with nan are all False: nan < 4 and nan > 4. Ask math.isfinite(loss) first of all.",
            when=lambda answer, loss, *_: not all(map(math.isfinite, loss)),
        ),
        Mistake(
            "half of what?",
            "The sign is a loss under half of the run's own first loss, whatever number that is.",
            when=lambda answer, loss, *rest: (
                answer == TOO_GOOD or (_diagnose(loss, *rest) == TOO_GOOD and min(loss) >= 0.5)
            ),
        ),
        Mistake(
            "one bad step is no habit",
            "One step with a low valid ratio does not make the run one of padding: more than half of the steps must "
            "be low. And if no sequence is unusually long, all is well.",
            when=lambda answer, loss, valid_ratio, *_: (
                answer == PADDING and sum(ratio < 0.8 for ratio in valid_ratio) == 1
            ),
        ),
        Mistake(
            "long, and what of it?",
            "A long sequence is no fault by itself. It is one when the batch around it becomes padding: look at the "
            "same step's valid ratio.",
            when=lambda answer, loss, valid_ratio, longest, grad_norm: (
                answer == LONG_SAMPLE and _diagnose(loss, valid_ratio, longest, grad_norm) != LONG_SAMPLE
            ),
        ),
        Mistake(
            "calls every wave a jump",
            "A gradient norm some times its median is daily weather. The sign is more than 10 times the median.",
            when=lambda answer, loss, valid_ratio, longest, grad_norm: (
                answer == JUMP and _diagnose(loss, valid_ratio, longest, grad_norm) != JUMP
            ),
        ),
        Mistake(
            "another name",
            "The answer is one of the six names in the table, as text.",
            when=lambda answer, *_: answer not in (HEALTHY, NOT_A_NUMBER, TOO_GOOD, PADDING, LONG_SAMPLE, JUMP),
        ),
        Mistake(
            "another sign was there",
            "This sign is not in these numbers, or another one stands above it in the table.",
            when=lambda answer, *_: True,
        ),
    ],
    hints=(
        "Write one line for each row of the table: if ...: return its name.",
        "low = [r < 0.8 for r in valid_ratio] serves two of the rows.",
        "statistics.median(longest) is the usual length.",
    ),
    lesson="Four numbers a step, and you can tell from afar what to open first.",
)


def _rate(step: int, warmup: int, total: int, peak: float) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


check_learning_rate = Exercise(
    "A learning rate that warms up and fades",
    reference=_rate,
    cases=[
        case(step=0, warmup=0, total=10, peak=1.0),
        case(step=0, warmup=4, total=12, peak=1.0),
        case(step=1, warmup=4, total=12, peak=1.0),
        case(step=3, warmup=4, total=12, peak=2.0),
        case(step=4, warmup=4, total=12, peak=2.0),
        case(step=8, warmup=4, total=12, peak=1.0),
        case(step=11, warmup=4, total=12, peak=1.0),
    ],
    mistakes=[
        Mistake(
            "a first step of 0",
            "The first step moves nothing here. Step 0 has 1/warmup of the peak, and the last of the warm-up has all "
            "of it.",
            wrong=lambda step, warmup, total, peak: (
                peak * step / warmup if step < warmup else _rate(step, warmup, total, peak)
            ),
        ),
        Mistake(
            "the cosine begins at 0",
            "The wave must begin where the warm-up ends. Count its steps from there: step - warmup of total - warmup.",
            wrong=lambda step, warmup, total, peak: (
                _rate(step, warmup, total, peak) if step < warmup else _rate(step, 0, total, peak)
            ),
        ),
        Mistake(
            "a straight line down",
            "The warm-up is right. Down it goes in half a cosine wave, not in a straight line.",
            wrong=lambda step, warmup, total, peak: (
                _rate(step, warmup, total, peak) if step < warmup else peak * (1 - (step - warmup) / (total - warmup))
            ),
        ),
        Mistake(
            "no warm-up",
            "The wave is right, but the first steps begin at the peak. They climb to it in a straight line.",
            wrong=lambda step, warmup, total, peak: _rate(max(step, warmup), warmup, total, peak),
        ),
        Mistake(
            "a factor, not a rate",
            "This is between 0 and 1. Multiply it with the peak.",
            wrong=lambda step, warmup, total, peak: _rate(step, warmup, total, 1.0),
        ),
        Mistake(
            "a whole wave",
            "The wave goes down and up again. Half a wave is enough: math.cos goes from 1 to -1 between 0 and pi.",
            wrong=lambda step, warmup, total, peak: (
                _rate(step, warmup, total, peak)
                if step < warmup
                else peak * (1 + math.cos(2 * math.pi * (step - warmup) / (total - warmup))) / 2
            ),
        ),
        Mistake(
            "divides by nothing",
            "Without a warm-up there is nothing to climb: with warmup = 0 the first step is on the wave.",
            raises=ZeroDivisionError,
        ),
    ],
    hints=(
        "Two cases: step < warmup, and the rest.",
        "(1 + math.cos(math.pi * x)) / 2 falls from 1 to 0 while x goes from 0 to 1.",
    ),
    lesson="The rate depends on the step's number alone: that is why a run can be resumed.",
)
