"""Weight decay goes by name, weights stay float32, the learning rate is a function of the step's number."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loop_help import small_model

from mamba_lab.training.config import TrainingConfig
from mamba_lab.training.optim import Schedule, has_decay, learning_rate_factor, make_optimizer, parameter_groups


def test_what_has_weight_decay() -> None:
    model = small_model(n_layer=1, bias=True, rms_norm=False)
    decayed, spared = (set(group["names"]) for group in parameter_groups(model, 0.1))
    mixer = "backbone.layers.0.mixer."
    assert decayed == {
        "backbone.embedding.weight",
        *(mixer + name for name in ("in_proj.weight", "conv1d.weight", "x_proj.weight", "dt_proj.weight")),
        mixer + "out_proj.weight",
    }
    assert spared == {
        "backbone.norm_f.weight",
        "backbone.norm_f.bias",
        "backbone.layers.0.norm.weight",
        "backbone.layers.0.norm.bias",
        *(mixer + name for name in ("A_log", "D", "conv1d.bias", "dt_proj.bias", "in_proj.bias", "out_proj.bias")),
    }


def test_the_groups_survive_a_copy_that_loses_marks() -> None:
    model = copy.deepcopy(small_model())
    assert not hasattr(model.backbone.layers[0].mixer.A_log, "_no_weight_decay")
    with_decay, without = parameter_groups(model, 0.1)
    assert with_decay["weight_decay"] == 0.1
    assert without["weight_decay"] == 0
    assert any(name.endswith("A_log") for name in without["names"])
    assert len(with_decay["params"]) + len(without["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("name", ["A_log", "a.D", "x.bias", "x.dt_bias"])
def test_names_win_over_shapes(name: str) -> None:
    assert not has_decay(name, torch.ones(3, 3))


def test_what_is_frozen_is_in_no_group() -> None:
    model = small_model(n_layer=1)
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("A_log"))
    (group,) = parameter_groups(model, 0.1)
    assert group["names"] == ["backbone.layers.0.mixer.A_log"]
    assert group["weight_decay"] == 0
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        make_optimizer(model, TrainingConfig())


def test_decay_reaches_only_what_has_it() -> None:
    model = small_model(n_layer=1)
    optimizer = make_optimizer(model, TrainingConfig(learning_rate=0.5, weight_decay=0.2, adam_epsilon=1e-3))
    assert optimizer.defaults["betas"] == (0.9, 0.95)
    assert optimizer.defaults["eps"] == 1e-3
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        shrunk = 1 - 0.5 * 0.2 if has_decay(name, p) else 1
        torch.testing.assert_close(p.detach(), before[name] * shrunk)


def test_weights_of_low_precision_are_refused() -> None:
    with pytest.raises(ValueError, match=r"backbone.embedding.weight in torch.bfloat16.*training.bf16 = true"):
        make_optimizer(small_model().bfloat16(), TrainingConfig())


def test_warm_up_moves_from_the_first_step_and_reaches_the_peak() -> None:
    rates = [learning_rate_factor(step, warmup=4, total=12, kind="constant") for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1, 1, 1]
    assert learning_rate_factor(0, warmup=0, total=5, kind="cosine") == 1


@pytest.mark.parametrize(("kind", "half"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_the_rate_falls_to_its_floor(kind: str, half: float) -> None:
    def at(step: int) -> float:
        return learning_rate_factor(step, warmup=2, total=10, kind=kind, min_ratio=0.1)  # type: ignore[arg-type]

    assert at(2) == 1
    assert at(6) == pytest.approx(half)
    assert at(10) == pytest.approx(1 if kind == "constant" else 0.1)
    assert at(99) == at(10)
    quarter = {"linear": 0.775, "cosine": 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2, "constant": 1.0}
    assert at(4) == pytest.approx(quarter[kind])


@given(
    warmup=st.integers(0, 30),
    total=st.integers(1, 30),
    kind=st.sampled_from(["cosine", "linear", "constant"]),
    floor=st.floats(0, 1),
)
def test_a_rate_is_between_0_and_the_peak_and_never_rises_after_warm_up(
    warmup: int, total: int, kind: str, floor: float
) -> None:
    rates = [
        learning_rate_factor(step, warmup=warmup, total=total, kind=kind, min_ratio=floor)  # type: ignore[arg-type]
        for step in range(40)
    ]
    assert all(0 <= rate <= 1 + 1e-12 for rate in rates)
    assert all(earlier < later for earlier, later in itertools.pairwise(rates[:warmup]))
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(rates[warmup:]))


def test_the_schedule_sets_all_groups_and_needs_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    model = small_model(n_layer=1)
    config = TrainingConfig(learning_rate=0.4, warmup_steps=4, lr_scheduler_type="linear", min_lr_ratio=0.0)
    optimizer = make_optimizer(model, config)
    schedule = Schedule(optimizer, config, 8)
    assert schedule.set(0) == pytest.approx(0.1)
    assert schedule.set(6) == pytest.approx(0.2)
    assert [group["lr"] for group in optimizer.param_groups] == [schedule.rate(6)] * 2
    again = Schedule(optimizer, config, 8)
    again.load_state_dict(schedule.state_dict())
    assert again.set(6) == schedule.rate(6)
    assert not caplog.records
    longer = Schedule(optimizer, config, 80)
    longer.load_state_dict(schedule.state_dict())
    assert "follows 80 steps with 4 of warm-up from here on; the checkpoint's run followed 8" in caplog.text


def test_a_warm_up_longer_than_the_run_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = TrainingConfig(warmup_steps=9)
    optimizer = make_optimizer(small_model(n_layer=1), config)
    Schedule(optimizer, config, 9)
    assert caplog.messages == []
    Schedule(optimizer, config, 8)
    assert caplog.messages == [
        "training.warmup_steps is 9 and the run has 8 steps: the learning rate never reaches training.learning_rate"
    ]
