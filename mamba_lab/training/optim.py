"""AdamW with mamba-ssm's groups, and a learning rate that is a function of the step's number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from mamba_lab.log import logger

if TYPE_CHECKING:
    from .config import TrainingConfig

ScheduleType = Literal["cosine", "linear", "constant"]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The trainable parameters in two groups, with and without weight decay.

    Decay pulls a weight towards 0. ``A_log`` and ``D`` (which mamba-ssm marks) and the step's bias say how long a
    channel remembers: pulled to 0, all would remember alike. Biases and norms have no decay either. Matrices have,
    the convolution's taps and the embedding among them, as in mamba-ssm.

    The rule goes by name and shape, because marks on parameters are lost when a model is copied.

    Returns:
        The groups with weight decay and without; each has "names" beside PyTorch's "params" and "weight_decay". An
        empty one is left out.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = []
    for decay, wanted in ((weight_decay, True), (0.0, False)):
        chosen = [(name, p) for name, p in named if has_decay(name, p) is wanted]
        if chosen:
            names, parameters = zip(*chosen, strict=True)
            groups.append({"params": list(parameters), "names": list(names), "weight_decay": decay})
    return groups


def has_decay(name: str, parameter: torch.Tensor) -> bool:
    """Whether weight decay acts on a parameter of this name."""
    last = name.rsplit(".", 1)[-1]
    return parameter.dim() > 1 and last not in ("A_log", "D") and not last.endswith("bias")


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over ``parameter_groups``; on a GPU one fused kernel.

    Raises:
        ValueError: nothing to train, or weights of low precision, in which small updates would vanish.
    """
    groups = parameter_groups(model, config.weight_decay)
    if not groups:
        raise ValueError("model has no parameter that requires a gradient: nothing would be trained.")
    for group in groups:
        for name, p in zip(group["names"], group["params"], strict=True):
            if p.dtype not in (torch.float32, torch.float64):
                raise ValueError(
                    f"model has {name} in {p.dtype}, in which small updates vanish. Keep the weights in float32 "
                    f"(model.float()) and set training.bf16 = true: the forward pass runs in bfloat16 then."
                )
    on_gpu = groups[0]["params"][0].device.type == "cuda"
    return torch.optim.AdamW(
        # Names are for people: PyTorch's own key for them would travel through its state_dict.
        [{key: value for key, value in group.items() if key != "names"} for group in groups],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=on_gpu,
    )


def learning_rate_factor(step: int, *, warmup: int, total: int, kind: ScheduleType, min_ratio: float = 0.0) -> float:
    """What the learning rate of step ``step`` (0 is the first) is multiplied with.

    It climbs in a straight line over ``warmup`` steps, and the first of them moves already. Then it stays ("constant"),
    or falls from 1 towards ``min_ratio`` in a straight line ("linear") or half a cosine wave; step ``total``, the first
    that is not taken, would have it.
    """
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    done = min((step - warmup) / max(total - warmup, 1), 1.0)
    falling = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return min_ratio + (1 - min_ratio) * falling


class Schedule:
    """Sets the optimiser's learning rate before a step. The rate depends on the step's number alone.

    Args:
        optimizer: its groups get the same rate.
        config: learning_rate, warmup_steps or warmup_ratio, lr_scheduler_type, min_lr_ratio.
        total_steps: of the whole run.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: TrainingConfig, total_steps: int) -> None:
        self.optimizer, self.config = optimizer, config
        self.total_steps, self.warmup = total_steps, config.warmup(total_steps)
        if self.warmup > total_steps:
            logger.warning(
                "training.warmup_steps is %d and the run has %d steps: the learning rate never reaches "
                "training.learning_rate",
                self.warmup,
                total_steps,
            )

    def rate(self, step: int) -> float:
        """The learning rate of step ``step``; 0 is the first."""
        config = self.config
        factor = learning_rate_factor(
            step,
            warmup=self.warmup,
            total=self.total_steps,
            kind=config.lr_scheduler_type,
            min_ratio=config.min_lr_ratio,
        )
        return config.learning_rate * factor

    def set(self, step: int) -> float:
        """Give the optimiser the learning rate of step ``step``, and return it."""
        rate = self.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def state_dict(self) -> dict[str, Any]:
        """What the rates follow from, beside the configuration."""
        return {"total_steps": self.total_steps, "warmup": self.warmup}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore. A run that has become longer or shorter has other rates from here on: that is logged."""
        if state != self.state_dict():
            logger.warning(
                "the learning rate follows %d steps with %d of warm-up from here on; the checkpoint's run followed %d "
                "with %d",
                self.total_steps,
                self.warmup,
                state["total_steps"],
                state["warmup"],
            )
