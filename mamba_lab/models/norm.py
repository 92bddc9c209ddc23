"""RMSNorm that reads a float32 residual stream and answers in the precision of its layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x over its root mean square, times a weight (Zhang and Sennrich, arXiv 1910.07467).

    ``x`` [T, d] may be wider than the weight: the arithmetic is x's, the answer has the weight's dtype.
    """

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            normed = nn.functional.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide), self.eps)
        return normed.to(self.weight.dtype)


class LayerNorm(nn.LayerNorm):
    """The same rule of precision for mamba-ssm's models with ``rms_norm=False``."""

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.to(wide), self.bias.to(wide)
            normed = nn.functional.layer_norm(x.to(wide), self.normalized_shape, weight, bias, self.eps)
        return normed.to(self.weight.dtype)
