"""The loss of a language model without all its logits: a chunk of tokens' logits are made, used and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mamba_lab.batching.batch import IGNORE

# Logits in one chunk. On a CPU a chunk and its gradient stay in the last cache; a GPU wants larger products.
_CHUNK_LOGITS = {"cpu": 2**20}
_CHUNK_LOGITS_ELSEWHERE = 2**25


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor | None = None, *, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of ``hidden @ weight.T`` against ``targets``, summed, never holding more than a chunk of logits.

    The gradient is formed in the forward pass while a chunk's logits are at hand (and only if one is wanted), so
    backward only scales it. That costs the three matrix products that any such loss costs, and no fourth one.

    Args:
        hidden: [T, d].
        weight: [V, d]. Under autocast both are cast as ``F.linear`` would; softmax and sums are float32 (or float64).
        targets: int64 [T]; -100 counts nothing.
        weights: float32 [T], how much each token counts; None: 1 each. They get no gradient.
        chunk: tokens at a time; None picks by V and the device.

    Returns:
        loss_sum, the weighted sum in nats, and weight_sum, the sum of the weights that counted. Without a target both
        are 0 and so is every gradient. What ``hidden`` holds where nothing counts is not read, be it NaN.
    """
    counted = targets != IGNORE
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    share = counted.to(wide) if weights is None else torch.where(counted, weights, 0).to(wide)
    chunk = chunk_tokens(weight.shape[0], hidden.device.type) if chunk is None else chunk
    grad = torch.is_grad_enabled()
    wants = (grad and hidden.requires_grad, grad and weight.requires_grad)
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, torch.where(counted, targets, 0), share, chunk, wants)
    return loss, share.sum()


def cross_entropy_of_module(
    hidden: Tensor, head: Callable[[Tensor], Tensor], vocab_size: int, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same for an output layer that has to be called, because an adapter or a hook sits on it.

    Each chunk's logits are made once more in the backward pass.

    Args:
        head: maps [t, d] to logits [t, V or more]; only the first ``vocab_size`` count.
    """
    counted = targets != IGNORE
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    share = counted.to(wide) if weights is None else torch.where(counted, weights, 0).to(wide)
    chunk = chunk_tokens(vocab_size, hidden.device.type)

    def part(h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        logits = head(_heard(h, s))[:, :vocab_size].to(wide)
        return (F.cross_entropy(logits, t, reduction="none") * s).sum()

    pieces = zip(hidden.split(chunk), torch.where(counted, targets, 0).split(chunk), share.split(chunk), strict=True)
    losses = [checkpoint(part, *piece, use_reentrant=False) for piece in pieces]
    return torch.stack(losses).sum(), share.sum()


def chunk_tokens(vocab_size: int, device: str) -> int:
    """Tokens whose logits are made at a time: set by V and the kind of device alone, never by T."""
    return max(_CHUNK_LOGITS.get(device, _CHUNK_LOGITS_ELSEWHERE) // vocab_size, 64)


def _heard(hidden: Tensor, share: Tensor) -> Tensor:
    """``hidden`` where a token counts, otherwise 0: a share of 0 times NaN would be NaN."""
    return torch.where(share[:, None] != 0, hidden, 0)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, share: Tensor, chunk: int, wants: tuple[bool, bool]
    ) -> Tensor:
        device = hidden.device.type
        narrow = weight.dtype
        if torch.is_autocast_enabled(device) and narrow != torch.float64:
            narrow = torch.get_autocast_dtype(device)
        dhidden = torch.empty_like(hidden) if wants[0] else None
        dweight = torch.zeros_like(weight, dtype=share.dtype) if wants[1] else None
        loss = share.new_zeros(())
        with torch.autocast(device, enabled=False):
            W = weight.to(narrow)
            for start in range(0, hidden.shape[0], chunk):
                piece = slice(start, start + chunk)
                t, s = targets[piece, None], share[piece]
                h = _heard(hidden[piece], s).to(narrow)
                logs = torch.log_softmax(F.linear(h, W), 1, dtype=share.dtype)
                loss -= (logs.gather(1, t)[:, 0] * s).sum()
                if dhidden is None and dweight is None:
                    continue
                # Softmax minus one-hot, by the token's share, in the buffer of the logits.
                dlogits = logs.exp_().mul_(s[:, None]).scatter_add_(1, t, -s[:, None]).to(narrow)
                if dhidden is not None:
                    dhidden[piece] = dlogits @ W
                if dweight is None:
                    continue
                if narrow == dweight.dtype:
                    dweight.addmm_(dlogits.T, h)
                else:
                    dweight += dlogits.T @ h
        ctx.weight_dtype = weight.dtype
        ctx.save_for_backward(dhidden, dweight)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a loss made in chunks has no second derivative: compute the loss from the logits, model(input_ids)."
            )
        dhidden, dweight = ctx.saved_tensors
        # Scaled in a copy: with retain_graph there is a second backward.
        dhidden = None if dhidden is None else dhidden * dloss.to(dhidden.dtype)
        dweight = None if dweight is None else (dweight * dloss).to(ctx.weight_dtype)
        return dhidden, dweight, None, None, None, None
