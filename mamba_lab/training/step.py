"""One global step: micro-batches in, one mean loss and its gradient out, then one update of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .loss import Loss, language_loss, scale_to_mean

# Adds each tensor up over all ranks, in place. A single process needs none.
SumOverRanks: TypeAlias = "Callable[[Sequence[Tensor]], None]"


@dataclass(frozen=True)
class StepResult:
    """The mean loss of a global step, and the gradient that ``backward`` left in the model.

    Attributes:
        loss: the mean over all weights; 0 without any.
        weight: the sum of the weights, over all micro-batches and ranks.
        grad_norm: length of the mean loss's gradient, before clipping.
        micro_losses: each micro-batch's sum of losses, on this rank.
    """

    loss: float
    weight: float
    grad_norm: float
    micro_losses: list[float]

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def backward(
    model: nn.Module,
    batches: Sequence[Any],
    *,
    loss: Loss = language_loss,
    bf16: bool = False,
    sum_over_ranks: SumOverRanks | None = None,
) -> StepResult:
    """Leave in ``model`` the gradient of the mean loss over all ``batches`` together.

    However the step is cut into micro-batches, packs and ranks, this is the same to rounding. The host waits for a GPU
    once.

    Args:
        batches: the micro-batches, at least one; each moves to the model's device.
        loss: from (model, batch) to (loss_sum, weight_sum).
        bf16: forward under bfloat16 autocast. Weights, gradients and sums stay float32.
        sum_over_ranks: adds gradients and sums up over the ranks.

    Raises:
        ValueError: no batch.
    """
    if not batches:
        raise ValueError("batches is empty: a step needs at least one micro-batch.")
    parameters = list(model.parameters())
    device = parameters[0].device
    model.zero_grad(set_to_none=True)
    sums = []
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss_sum, weight_sum = loss(model, batch.to(device))
        loss_sum.backward()  # of the sum: gradients add up, and nothing is divided yet
        sums.append(torch.stack((loss_sum.detach().double(), weight_sum.detach().double())))
    micro = torch.stack(sums)
    total = micro.sum(0)
    if sum_over_ranks is not None:
        sum_over_ranks([*gradients(parameters), total])
    scale_to_mean(parameters, total[1])  # divided once, by the weights of the whole step
    norm = torch.nn.utils.get_total_norm(gradients(parameters))
    loss_total, weight, grad_norm, *losses = torch.cat((total, norm.double()[None], micro[:, 0])).tolist()
    return StepResult(loss_total / weight if weight else 0.0, weight, grad_norm, losses)


@torch.no_grad()
def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, result: StepResult, max_grad_norm: float | None = None
) -> bool:
    """Clip the gradient that ``backward`` left and take the optimiser's step.

    Args:
        max_grad_norm: a longer gradient is shortened to this length; None or 0: never.

    Returns:
        False where there was nothing to learn from, because no position counted or a number was not finite. Then
        neither weights nor optimiser have changed.
    """
    if not result.finite or not result.weight:
        return False
    if max_grad_norm and result.grad_norm > max_grad_norm:
        torch._foreach_mul_(gradients(model.parameters()), max_grad_norm / result.grad_norm)
    optimizer.step()
    return True


def gradients(parameters: Any) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [p.grad for p in parameters if p.grad is not None]
