"""Both operators in plain PyTorch: what every backend has to compute.

First as a loop over time that starts afresh at each sequence's start. Then as the PackMamba paper (arXiv 2408.03865)
states them, over ``position_indices``: each token's place in its sequence, counted from 0.

A reset picks a fresh state. It never multiplies the old one by zero: zero times NaN is NaN, and a broken sequence would
reach the next one. The arithmetic is float32, or float64 when the input is. Autograd gives the gradients.

Arguments and shapes are those of ``mamba_lab.ops.conv1d_pack`` and ``mamba_lab.ops.ssm_pack``, which also check them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor


def conv1d_pack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The causal convolution of every channel, sequence by sequence: y[t] = sum of weight[k] x[t - (W - 1) + k].

    Returns:
        y [T, D] in x's dtype; final_state [S, D, W - 1], the inputs that a next token would look back on, oldest first.
    """
    real, (D, W) = wide_dtype(x), weight.shape
    xs, weight = x.to(real).unbind(0), weight.to(real)
    ys, states = [], []
    for s, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        state = weight.new_zeros(D, W - 1) if initial_state is None else initial_state[s]
        for t in range(start, stop):
            window = torch.cat((state, xs[t][:, None]), dim=1)
            y = (weight * window).sum(1)
            y = y if bias is None else y + bias.to(real)
            ys.append(F.silu(y) if activation == "silu" else y)
            state = window[:, 1:]
        states.append(state)
    return _stack(ys, x.to(real)).to(x.dtype), _stack(states, weight.new_zeros(0, D, W - 1))


def ssm_pack(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    cu_seqlens: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The selective scan, sequence by sequence: h = exp(delta A) h + delta u B, then y = C h + D u, gated by silu(z).

    These are equations 2a and 2b of arXiv 2312.00752 with the steps of its algorithm 2.

    Returns:
        y [T, D] in u's dtype; final_state [S, D, N], the last h of each sequence.
    """
    real = wide_dtype(u)
    us, deltas, Bs, Cs = (value.to(real).unbind(0) for value in (u, delta, B, C))
    zs = None if z is None else z.to(real).unbind(0)
    ys, states = [], []
    for s, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        h = torch.zeros_like(A) if initial_state is None else initial_state[s]
        for t in range(start, stop):
            step = deltas[t] if delta_bias is None else deltas[t] + delta_bias
            step = F.softplus(step) if delta_softplus else step
            h = torch.exp(step[:, None] * A) * h + (step * us[t])[:, None] * Bs[t]
            y = (h * Cs[t]).sum(1)
            y = y if D is None else y + D * us[t]
            ys.append(y if zs is None else y * F.silu(zs[t]))
        states.append(h)
    return _stack(ys, u.to(real)).to(u.dtype), _stack(states, A.new_zeros(0, *A.shape))


def conv1d_pack_by_position(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, position_indices: Tensor, activation: str | None = None
) -> Tensor:
    """``conv1d_pack`` as the paper states it: a token at place p of its sequence has p tokens to look back on.

    Args:
        position_indices: int32 or int64 [T], 0, 1, 2, ... in each sequence.

    Returns:
        y [T, D] in x's dtype.
    """
    real, W = wide_dtype(x), weight.shape[1]
    wide, weight = x.to(real), weight.to(real)
    y = wide * weight[:, W - 1] if bias is None else wide * weight[:, W - 1] + bias.to(real)
    for k in range(1, min(W, len(x))):
        back = F.pad(wide, (0, 0, k, 0))[:-k]  # back[t] = x[t - k]
        back = torch.where(position_indices[:, None] >= k, back, 0)
        y = y + back * weight[:, W - 1 - k]
    return (F.silu(y) if activation == "silu" else y).to(x.dtype)


def ssm_pack_by_position(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    position_indices: Tensor,
) -> Tensor:
    """``ssm_pack`` as the paper states it: one recurrence over all tokens, which keeps nothing at a first token.

    The paper sets the decay to zero there. Here the state is picked afresh, which gives the same numbers.

    Args:
        position_indices: int32 or int64 [T], 0, 1, 2, ... in each sequence.

    Returns:
        y [T, D] in u's dtype.
    """
    real = wide_dtype(u)
    wide, step, B, C = (value.to(real) for value in (u, delta, B, C))
    step = step if delta_bias is None else step + delta_bias
    step = F.softplus(step) if delta_softplus else step
    decay = torch.exp(step[:, :, None] * A)  # [T, D, N]
    added = (step * wide)[:, :, None] * B[:, None, :]
    h, hs = torch.zeros_like(A), []
    for first, a, b in zip((position_indices == 0).unbind(0), decay.unbind(0), added.unbind(0), strict=True):
        h = a * torch.where(first, 0, h) + b
        hs.append(h)
    y = (_stack(hs, decay) * C[:, None, :]).sum(2)
    y = y if D is None else y + D * wide
    return (y if z is None else y * F.silu(z.to(real))).to(u.dtype)


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the arithmetic and of the states: float64 for float64, otherwise float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _stack(rows: list[Tensor], empty: Tensor) -> Tensor:
    return torch.stack(rows) if rows else empty.clone()
