"""A loss is two sums: of the weighted losses, and of the weights. They are divided once, over the whole global step.

Dividing each micro-batch by its own weights and then taking the mean is the accumulation bug: a micro-batch with one
target would count as much as one with a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mamba_lab.batching import Batch

# From (model, batch) to (loss_sum, weight_sum), both scalars; loss_sum has a gradient.
Loss: TypeAlias = "Callable[[Any, Any], tuple[Tensor, Tensor]]"


def language_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The sums over one batch of the cross-entropy in nats: of weight times loss, and of the weights.

    Without ``batch.weights`` every target weighs 1: the mean over the step is the token mean. With weights of
    1 / (targets of its sequence) every sequence weighs 1: it is the mean of the sequences' means.

    Args:
        model: a MambaLM, compiled or not.
        batch: on the model's device.
    """
    loss_sum, weight_sum = model(batch.input_ids, batch.boundaries, targets=batch.targets, weights=batch.weights)
    return loss_sum, weight_sum


@torch.no_grad()
def scale_to_mean(parameters: Iterable[nn.Parameter], weight_sum: Tensor) -> None:
    """Turn gradients of the sum into gradients of the mean, in place: once a step, before clipping.

    A ``weight_sum`` of 0 leaves gradients of 0, never NaN. One that is no number gives gradients that are none.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:
        share = torch.where(weight_sum != 0, 1 / weight_sum, 0.0)
        torch._foreach_mul_(gradients, share.to(gradients[0].dtype))
