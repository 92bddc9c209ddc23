"""The loss of a language model without all its logits: a chunk of tokens' logits are made, used and forgotten."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mamba_lab.batching.batch import IGNORE
from mamba_lab.ops import _triton_ops
from mamba_lab.ops._schemas import operator

# Logits in one chunk. On a CPU a chunk and its gradient stay in the last cache; a GPU wants larger products, and fewer
# sums of the weight's gradient.
_CHUNK_LOGITS = {"cpu": 2**20}
_CHUNK_LOGITS_ELSEWHERE = 2**27
_TILE = 256  # rows of a matrix product's tiles on a GPU: a chunk of whole tiles wastes none


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of ``hidden @ weight.T`` against ``targets``, summed, never holding more than a chunk of logits.

    The gradient is formed in the forward pass while a chunk's logits are at hand (and only if one is wanted), so
    backward only scales it. That costs the three matrix products that any such loss costs, and no fourth one.

    Args:
        hidden: [T, d].
        weight: [V or more, d]. Under autocast both are cast as ``F.linear`` would; softmax and sums are float32 (or
            float64).
        targets: int64 [T]; -100 counts nothing.
        weights: float32 [T], how much each token counts; None: 1 each. They get no gradient.
        vocab_size: V; rows of the weight from there on have no part in the loss, and a gradient of 0. None: all count.
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
    narrow = weight.dtype
    if torch.is_autocast_enabled(hidden.device.type) and narrow != torch.float64:
        narrow = torch.get_autocast_dtype(hidden.device.type)
    vocab_size = weight.shape[0] if vocab_size is None else vocab_size
    arguments = (hidden, weight, torch.where(counted, targets, 0), share, chunk, narrow, vocab_size, *wants)
    loss: Tensor
    if torch.compiler.is_compiling():  # which would unroll the loop, and do so again for another number of tokens
        loss, *_ = operator(_NAME)(*arguments)
    else:
        loss = _ChunkedCrossEntropy.apply(*arguments)
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
    tokens = _CHUNK_LOGITS.get(device, _CHUNK_LOGITS_ELSEWHERE) // vocab_size
    return max(tokens - tokens % _TILE if device != "cpu" and tokens > _TILE else tokens, 64)


def _heard(hidden: Tensor, share: Tensor) -> Tensor:
    """``hidden`` where a token counts, otherwise 0: a share of 0 times NaN would be NaN."""
    return torch.where(share[:, None] != 0, hidden, 0)


def _sums(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    share: Tensor,
    chunk: int,
    narrow: torch.dtype,
    vocab_size: int,
    want_hidden: bool,
    want_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and both gradients, chunk by chunk; a gradient that nobody wants is empty."""
    dhidden = torch.empty_like(hidden) if want_hidden else hidden.new_empty(0)
    dweight = share.new_empty(0)
    loss = share.new_zeros(())
    with torch.autocast(hidden.device.type, enabled=False):
        W = weight.to(narrow)
        for start in range(0, hidden.shape[0], chunk):
            piece = slice(start, start + chunk)
            t, s = targets[piece, None], share[piece]
            h = _heard(hidden[piece], s).to(narrow)
            logits = F.linear(h, W)
            part, dlogits = _of_chunk(logits, t, s, vocab_size, want_hidden or want_weight)
            loss += part
            if want_hidden:
                dhidden[piece] = dlogits @ W
            if want_weight:
                dweight = _added(dweight if start else None, dlogits.T, h, share.dtype)
    if want_weight and not hidden.shape[0]:
        dweight = torch.zeros_like(weight, dtype=share.dtype)
    return loss, dhidden, dweight


def _of_chunk(logits: Tensor, targets: Tensor, share: Tensor, vocab_size: int, gradient: bool) -> tuple[Tensor, Tensor]:
    """The loss of a chunk, and the gradient of its logits in their dtype: in their place, or not at all."""
    # On a GPU too, this is where a target that no row of the weight has is refused.
    scores = logits[:, :vocab_size].gather(1, targets)[:, 0]
    if _has_kernel(logits, share):
        kernel = importlib.import_module("mamba_lab.ops.triton.cross_entropy").cross_entropy_
        return kernel(logits, targets[:, 0], share, vocab_size, gradient).sum(), logits
    if vocab_size < logits.shape[1]:
        logits[:, vocab_size:] = -torch.inf
    wide = logits.to(share.dtype)
    log_sum = torch.logsumexp(wide, 1)
    loss = ((log_sum - scores) * share).sum()
    if not gradient:
        return loss, logits
    # Softmax minus one-hot, by the token's share, in the buffer of the logits.
    wide = wide.sub_(log_sum[:, None]).exp_().mul_(share[:, None]).scatter_add_(1, targets, -share[:, None])
    return loss, wide.to(logits.dtype)


def _has_kernel(logits: Tensor, share: Tensor) -> bool:
    if share.dtype != torch.float32 or not (logits.is_cuda or _triton_ops.INTERPRETED):
        return False
    return _triton_ops.missing("the loss's kernel") is None


def _added(total: Tensor | None, a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """total + a @ b in ``wide``, in the place of ``total``; None counts as 0."""
    if a.dtype == wide:
        return a @ b if total is None else total.addmm_(a, b)
    if not a.is_cuda or wide != torch.float32:
        return (a @ b).to(wide) if total is None else total.add_(a @ b)
    # Without a narrow product in between.
    if total is None:
        return torch.mm(a, b, out_dtype=wide)
    torch.ops.aten.addmm.dtype_out(total, a, b, wide, out=total)
    return total


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, dhidden, dweight = output
    ctx.weight_dtype, ctx.wants = inputs[1].dtype, inputs[-2:]
    ctx.save_for_backward(dhidden, dweight)


def _scale(ctx: Any, dloss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a loss made in chunks has no second derivative: compute the loss from the logits, model(input_ids)."
        )
    dhidden, dweight = ctx.saved_tensors
    want_hidden, want_weight = ctx.wants
    # Scaled in a copy: with retain_graph there is a second backward.
    scaled = None
    if want_weight:
        scaled = torch.mul(dweight, dloss, out=torch.empty_like(dweight, dtype=ctx.weight_dtype))
    return dhidden * dloss.to(dhidden.dtype) if want_hidden else None, scaled, *(None,) * 7


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        output = _sums(*arguments)
        _keep(ctx, arguments, output)
        return output[0]

    backward = staticmethod(_scale)


def _fake(hidden: Tensor, weight: Tensor, targets: Tensor, share: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    want_hidden, want_weight = rest[-2:]
    return (
        share.new_empty(()),
        torch.empty_like(hidden) if want_hidden else hidden.new_empty(0),
        torch.empty_like(weight, dtype=share.dtype) if want_weight else share.new_empty(0),
    )


# The same for torch.compile, as one operator.
_NAME = "mamba_lab::chunked_cross_entropy"
torch.library.define(
    _NAME,
    "(Tensor hidden, Tensor weight, Tensor targets, Tensor share, int chunk, ScalarType narrow, int vocab_size, "
    "bool want_hidden, bool want_weight) -> (Tensor loss, Tensor dhidden, Tensor dweight)",
)
torch.library.impl(_NAME, ("cpu", "cuda"), _sums)
torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _scale, setup_context=_keep)
