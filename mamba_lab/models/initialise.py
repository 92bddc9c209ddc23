"""How a new MambaLM starts: mamba-ssm's rules, so that runs compare."""

from __future__ import annotations

import math

import torch
from torch import nn

from .config import MambaConfig
from .mixer import MambaMixer


@torch.no_grad()
def initialise(model: nn.Module, config: MambaConfig) -> None:
    """Set the starting values of every mixer and embedding in ``model``; other linear layers keep PyTorch's own.

    Biases of linear layers start at 0, except the step's. ``out_proj`` is divided by the root of the number of blocks,
    so that the residual stream does not grow with depth (GPT-2's rule).
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.initializer_range)
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    # After the loop, which has also met each mixer's own layers.
    for module in model.modules():
        if isinstance(module, MambaMixer):
            _mixer(module, config)


def _mixer(mixer: MambaMixer, config: MambaConfig) -> None:
    spread = config.rank**-0.5 * config.dt_scale
    if config.dt_init == "constant":
        nn.init.constant_(mixer.dt_proj.weight, spread)
    else:
        nn.init.uniform_(mixer.dt_proj.weight, -spread, spread)
    # Steps start between dt_min and dt_max on a log scale: some channels forget soon, others late.
    low, high = math.log(config.dt_min), math.log(config.dt_max)
    step = torch.exp(torch.empty_like(mixer.dt_proj.bias).uniform_(low, high)).clamp(min=config.dt_init_floor)
    mixer.dt_proj.bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
    mixer.A_log.copy_(torch.log(torch.arange(1.0, config.d_state + 1)).expand_as(mixer.A_log))
    mixer.D.fill_(1.0)
    mixer.out_proj.weight.div_(math.sqrt(config.n_layer))
