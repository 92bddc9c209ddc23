"""A warning names the batch and the likely cause, comes once where once is enough, and survives a resume."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from loop_help import each_alone, pack, some_sequences

from mamba_lab.training.metrics import BatchCounts, StepMetrics, peak_memory_gib
from mamba_lab.training.watch import Watch, name_of

BATCH = pack(some_sequences([4, 2, 3, 7]))


def a_step(number: int = 1, **changes: Any) -> StepMetrics:
    step = StepMetrics.of(
        BatchCounts.of([BATCH]),
        step=number,
        epoch=0,
        loss=4.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        seconds=0.5,
        waiting_seconds=0.0,
        memory_gib=0.0,
        seconds_left=None,
        skipped=False,
    )
    return replace(step, **changes)


def filled(number: int, tokens: int) -> StepMetrics:
    return a_step(number, tokens=tokens, positions=100, valid_ratio=tokens / 100)


def test_metrics_count_what_the_batches_hold() -> None:
    counts = BatchCounts.of([BATCH, pack(some_sequences([9]), 12)])
    assert counts == BatchCounts(tokens=25, targets=20, sequences=5, positions=28, longest=9)
    assert counts.valid_ratio == 25 / 28
    assert BatchCounts.of([]).valid_ratio == 1
    step = a_step()
    assert step.tgs == 32
    assert step.valid_ratio == 1
    values = replace(step, loss=math.nan, grad_norm=math.inf).to_dict()
    assert values["loss"] is values["grad_norm"] is None
    assert json.loads(json.dumps(values, allow_nan=False))["sequences"] == 4
    assert peak_memory_gib(torch.device("cpu")) > 0.01


def test_a_healthy_run_is_silent() -> None:
    watch = Watch()
    assert [watch.look(a_step(n, grad_norm=1 + n % 3), [BATCH], [4.0]) for n in range(1, 80)] == [[]] * 79


def test_low_valid_ratio_is_said_after_50_steps_once_until_it_recovers() -> None:
    def said(tokens: list[int]) -> list[int]:
        return [n for n, each in enumerate(tokens, 1) if watch.look(filled(n, each), [BATCH])]

    watch = Watch()
    assert said([79] * 120) == [50]
    assert said([100] * 2) == []
    assert said([79] * 120) == []  # 50 steps with two full ones among them were still low
    assert said([100] * 49) == []
    assert said([50] * 60) == [21]  # 30 full steps and 20 half empty ones are at 80%
    (message,) = (Watch(patience=1)).look(filled(7, 79), [BATCH])
    assert message.startswith(
        "valid ratio 79% over the last 1 steps, under 80%, up to step 7 (epoch 0, sequences 0, 1,"
    )
    assert "one long sequence among short ones" in message
    assert not Watch(patience=1).look(filled(7, 80), [BATCH])


def test_a_full_batch_now_and_then_hides_no_padding() -> None:
    watch = Watch()
    said = [bool(watch.look(filled(n, 100 if n % 9 == 0 else 47), [BATCH])) for n in range(1, 120)]
    assert [n for n, each in enumerate(said, 1) if each] == [50]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_names_its_micro_batch(value: float) -> None:
    batches = each_alone(some_sequences([4, 2, 3, 7]))
    (message,) = Watch().look(a_step(3, loss=value, grad_norm=value, skipped=True), batches, [4.0, 4.0, value, 4.0])
    assert message.startswith(f"loss {value} in step 3, micro-batch 3 of 4 (epoch 0, sequences 2, longest 3).")
    assert "learning rate too high (it was 0.001)" in message
    (message,) = Watch().look(a_step(3, grad_norm=value, skipped=True), batches, [4.0] * 4)
    assert message.startswith(f"gradient norm {value} in step 3 (epoch 0, sequences 0, 1, 2, 3, longest 7).")


def test_a_gradient_ten_times_its_median() -> None:
    watch = Watch()
    for n in range(1, 20):
        assert not watch.look(a_step(n, grad_norm=100.0 if n == 1 else 2.0), [BATCH])
    assert not watch.look(a_step(20, grad_norm=50.0), [BATCH])  # 19 steps are no median yet
    (message,) = watch.look(a_step(21, grad_norm=21.0), [BATCH])
    assert not watch.look(a_step(22, grad_norm=20.0), [BATCH])
    assert "gradient norm 21, 10 times its median 2, in step 21 (epoch 0, sequences 0, 1, 2, 3, longest 7)" in message
    assert "it had 12" in message
    # What was skipped is no part of the median.
    for n in range(200):
        watch.look(a_step(n, grad_norm=(math.nan, 0.0)[n % 2], skipped=True), [BATCH])
    assert watch.look(a_step(23, grad_norm=21.0), [BATCH])


def test_a_step_without_a_target_is_said_once() -> None:
    watch = Watch()
    (message,) = watch.look(a_step(5, targets=0, loss=0.0, grad_norm=0.0, skipped=True), [BATCH])
    assert message.startswith("no target in step 5 (epoch 0, sequences 0, 1, 2, 3, longest 7)")
    assert not watch.look(a_step(6, targets=0, loss=0.0, grad_norm=0.0, skipped=True), [BATCH])


def test_a_restored_watch_says_what_the_old_one_would() -> None:
    old = Watch()
    steps = [
        replace(filled(n, 90 if n < 55 else 50), grad_norm=1.0 + 0.1 * (n % 7) + 30 * (n == 80)) for n in range(1, 100)
    ]
    for step in steps[:60]:
        old.look(step, [BATCH])
    new = Watch()
    new.load_state_dict(json.loads(json.dumps(old.state_dict())))
    said = [(old.look(step, [BATCH]), new.look(step, [BATCH])) for step in steps[60:]]
    assert all(a == b for a, b in said)
    assert sum(bool(a) for a, _ in said) == 2
    assert new.state_dict() == old.state_dict()
    # And what was said is not said again.
    last = Watch()
    last.load_state_dict(json.loads(json.dumps(new.state_dict())))
    assert not last.look(filled(100, 50), [BATCH])


def test_many_sequences_are_counted() -> None:
    batch = pack(some_sequences([2] * 12), 40)
    assert name_of(a_step(), [batch]) == "step 1 (epoch 0, sequences 0, 1, 2, 3, 4, 5, 6, 7 and 4 more, longest 2)"
    assert "sequences none" in name_of(a_step(), [])
