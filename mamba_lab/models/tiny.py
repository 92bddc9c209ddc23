"""TinyMamba: Mamba-1 in forty lines of plain PyTorch, the model of the notebooks before 11.

It follows Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv 2312.00752), sections
3.2 to 3.4: equation 2a for the recurrence, algorithm 2 for what depends on the input. Time is a Python loop, so that a
reader sees every step; notebook 01 writes these lines out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from mamba_lab.batching import Batch, Boundaries


class TinyMambaBlock(nn.Module):
    """One Mamba-1 block: two linear layers around a short convolution and a selective scan, closed by a gate.

    Shapes: B rows, L row length, ``d_inner = expand * d_model`` channels, N = ``d_state`` states, W = ``d_conv`` taps.
    """

    def __init__(self, d_model: int, d_state: int = 8, d_conv: int = 4, expand: int = 2) -> None:
        super().__init__()
        d_inner, self.dt_rank, self.d_state = expand * d_model, -(-d_model // 16), d_state
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(d_inner, d_conv).uniform_(-1, 1) / d_conv**0.5)
        self.conv_bias = nn.Parameter(torch.zeros(d_inner))
        self.x_proj = nn.Linear(d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, d_inner)
        # Steps start between 0.001 and 0.1 on a log scale: some channels forget in ten tokens, others in a thousand.
        step = torch.exp(torch.empty(d_inner).uniform_(-6.9, -2.3))
        self.dt_proj.bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, d_state + 1)).repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Map ``x`` [B, L, d_model] to [B, L, d_model]; ``position`` [B, L] counts from 0 in each sequence."""
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u = F.silu(self.convolve(u, position))
        delta, B, C = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        y = self.scan(u, F.softplus(self.dt_proj(delta)), B, C, position)
        return self.out_proj((y + self.D * u) * F.silu(z))

    def convolve(self, u: Tensor, position: Tensor) -> Tensor:
        """The causal convolution over time of ``u`` [B, L, d_inner]. Tap k looks k tokens back, never past a start."""
        y = self.conv_bias + u * self.conv_weight[:, -1]
        for k in range(1, min(self.conv_weight.shape[1], u.shape[1])):
            back = F.pad(u, (0, 0, k, 0))[:, :-k] * (position >= k).unsqueeze(-1)
            y = y + back * self.conv_weight[:, -1 - k]
        return y

    def scan(self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, position: Tensor) -> Tensor:
        """The recurrence h = a h + b (equation 2a): ``u``, ``delta`` [B, L, d_inner]; ``B``, ``C`` [B, L, N]."""
        a = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.A_log))  # [B, L, d_inner, N]
        a = a * (position > 0)[..., None, None]  # a first token keeps nothing of what came before
        b = (delta * u).unsqueeze(-1) * B.unsqueeze(-2)
        h, ys = torch.zeros_like(b[:, 0]), []
        for a_t, b_t, C_t in zip(a.unbind(1), b.unbind(1), C.unbind(1), strict=True):
            h = a_t * h + b_t
            ys.append((h * C_t.unsqueeze(1)).sum(-1))
        return torch.stack(ys, dim=1)


class TinyMamba(nn.Module):
    """A language model: embedding, ``n_layers`` residual blocks, a norm, and the embedding again as output layer."""

    def __init__(self, vocab_size: int, d_model: int = 64, n_layers: int = 2, **block: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(TinyMambaBlock(d_model, **block) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.RMSNorm(d_model) for _ in range(n_layers + 1))

    def forward(self, input_ids: Tensor, boundaries: Boundaries | None = None) -> Tensor:
        """The scores of the next token.

        Args:
            input_ids: int64 [B, L].
            boundaries: where sequences start in the flattened B*L tokens. None: each row is one sequence.

        Returns:
            Logits, float32 [B, L, V].

        Raises:
            ValueError: no ids, an id outside the vocabulary, a shape that does not fit, or a sequence that runs over
                the end of a row.
        """
        position = _positions(input_ids, boundaries, self.embedding.num_embeddings)
        x = self.embedding(input_ids)
        for layer, norm in zip(self.layers, self.norms[:-1], strict=True):
            x = x + layer(norm(x), position)
        return self.norms[-1](x) @ self.embedding.weight.T


def _positions(input_ids: Tensor, boundaries: Boundaries | None, vocab_size: int) -> Tensor:
    if not isinstance(input_ids, Tensor) or input_ids.is_floating_point():
        raise ValueError(f"input_ids: expected a tensor of ids, got {_kind(input_ids)}; write torch.tensor([ids])")
    if input_ids.dim() != 2 or input_ids.shape[1] == 0:
        raise ValueError(f"input_ids: expected [B, L], L >= 1, got {list(input_ids.shape)}; add a row with ids[None]")
    if input_ids.numel() and not 0 <= int(input_ids.min()) <= int(input_ids.max()) < vocab_size:
        raise ValueError(
            f"input_ids: ids run from {int(input_ids.min())} to {int(input_ids.max())}, the vocabulary from 0 to "
            f"{vocab_size - 1}; use the tokenizer that the model was made for"
        )
    if boundaries is None:
        return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    if not hasattr(boundaries, "position_indices"):
        raise ValueError(f"boundaries: expected Boundaries, got {_kind(boundaries)}; use Boundaries.from_...")
    if boundaries.n_tokens != input_ids.numel():
        raise ValueError(
            f"boundaries: they cover {boundaries.n_tokens} tokens, input_ids has {input_ids.numel()} "
            f"({list(input_ids.shape)}); use the boundaries of the same batch"
        )
    position = boundaries.position_indices.view_as(input_ids)
    if bool((position[:, 0] != 0).any()):
        row = int((position[:, 0] != 0).nonzero()[0])
        raise ValueError(f"boundaries: a sequence runs into row {row}; TinyMamba wants every row to begin a sequence")
    return position


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def batch_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of ``model`` over the targets of ``batch``, in nats a target; a scalar.

    Without any target it is 0, with gradient 0.
    """
    logits = model(batch.input_ids, batch.boundaries)
    total = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100, reduction="sum")
    return total / max(batch.n_target_tokens, 1)


def train_tiny(model: nn.Module, batches: Iterable[Batch], *, learning_rate: float = 3e-3) -> list[float]:
    """Train ``model`` in place, one AdamW step a batch with the gradient clipped at 1.0, on one CPU thread.

    Returns:
        The loss of each batch before its step, in nats a target.

    Raises:
        ValueError: a batch has no target.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    with _one_thread():
        for step, batch in enumerate(batches):
            if batch.n_target_tokens == 0:
                raise ValueError(
                    f"batches: batch {step} has no target (all are -100): it teaches nothing; leave it out"
                )
            loss = batch_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    return losses


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small steps gain nothing from a second thread, and on a busy machine they wait for it: ten times slower there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
