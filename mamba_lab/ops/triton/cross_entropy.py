"""Cross-entropy of a chunk of logits, whose place its gradient takes; what ``models/cross_entropy.py`` calls.

Reads the logits twice, the second time mostly from the cache, and writes them once. PyTorch's operators make a float32
copy of them and walk it five times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_ops import INTERPRETED
from .kernel import ROUNDED, on_device_of

BLOCK = 32 if INTERPRETED else 4096
WARPS = 8


@triton.jit
def _logits(logits, at, V: tl.constexpr, WIDTH: tl.constexpr):
    """Logits in float32, -inf from V on. All of a row are loaded: an odd V would part a load into single numbers."""
    x = tl.load(logits + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
    return tl.where(at < V, x, float("-inf"))


@triton.jit
def cross_entropy_row(
    logits, targets, share, losses, V: tl.constexpr, WIDTH: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    """One token a program: the first ``V`` of its ``WIDTH`` logits count."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * WIDTH
    s = tl.load(share + row).to(tl.float32)
    target = tl.load(targets + row)
    at = tl.arange(0, BLOCK)
    # Each lane keeps a maximum and a sum of its own, so that nothing waits for the others inside the loop.
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        x = _logits(logits, start + at, V, WIDTH)
        larger = tl.maximum(most, x)
        base = tl.where(larger == float("-inf"), 0.0, larger)  # no logit yet, and no difference of infinities
        total = total * tl.exp(most - base) + tl.exp(x - base)
        most = larger
    top = tl.max(most, 0)
    log_sum = top + tl.log(tl.sum(total * tl.exp(most - top), 0))
    tl.store(losses + row, (log_sum - tl.load(logits + target).to(tl.float32)) * s)
    if GRADIENT:
        tl.debug_barrier()  # the target's logit is read before it is written
        for start in range(0, WIDTH, BLOCK):
            x = _logits(logits, start + at, V, WIDTH)
            d = (tl.exp(x - log_sum) - tl.where(start + at == target, 1.0, 0.0)) * s
            tl.store(logits + start + at, d.to(logits.dtype.element_ty), mask=start + at < WIDTH)


def cross_entropy_(logits: Tensor, targets: Tensor, share: Tensor, vocab_size: int, gradient: bool) -> Tensor:
    """The losses [T], float32, each times its share. With ``gradient`` the logits become their own gradients.

    Args:
        logits: [T, V or more], dense; columns from ``vocab_size`` on have no part, and a gradient of 0.
        targets: int64 [T], each below ``vocab_size``: checked before.
        share: [T], what each token counts.
    """
    losses = logits.new_empty(logits.shape[0], dtype=torch.float32)
    with on_device_of(logits):
        if logits.numel():
            cross_entropy_row[(logits.shape[0],)](
                *(logits, targets, share, losses, vocab_size, logits.shape[1]),
                GRADIENT=gradient,
                BLOCK=BLOCK,
                num_warps=WARPS,
                **ROUNDED,
            )
    return losses
