"""Validation on packs, exact: the mean over every target of the whole set, whatever batch it lies in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .loss import Loss, language_loss


@dataclass(frozen=True)
class Validation:
    """The mean loss of a set of batches.

    Attributes:
        loss: in nats, the sum of all losses over the sum of all weights; NaN where no position counted.
        weight: the sum of the weights: the number of targets where each weighs 1.
        batches: how many there were.
    """

    loss: float
    weight: float
    batches: int

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where no float holds it."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], *, loss: Loss = language_loss, bf16: bool = False) -> Validation:
    """The mean loss of ``model`` over ``batches``, its mode and gradients left as they are.

    Sums are divided once, at the end. So packs, padded batches and one sequence at a time agree to rounding, and a
    last batch that is smaller counts for what it holds.

    Args:
        batches: each moves to the model's device.
        loss: from (model, batch) to (loss_sum, weight_sum).
        bf16: run the model under bfloat16 autocast.
    """
    device = next(model.parameters()).device
    total, count, training = torch.zeros(2, dtype=torch.float64), 0, model.training
    model.eval()
    try:
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                sums = loss(model, batch.to(device))
            total += torch.stack(sums).double().cpu()
            count += 1
    finally:
        model.train(training)
    loss_sum, weight_sum = total.tolist()
    return Validation(loss_sum / weight_sum if weight_sum else math.nan, weight_sum, count)
