"""The residual stream on a GPU: a block's output is added and the next block's norm taken in one kernel.

What it computes is ``x + branch`` and ``RMSNorm`` after it, each as ``mamba.MambaBlock`` writes it. A backbone comes
here when nobody could tell the difference: ``why_not`` says what stands in the way.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from mamba_lab.ops import _triton_ops

from .norm import RMSNorm
from .plain import why_not_plain


def fusable(x: Tensor, norms: list[nn.Module]) -> bool:
    """Whether ``add_norm`` can take the place of these norms and of the sums before them.

    Args:
        x: the residual stream.
        norms: of every block, and the last one.
    """
    if torch.compiler.is_compiling() or x.dtype != torch.float32:
        return False
    if not (x.is_cuda or _triton_ops.INTERPRETED) or _triton_ops.missing("the residual stream's kernel") is not None:
        return False
    return all(why_not_plain(norm, RMSNorm) is None for norm in norms)


def add_norm(residual: Tensor, branch: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """(norm(residual + branch), residual + branch).

    Args:
        residual: [T, d], float32.
        branch: [T, d], what the block before added; None at the first.
        norm: an RMSNorm.

    Returns:
        The norm in the dtype of its weight, under autocast in autocast's: what the layer behind it would cast it to.
        The sum in float32.
    """
    assert isinstance(norm, RMSNorm)  # fusable looked
    dtype, device = norm.weight.dtype, residual.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    normed, total = _AddNorm.apply(residual.contiguous(), branch, norm.weight, norm.eps, dtype)
    return normed, total


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, branch: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        kernels = importlib.import_module("mamba_lab.ops.triton.add_norm")
        branch = None if branch is None else branch.contiguous()
        normed, total, rms = kernels.forward(residual, branch, weight, eps, dtype)
        ctx.save_for_backward(total, rms, weight)
        ctx.branch_dtype = None if branch is None else branch.dtype
        ctx.set_materialize_grads(False)
        if branch is None:
            total = total.view_as(total)  # autograd wants another tensor than the argument
        return normed, total

    @staticmethod
    def backward(ctx: Any, dnormed: Tensor | None, dtotal: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("the norm's kernel has no second derivative: use MambaLM(config, backend='reference').")
        total, rms, weight = ctx.saved_tensors
        if dnormed is None:
            dbranch = None if ctx.branch_dtype is None or dtotal is None else dtotal.to(ctx.branch_dtype)
            return dtotal, dbranch, None, None, None
        kernels = importlib.import_module("mamba_lab.ops.triton.add_norm")
        dtotal = None if dtotal is None else dtotal.contiguous()
        found = kernels.backward(dnormed.contiguous(), dtotal, total, rms, weight, ctx.branch_dtype)
        return (*found, None, None)
