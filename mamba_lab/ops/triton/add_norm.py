"""Residual sum and RMSNorm in one pass over memory, forward and backward; what ``models/residual.py`` calls.

    residual' = residual + branch            float32
    normed    = residual' / rms(residual') * weight

Cost of a token of d channels, branch and normed in bfloat16: forward reads 6 d bytes and writes 6 d, backward reads
10 d and writes 6 d. In PyTorch's own operators the two take about twice as much, because the float32 stream is read
and written once for the sum, once for the norm and once more for the change of precision.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kernel import ROUNDED, on_device_of

ROWS = 8
"""Tokens whose part of the weight's gradient one program adds up."""


@triton.jit
def add_norm_forward(
    residual, branch, weight, total, normed, rms, eps, D: tl.constexpr, HAS_BRANCH: tl.constexpr, BLOCK: tl.constexpr
):
    """One token a program."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < D
    x = tl.load(residual + row * D + at, mask=real, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        x += tl.load(branch + row * D + at, mask=real, other=0.0).to(tl.float32)
        tl.store(total + row * D + at, x, mask=real)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)
    w = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    tl.store(rms + row, inverse)
    tl.store(normed + row * D + at, (x * inverse * w).to(normed.dtype.element_ty), mask=real)


@triton.jit
def add_norm_backward(
    dnormed,
    dtotal,
    total,
    rms,
    weight,
    dresidual,
    dbranch,
    dweight_parts,
    tokens,
    D: tl.constexpr,
    HAS_DTOTAL: tl.constexpr,
    HAS_BRANCH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``ROWS`` tokens a program, one after the other."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    at = tl.arange(0, BLOCK)
    real = at < D
    w = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROWS):
        row = first + i
        here = real & (row < tokens)
        x = tl.load(total + row * D + at, mask=here, other=0.0).to(tl.float32)
        g = tl.load(dnormed + row * D + at, mask=here, other=0.0).to(tl.float32)
        unit = x * tl.load(rms + row, mask=row < tokens, other=0.0)
        dw += g * unit
        g *= w
        dx = (g - unit * (tl.sum(g * unit, 0) / D)) * tl.load(rms + row, mask=row < tokens, other=0.0)
        if HAS_DTOTAL:
            dx += tl.load(dtotal + row * D + at, mask=here, other=0.0).to(tl.float32)
        tl.store(dresidual + row * D + at, dx.to(dresidual.dtype.element_ty), mask=here)
        if HAS_BRANCH:
            tl.store(dbranch + row * D + at, dx.to(dbranch.dtype.element_ty), mask=here)
    tl.store(dweight_parts + tl.program_id(0).to(tl.int64) * D + at, dw, mask=real)


def forward(
    residual: Tensor, branch: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """normed [T, d] of ``dtype``, the sum [T, d] in float32 (``residual`` itself without a branch), 1 / rms [T].

    Args:
        residual: [T, d], float32, dense.
        branch: [T, d], dense, or None.
        weight: [d], dense.
    """
    T, d = residual.shape
    normed, rms = residual.new_empty(T, d, dtype=dtype), residual.new_empty(T)
    total = residual if branch is None else torch.empty_like(residual)
    with on_device_of(residual):
        if residual.numel():
            add_norm_forward[(T,)](
                residual, branch, weight, total, normed, rms, eps, d, branch is not None, **_shape(d), **ROUNDED
            )
    return normed, total, rms


def backward(
    dnormed: Tensor,
    dtotal: Tensor | None,
    total: Tensor,
    rms: Tensor,
    weight: Tensor,
    branch_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of the residual [T, d], of the branch (None where ``branch_dtype`` is) and of the weight [d].

    Args:
        dnormed: [T, d], dense.
        dtotal: [T, d], dense: what reaches the sum from further on; None: nothing does.
    """
    T, d = total.shape
    programs = triton.cdiv(T, ROWS)
    dresidual, parts = torch.empty_like(total), total.new_empty(programs, d)
    dbranch = None if branch_dtype is None else torch.empty_like(total, dtype=branch_dtype)
    with on_device_of(total):
        if total.numel():
            add_norm_backward[(programs,)](
                *(dnormed, dtotal, total, rms, weight, dresidual, dbranch, parts, T, d),
                HAS_DTOTAL=dtotal is not None,
                HAS_BRANCH=dbranch is not None,
                ROWS=ROWS,
                **_shape(d),
                **ROUNDED,
            )
    return dresidual, dbranch, parts.sum(0).to(weight.dtype)


def _shape(d: int) -> dict[str, int]:
    block = triton.next_power_of_2(d)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16)}
