"""What all kernels share: how they are compiled, and how tensors reach them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ALIGNED_CHANNELS = 16
"""Where D is a multiple of this, kernels count on rows that start at a multiple of 16 bytes."""

ROUNDED: dict[str, Any] = {"enable_fp_fusion": False}
"""Goes with every launch: no product is fused with a sum unless the kernel says ``tl.fma``. A compiler's choice could
differ between two numbers of a thread, and bits would depend on where a token lies in a tile."""

WIDE = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.float32}
"""The type of the arithmetic and of the states, for each type of the inputs."""


def kernel(function: Callable[..., None]) -> Any:
    """``triton.jit`` without specialisation: the same code whatever an argument's value or a tensor's address.

    Triton would compile again for a number that is 1 or a multiple of 16, and for an address that is one. A sequence
    cut out of a pack lies at another address, and other code may add in another order.
    """
    names = [name for name, p in inspect.signature(function).parameters.items() if "constexpr" not in str(p.annotation)]
    return triton.jit(function, do_not_specialize=names, do_not_specialize_on_alignment=names)


@triton.jit
def fma(x, y, z):
    """x * y + z with one rounding, where z has the shape of the result."""
    return tl.fma(tl.broadcast_to(x, z.shape), tl.broadcast_to(y, z.shape), z)


def side_by_side(x: Tensor) -> Tensor:
    """``x`` [T, n] itself where its columns lie side by side, as in a part of a projection; a copy otherwise."""
    return x if x.shape[1] <= 1 or x.stride(1) == 1 else x.contiguous()


def rows(x: Tensor) -> Tensor:
    """The same for x [T, D], whose kernels read 16 bytes at once: also a copy where a row starts elsewhere."""
    x = side_by_side(x)
    if x.shape[1] % ALIGNED_CHANNELS == 0 and (x.data_ptr() % 16 or x.stride(0) * x.element_size() % 16):
        return x.clone(memory_format=torch.contiguous_format)
    return x


def dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, which need not be the tensors'. Where it is, there is nothing to change."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)
