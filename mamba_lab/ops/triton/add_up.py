"""Partial sums to one sum, first to last, whatever their number and size: PyTorch's own sum picks an order by shape."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .._triton_ops import INTERPRETED
from .kernel import ROUNDED, kernel

BLOCK = 64 if INTERPRETED else 128
IN_FLIGHT = 8
"""So many parts are on their way from memory at once."""


@kernel
def add_up_kernel(parts, total, count, size, BLOCK: tl.constexpr, IN_FLIGHT: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < size
    parts += at
    result = tl.zeros((BLOCK,), parts.dtype.element_ty)
    for _ in tl.range(count, loop_unroll_factor=IN_FLIGHT):
        result += tl.load(parts, mask=real, other=0.0)
        parts += size
    tl.store(total + at, result.to(total.dtype.element_ty), mask=real)


def add_up(parts: Tensor, total: Tensor) -> Tensor:
    """``total[...] = parts[0, ...] + parts[1, ...] + ...``, in this order."""
    size = total.numel()
    if size:
        add_up_kernel[(triton.cdiv(size, BLOCK),)](
            parts, total, parts.shape[0], size, BLOCK, IN_FLIGHT, num_warps=1, **ROUNDED
        )
    return total
