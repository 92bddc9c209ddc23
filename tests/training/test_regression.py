"""Continuous sequences: next rows as targets, packed as each alone, the losses, the regulariser, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_help import gradient_of

from mamba_lab.models import MambaConfig
from mamba_lab.training.config import TrainConfig, TrainingConfig
from mamba_lab.training.evaluate import evaluate
from mamba_lab.training.regression import (
    DISTANCES,
    MambaRegressor,
    pack_series,
    regression_loss,
    series_batches,
)
from mamba_lab.training.step import backward
from mamba_lab.training.train_regressor import train_regressor

CONFIG = MambaConfig(d_model=16, n_layer=2, vocab_size=1, d_state=4)


def model(n_features: int = 2, n_outputs: int | None = None, **sizes: Any) -> MambaRegressor:
    torch.manual_seed(0)
    return MambaRegressor(CONFIG, n_features, n_outputs, **sizes)


def some_series(lengths: list[int], n_features: int = 2, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    drawn = np.random.RandomState(seed)
    return [drawn.normal(size=(length, n_features)).astype(np.float32) for length in lengths]


def test_the_target_is_the_next_row_of_the_same_series() -> None:
    a, b = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], torch.tensor([[7, 8]])
    batch = pack_series([a, b])
    assert batch.inputs.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert batch.targets[batch.counted].tolist() == [[3, 4], [5, 6]]
    assert batch.counted.tolist() == [True, True, False, False]
    assert batch.boundaries.cu_seqlens.tolist() == [0, 3, 4]
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.float32, torch.float32)
    own = pack_series([a, b], targets=[[[1.0]] * 3, [[2.0]]], indices=[1, 0])
    assert own.targets.tolist() == [[2], [1], [1], [1]]
    assert own.counted.all()
    assert own.sequence.tolist() == [1, 0]


@pytest.mark.parametrize("distance", [*DISTANCES, "own"])
def test_packed_is_each_alone(distance: str) -> None:
    series, net = some_series([5, 1, 12, 3, 8]), model()
    how: Any = (lambda p, t: (p - t).abs().amax(1)) if distance == "own" else distance
    loss = regression_loss(how)
    backward(net, series_batches(series, 13), loss=loss)
    packed = gradient_of(net)
    alone = [pack_series(series, indices=[i]) for i in range(len(series))]
    result = backward(net, alone, loss=loss)
    assert result.weight == 4 + 0 + 11 + 2 + 7
    torch.testing.assert_close(packed, gradient_of(net), rtol=1e-4, atol=1e-6)
    assert evaluate(net, series_batches(series, 13), loss=loss).loss == pytest.approx(
        evaluate(net, alone, loss=loss).loss, rel=1e-5
    )


@given(st.integers(0, 4))
@settings(max_examples=5, deadline=None)
def test_nothing_leaks_from_one_series_into_another(changed: int) -> None:
    series, net = some_series([5, 1, 12, 3, 8]), model()
    batch = pack_series(series)
    series[changed] = series[changed] + 1
    other = pack_series(series)
    same = batch.boundaries.seq_idx != changed
    with torch.no_grad():
        one, two = net(batch.inputs, batch.boundaries), net(other.inputs, other.boundaries)
    assert torch.equal(one[same], two[same])
    assert not torch.equal(one[~same], two[~same])


def test_the_losses_are_pytorch_s_means() -> None:
    series, net = some_series([6, 9]), model()
    batch = pack_series(series)
    prediction = net(batch.inputs, batch.boundaries)[batch.counted]
    targets = batch.targets[batch.counted]
    wanted = {
        "mse": F.mse_loss(prediction, targets),
        "l1": F.l1_loss(prediction, targets),
        "smooth_l1": F.smooth_l1_loss(prediction, targets),
    }
    for name, value in wanted.items():
        assert evaluate(net, [batch], loss=regression_loss(name)).loss == pytest.approx(value.item(), rel=1e-6)
    assert len({round(value.item(), 6) for value in wanted.values()}) == 3


def test_the_regulariser_counts_once_a_step_in_however_many_pieces() -> None:
    series, net = some_series([6, 9, 2, 5]), model()

    def size(network: Any) -> torch.Tensor:
        return 0.1 * sum(p.square().sum() for p in network.parameters())

    plain = backward(net, [pack_series(series)], loss=regression_loss("mse")).loss
    found = []
    for capacity in (22, 9):
        result = backward(net, series_batches(series, capacity), loss=regression_loss("mse", size))
        assert result.loss == pytest.approx(plain + size(net).item(), rel=1e-5)
        found.append(gradient_of(net))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_every_series_is_in_one_batch_whole() -> None:
    series = some_series([5, 1, 12, 3, 8, 12])
    batches = series_batches(series, 13)
    assert sorted(number for batch in batches for number in batch.sequence.tolist()) == list(range(6))
    assert all(len(batch.inputs) <= 13 for batch in batches)
    assert sum(len(batch.inputs) for batch in batches) == 41  # no padding


def test_it_learns_what_repeating_the_last_row_does_not_know() -> None:
    rng = np.random.RandomState(1)
    series = []
    for length in rng.randint(20, 60, 24):
        phase = rng.uniform(0, 6) + np.arange(length) * 0.7
        series.append(np.stack((np.sin(phase), np.cos(phase)), 1))
    training = TrainingConfig(
        learning_rate=1e-2, max_steps=60, num_train_epochs=60, eval_steps=20, device="cpu", warmup_steps=5
    )
    net = model()
    result = train_regressor(net, series[:20], training, capacity=256, validation=series[20:])
    persistence = np.mean([np.square(np.diff(one, axis=0)).mean() for one in series[20:]])
    assert [step for step, _ in result.validation] == [20, 40, 60]
    assert result.validation[-1][1] < 0.2 * persistence
    assert result.losses[-1] < 0.2 * result.losses[0]
    assert (len(result.losses), len(result.grad_norms), result.skipped) == (60, 60, 0)


def test_the_loop_repeats_itself_and_its_steps_are_the_settings() -> None:
    series = some_series([8] * 6)

    def train(**changes: Any) -> Any:
        settings = {"num_train_epochs": 2, "gradient_accumulation_steps": 2, "device": "cpu"} | changes
        return train_regressor(model(), series, TrainingConfig(**settings), capacity=16)

    one, two = train(), train()
    assert one.losses == two.losses
    assert len(one.losses) == 2 * 2  # three batches, two a step
    assert len(train(max_steps=3).losses) == 3
    assert train(seed=1).losses != one.losses
    assert train(learning_rate=1e-5).losses[0] == one.losses[0]
    assert train(learning_rate=1e-5).losses[1:] != one.losses[1:]
    assert train(warmup_steps=50).losses[0] == one.losses[0]
    assert train(warmup_steps=50).losses[1:] != one.losses[1:]  # the schedule is followed


def test_every_epoch_has_its_own_order() -> None:
    seen: list[float] = []

    def distance(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(float(target.sum()))
        return (prediction - target).square()

    training = TrainingConfig(num_train_epochs=4, device="cpu")
    train_regressor(model(), some_series([8] * 6), training, capacity=8, distance=distance)
    epochs = [tuple(seen[at : at + 6]) for at in range(0, 24, 6)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
    assert len(set(epochs)) > 1


def test_own_targets_of_another_width() -> None:
    series = some_series([8, 5])
    targets = [one.sum(1, keepdims=True) for one in series]
    result = train_regressor(
        model(2, 1),
        series,
        TrainingConfig(num_train_epochs=3, device="cpu"),
        capacity=16,
        targets=targets,
        distance="l1",
    )
    assert len(result.losses) == 3
    with pytest.raises(ValueError, match=r"predicts \[13, 2\], and targets are \[13, 1\].*n_outputs=1"):
        train_regressor(model(2), series, TrainingConfig(device="cpu"), capacity=16, targets=targets)
    with pytest.raises(ValueError, match="cannot go with own targets"):
        train_regressor(
            model(2, 1), series, TrainingConfig(device="cpu"), capacity=16, targets=targets, validation=series
        )


def test_a_step_that_is_not_finite_is_skipped_and_counted() -> None:
    def broken(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (prediction - target).sum(1) * float("nan")

    net = model()
    before = [p.clone() for p in net.parameters()]
    result = train_regressor(
        net, some_series([8, 5]), TrainingConfig(num_train_epochs=2, device="cpu"), capacity=16, distance=broken
    )
    assert result.skipped == 2
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "series is empty"),
        ([[1.0, 2.0]], r"series\[0\] must be \[n, F\] with n of at least 1, got \[2\]"),
        ([np.zeros((0, 2))], r"series\[0\] must be \[n, F\] with n of at least 1, got \[0, 2\]"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], r"series\[1\] has 1 features, series\[0\] has 2"),
        ([np.array([[1.0, np.nan]])], r"series\[0\]\[0, 1\] is nan. Fill gaps"),
        ([np.array([[1e300]])], r"series\[0\]\[0, 0\] is inf. Fill gaps before, scale what float32 does not hold"),
        ([[[1.0], [2.0, 3.0]]], r"series\[0\] must be an array of numbers \[n, F\]"),
        ([torch.zeros(2, 2, device="meta")], r"series\[0\] must lie on the host|series\[0\] must be an array"),
    ],
)
def test_bad_series_are_refused(series: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_series(series)


def test_bad_arguments_are_refused() -> None:
    series = some_series([4, 3])
    with pytest.raises(ValueError, match="targets has 1 entries and series 2"):
        pack_series(series, targets=series[:1])
    with pytest.raises(ValueError, match=r"targets\[1\] has 4 rows, its series 3"):
        pack_series(series, targets=[series[0], series[0]])
    with pytest.raises(ValueError, match=r"series\[0\] has 4 positions, above the capacity 3. Raise it to at "):
        series_batches(series, 3)
    with pytest.raises(ValueError, match="distance must be one of 'mse', 'l1', 'smooth_l1' or a function"):
        regression_loss("huber")
    with pytest.raises(ValueError, match=r"distance must give a loss for each entry \[5, 2\] .* got \[\]"):
        regression_loss(F.mse_loss)(model(), pack_series(series))
    with pytest.raises(ValueError, match=r"inputs must be \[T, 3\], got \[7, 2\]"):
        regression_loss()(model(3), pack_series(series))
    with pytest.raises(ValueError, match="boundaries cover 7 positions, inputs has 6"):
        model()(torch.zeros(6, 2), pack_series(series).boundaries)
    with pytest.raises(ValueError, match="n_features must be at least 1"):
        model(0)


TWO = some_series([5, 7])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": {"d_model": 8}},
            r"^model must be a MambaRegressor, got dict\. Make one with MambaRegressor",
        ),
        ({"training": {"max_steps": 2}}, r"^training must be a TrainingConfig, got dict\. Make one with TrainingC"),
        ({"training": TrainConfig()}, r"^training must be a TrainingConfig, got TrainConfig\. Pass config\."),
        ({"series": {"a": TWO[0]}}, r"^series must be a list of arrays \[n, F\], got \{'a'"),
        ({"series": "abc"}, r"^series must be a list of arrays \[n, F\], got 'abc'\.$"),
        ({"series": None}, r"^series must be a list of arrays \[n, F\], got None\.$"),
        ({"series": iter(TWO)}, r"^series must be a list of arrays"),
        ({"series": []}, r"^series is empty: there is nothing to train on\."),
        ({"series": [1.0, 2.0]}, r"^series\[0\] must be \[n, F\] with n of at least 1, got \[\]"),
        ({"series": [TWO[0], np.zeros((0, 2))]}, r"^series\[1\] must be \[n, F\] with n of at least 1, got \[0, 2\]"),
        ({"series": [TWO[0], np.zeros((3, 4))]}, r"^series\[1\] has 4 features, series\[0\] has 2"),
        (
            {"series": some_series([5], 3)},
            r"^inputs must be \[T, 2\], got \[5, 3\]\. Build the model with n_f",
        ),
        ({"validation": {0: TWO[0]}}, r"^validation must be a list of arrays"),
        ({"validation": [np.zeros((9, 2))]}, r"^validation\[0\] has 9 positions, above the capacity 8\."),
        ({"validation": TWO, "targets": TWO}, r"^validation series have their next rows as targets"),
        ({"targets": {0: TWO[0], 1: TWO[1]}}, r"^targets must be a list of arrays"),
        ({"targets": 5}, r"^targets must be a list of arrays"),
        ({"regulariser": 0.1}, r"^regulariser must be a function of the model, or None, got 0\.1\.$"),
        ({"regulariser": lambda m: m.in_layer.weight}, r"^regulariser must give a scalar, got a tensor \[16, 2\]\."),
        ({"regulariser": lambda _: None}, r"^regulariser must give a scalar, got None\."),
        ({"distance": lambda p, t: 1.0}, r"^distance must give a loss for each entry \[10, 2\] or .* got 1\.0\."),
    ],
)
def test_an_argument_of_another_kind_is_named(given: dict[str, Any], message: str) -> None:
    own: dict[str, Any] = {"model": model(), "series": TWO, "training": TrainingConfig(max_steps=2, device="cpu")}
    with pytest.raises(ValueError, match=message):
        train_regressor(**(own | given), capacity=12 if "distance" in given else 8)


def test_a_regressor_of_another_kind() -> None:
    given: Any = {"d_model": 8}
    with pytest.raises(ValueError, match=r"^config must be a MambaConfig, got dict\. Use MambaConfig\.from_dict\.$"):
        MambaRegressor(given, 2)
    with pytest.raises(ValueError, match=r"^backend must be 'auto' or one of reference, cpu, triton, cuda, got 'gpu'"):
        model(backend="gpu")
    given = TWO[0]
    with pytest.raises(ValueError, match=r"^inputs must be a tensor and boundaries Boundaries, got ndarray and None"):
        model()(given, None)
    with pytest.raises(ValueError, match=r"^indices has 5, but there are 2 series, 0 to 1\.$"):
        pack_series(TWO, indices=[1, 5])
