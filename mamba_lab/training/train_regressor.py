"""A small training loop for continuous sequences, with the language model's optimiser, schedule and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from mamba_lab.batching._epoch import permutation

from .evaluate import evaluate
from .kinds import require_gradients, require_training
from .optim import Schedule, make_optimizer
from .prepare import pick_device, uses_bf16
from .regression import Distance, MambaRegressor, Series, regression_loss, series_batches
from .step import backward, update

if TYPE_CHECKING:
    from .config import TrainingConfig


@dataclass
class RegressionResult:
    """What ``train_regressor`` leaves.

    Attributes:
        losses: of every step, the regulariser among it.
        grad_norms: of every step, before clipping.
        validation: (step, loss without the regulariser) after every ``eval_steps`` and at the end.
        skipped: steps without an update, because a number was not finite or no position had a target.
    """

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    skipped: int = 0


def train_regressor(
    model: MambaRegressor,
    series: Sequence[Series],
    training: TrainingConfig,
    *,
    capacity: int,
    targets: Sequence[Series] | None = None,
    distance: str | Distance = "mse",
    regulariser: Callable[[nn.Module], Tensor] | None = None,
    validation: Sequence[Series] = (),
) -> RegressionResult:
    """Train ``model`` in place on ``series``, packed.

    Args:
        training: of it count learning_rate, weight_decay and the other numbers of AdamW, the schedule, max_grad_norm,
            gradient_accumulation_steps, num_train_epochs, max_steps, eval_steps, seed (of the order), bf16, device.
        capacity: positions of a batch.
        targets: as ``pack_series`` takes them; the next row by default.
        distance, regulariser: as ``regression_loss`` takes them.
        validation: series to validate on, with their next rows as targets.

    Raises:
        ValueError: as for ``series_batches`` and ``regression_loss``; an argument of another kind; no series;
            validation series beside own targets.
    """
    if not isinstance(model, MambaRegressor):
        raise ValueError(
            f"model must be a MambaRegressor, got {type(model).__name__}. Make one with MambaRegressor(config, "
            f"n_features)."
        )
    require_training(training)
    require_gradients()
    loss, plain = regression_loss(distance, regulariser), regression_loss(distance)
    batches = series_batches(series, capacity, targets=targets)
    held_out = series_batches(validation, capacity, name="validation")
    if not batches:
        raise ValueError("series is empty: there is nothing to train on. Give at least one.")
    if targets is not None and held_out:
        raise ValueError("validation series have their next rows as targets, so they cannot go with own targets.")
    device = pick_device(training.device)
    bf16 = uses_bf16(training, device)
    together = training.gradient_accumulation_steps
    per_epoch = -(-len(batches) // together)
    total = per_epoch * training.num_train_epochs
    total = total if training.max_steps is None else min(total, training.max_steps)
    model.to(device).train()
    optimizer = make_optimizer(model, training)
    schedule = Schedule(optimizer, training, total)
    result = RegressionResult()
    order: list[int] = []
    for step in range(total):
        if step % per_epoch == 0:
            bits = np.random.PCG64(np.random.SeedSequence([training.seed, step // per_epoch]))
            order = permutation(bits, len(batches)).tolist()
        first = step % per_epoch * together
        schedule.set(step)
        mean = backward(model, [batches[i] for i in order[first : first + together]], loss=loss, bf16=bf16)
        result.skipped += not update(model, optimizer, mean, training.max_grad_norm)
        result.losses.append(mean.loss)
        result.grad_norms.append(mean.grad_norm)
        due = training.eval_steps is not None and (step + 1) % training.eval_steps == 0
        if held_out and (due or step + 1 == total):
            result.validation.append((step + 1, evaluate(model, held_out, loss=plain, bf16=bf16).loss))
    return result
