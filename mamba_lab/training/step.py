"""One global step: micro-batches in, one mean loss and its gradient out, one update of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .loss import Loss, language_loss, scale_to_mean

# Adds tensors up over all ranks, in place. A single process needs none.
SumOverRanks = Callable[[Sequence[Tensor]], None]


@dataclass(frozen=True)
class StepResult:
    """What a global step's gradient is the gradient of.

    Attributes:
        loss: the mean over all weights; 0 without any.
        weight: the sum of the weights over all micro-batches and ranks.
        grad_norm: of the mean loss's gradient, before clipping.
        micro_losses: each micro-batch's loss_sum, on this rank.
    """

    loss: float
    weight: float
    grad_norm: float
    micro_losses: list[float]

    @property
    def finite(self) -> bool:
        """Whether the loss and the gradient are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def backward(
    model: nn.Module,
    batches: Sequence[Any],
    *,
    loss: Loss = language_loss,
    bf16: bool = False,
    max_grad_norm: float | None = None,
    sum_over_ranks: SumOverRanks | None = None,
) -> StepResult:
    """Leave in ``model``'s gradients that of the mean loss over all ``batches`` together, clipped.

    However the step is cut into micro-batches, packs and ranks, the result is the same to rounding. The host waits for
    a GPU once.

    Args:
        batches: the micro-batches; each moves to the model's device.
        loss: from (model, batch) to (loss_sum, weight_sum).
        bf16: forward under bfloat16 autocast. Weights, gradients and sums stay float32.
        max_grad_norm: a gradient that is longer is shortened to it; None or 0: never.
        sum_over_ranks: adds gradients and sums up over the ranks.
    """
    device = next(model.parameters()).device
    model.zero_grad(set_to_none=True)
    sums = []
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss_sum, weight_sum = loss(model, batch.to(device))
        loss_sum.backward()  # of the sum: gradients add up, nothing is divided yet
        sums.append(torch.stack((loss_sum.detach(), weight_sum.detach())).double())
    micro = torch.stack(sums)
    total = micro.sum(0)
    parameters = [p for p in model.parameters() if p.grad is not None]
    if sum_over_ranks is not None:
        sum_over_ranks([*(p.grad for p in parameters if p.grad is not None), total])
    scale_to_mean(parameters, total[1])
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if max_grad_norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    (loss_sum_, weight, grad_norm), *_ = [[*total.tolist(), norm.item()]]
    return StepResult(loss_sum_ / weight if weight else 0.0, weight, grad_norm, micro[:, 0].tolist())
