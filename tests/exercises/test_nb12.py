from __future__ import annotations

import numpy as np
import pytest
import torch

from mamba_lab.exercises.nb12 import check_shares, check_step_loss, check_weights_of_pieces
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def shares(n_targets, weighting):
    counts = np.array(n_targets, dtype=float)
    puts_in = counts if weighting == "token" else (counts > 0).astype(float)
    return puts_in / max(puts_in.sum(), 1.0)


@pytest.mark.parametrize("f", [shares, lambda n, w: torch.tensor(shares(n, w)), lambda n, w: shares(n, w).tolist()])
def test_shares_is_right(f):
    assert_solution_passes(check_shares, f)


def test_shares_wrong_answers():
    assert_stub_fails(check_shares, stub)

    def divided(values):
        return [value / sum(values) if sum(values) else 0.0 for value in values]

    assert_wrong_answers(
        check_shares,
        {
            "a share for the silent": lambda n, w: divided(n) if w == "token" else [1 / len(n)] * len(n),
            "tokens whatever is asked": lambda n, w: divided(n),
            "sequences whatever is asked": lambda n, w: divided([min(x, 1) for x in n]),
            "weights, not shares": lambda n, w: n if w == "token" else [min(x, 1) for x in n],
            "what one target counts": lambda n, w: [s / x if x else 0.0 for x, s in zip(n, shares(n, w), strict=True)],
            "a shorter list": lambda n, w: [s for s, x in zip(shares(n, w), n, strict=True) if x],
            "shares of nothing": lambda n, w: shares(n, w) if any(n) else [1 / len(n)] * len(n),
            "percent": lambda n, w: 100 * shares(n, w),
            "the short ones louder": lambda n, w: divided(n if w == "token" else [x and 1 / x for x in n]),
            "divides by nothing": lambda n, w: [
                (x if w == "token" else min(x, 1)) / sum(n if w == "token" else [min(y, 1) for y in n]) for x in n
            ],
        },
    )


@pytest.mark.parametrize("unguarded_under", ["token", "sequence"])
def test_shares_of_a_silent_step_are_asked_for_under_both_means(unguarded_under):
    def f(n_targets, weighting):
        puts_in = n_targets if weighting == "token" else [min(n, 1) for n in n_targets]
        total = sum(puts_in) if weighting == unguarded_under else max(sum(puts_in), 1)
        return [part / total for part in puts_in]

    assert check_shares.run(f).mistake == "divides by nothing"


def step_loss(step, weighting):
    total, count = 0.0, 0.0
    for rank in step:
        for micro_batch in rank:
            for losses in micro_batch:
                for loss in losses:
                    weight = 1.0 if weighting == "token" else 1 / len(losses)
                    total, count = total + weight * loss, count + weight
    return total / count if count else 0.0


def unguarded(step, weighting):
    losses = [losses for rank in step for losses in flat(rank) if losses]
    if weighting == "token":
        return sum(map(sum, losses)) / sum(map(len, losses))
    return sum(sum(one) / len(one) for one in losses) / len(losses)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def flat(rank):
    return [losses for micro_batch in rank for losses in micro_batch]


def test_step_loss_is_right():
    assert_solution_passes(check_step_loss, step_loss)
    assert_solution_passes(check_step_loss, lambda step, weighting: torch.tensor(step_loss(step, weighting)))


def test_step_loss_wrong_answers():
    assert_stub_fails(check_step_loss, stub)
    assert_wrong_answers(
        check_step_loss,
        {
            "a mean of means": lambda step, w: mean(step_loss([[m]], w) for rank in step for m in rank),
            "a mean of means, the silent left out": lambda step, w: mean(
                step_loss([[m]], w) for rank in step for m in rank if any(m)
            ),
            "each rank by itself": lambda step, w: mean(step_loss([rank], w) for rank in step),
            "a sequence that says nothing": lambda step, w: (
                step_loss(step, w) if w == "token" else mean(mean(losses) for rank in step for losses in flat(rank))
            ),
            "tokens whatever is asked": lambda step, w: step_loss(step, "token"),
            "sequences whatever is asked": lambda step, w: step_loss(step, "sequence"),
            "not divided": lambda step, w: sum(
                sum(losses) if w == "token" else mean(losses) for rank in step for losses in flat(rank)
            ),
            "sums of the sequences": lambda step, w: (
                step_loss(step, w) if w == "token" else mean(sum(x) for rank in step for x in flat(rank) if x)
            ),
            "divided by the targets": lambda step, w: (
                step_loss(step, w)
                if w == "token"
                else sum(mean(x) for rank in step for x in flat(rank))
                / (sum(len(x) for r in step for x in flat(r)) or 1)
            ),
            "a loop too few": lambda step, w: sum(sum(losses) for rank in step for losses in rank),
            "divides by nothing": unguarded,
        },
    )


def weights(n_targets, cut):
    whole = [1 / n_targets] * n_targets if n_targets else []
    return [whole[start : start + cut] for start in range(0, n_targets, cut)]


def test_weights_of_pieces_is_right():
    assert_solution_passes(check_weights_of_pieces, weights)


def test_weights_of_pieces_wrong_answers():
    assert_stub_fails(check_weights_of_pieces, stub)
    assert_wrong_answers(
        check_weights_of_pieces,
        {
            "each piece a sequence": lambda n, cut: [[1 / len(p)] * len(p) for p in weights(n, cut)],
            "all pieces the same": lambda n, cut: [
                [1 / len(p) / len(weights(n, cut))] * len(p) for p in weights(n, cut)
            ],
            "divided by the cut": lambda n, cut: [[1 / cut] * len(p) for p in weights(n, cut)],
            "not divided": lambda n, cut: [[1] * len(p) for p in weights(n, cut)],
            "the last piece filled up": lambda n, cut: [p + p[:1] * (cut - len(p)) for p in weights(n, cut)],
            "the rest lost": lambda n, cut: [p for p in weights(n, cut) if len(p) == cut],
            "one number a piece": lambda n, cut: [sum(p) for p in weights(n, cut)],
            "an empty piece": lambda n, cut: weights(n, cut) if n else [[]],
            "one list": lambda n, cut: [w for piece in weights(n, cut) for w in piece],
            "divides by nothing": lambda n, cut: [[1 / n] * len(p) for p in weights(n, cut)] if 1 / n else None,
        },
    )
