"""MambaLM: a Mamba-1 language model that is told where sequences start, and keeps them apart exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Literal, cast, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mamba_lab.batching import Boundaries
from mamba_lab.ops.backends import NAMES

from . import inputs
from .config import MambaConfig
from .cross_entropy import chunked_cross_entropy, cross_entropy_of_module
from .initialise import initialise
from .mixer import MambaMixer, MixerState
from .norm import LayerNorm, RMSNorm
from .plain import same_values, why_not_plain
from .residual import add_norm, fusable


def _norm(config: MambaConfig) -> nn.Module:
    kind: type[RMSNorm] | type[LayerNorm] = RMSNorm if config.rms_norm else LayerNorm
    return kind(config.d_model, eps=config.norm_epsilon)


class MambaBlock(nn.Module):
    """A mixer on the normed residual stream: x + mixer(norm(x)), over [T, d_model]."""

    def __init__(self, config: MambaConfig, backend: str = "auto") -> None:
        super().__init__()
        self.norm = _norm(config)
        self.mixer = MambaMixer(config, backend)

    @overload
    def forward(self, x: Tensor, boundaries: Boundaries) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, boundaries: Boundaries, state: MixerState | None = None, *, return_state: Literal[True]
    ) -> tuple[Tensor, MixerState]: ...

    def forward(
        self, x: Tensor, boundaries: Boundaries, state: MixerState | None = None, return_state: bool = False
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Map ``x`` [T, d_model] to the same; with ``return_state`` as ``MambaMixer`` does."""
        if not return_state:
            return x + self.mixer(self.norm(x), boundaries)
        y, state = self.mixer(self.norm(x), boundaries, state, return_state=True)
        return x + y, state


class MambaBackbone(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(self, config: MambaConfig, backend: str = "auto") -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        self.layers = nn.ModuleList(MambaBlock(config, backend) for _ in range(config.n_layer))
        self.norm_f = _norm(config)
        self.residual_in_fp32 = config.residual_in_fp32
        self.gradient_checkpointing: bool = False

    @overload
    def forward(self, input_ids: Tensor, boundaries: Boundaries) -> Tensor: ...

    @overload
    def forward(
        self,
        input_ids: Tensor,
        boundaries: Boundaries,
        states: Sequence[MixerState] | None = None,
        *,
        return_states: Literal[True],
    ) -> tuple[Tensor, list[MixerState]]: ...

    def forward(
        self,
        input_ids: Tensor,
        boundaries: Boundaries,
        states: Sequence[MixerState] | None = None,
        return_states: bool = False,
    ) -> Tensor | tuple[Tensor, list[MixerState]]:
        """Map ``input_ids`` int64 [T] to the normed residual stream [T, d_model].

        Args:
            boundaries: over the T tokens.
            states: with ``return_states``, what each block remembers of the sequences; None: nothing came before.
            return_states: give back what each block remembers after the tokens too.
        """
        x, after = self._embed(input_ids), []
        if not return_states and self._fused(x):
            return self._forward_fused(x, boundaries)
        for number, layer in enumerate(self.layers):
            if return_states:
                x, state = layer(x, boundaries, None if states is None else states[number], return_state=True)
                after.append(state)
            elif self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, boundaries, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, boundaries)
        return (self.norm_f(x), after) if return_states else self.norm_f(x)

    def _fused(self, x: Tensor) -> bool:
        if self.gradient_checkpointing or any(why_not_plain(layer, MambaBlock) for layer in self.layers):
            return False
        blocks = cast("Iterable[MambaBlock]", self.layers)
        # The reference backend has derivatives of every kind and order, which the kernel has not.
        if any(block.mixer.backend == "reference" for block in blocks):
            return False
        return fusable(x, [*(block.norm for block in blocks), self.norm_f])

    def _forward_fused(self, x: Tensor, boundaries: Boundaries) -> Tensor:
        """The same as the blocks one after the other: a block's output is added where the next norm is taken."""
        branch: Tensor | None = None
        for block in cast("Iterable[MambaBlock]", self.layers):
            normed, x = add_norm(x, branch, block.norm)
            branch = block.mixer(normed, boundaries)
        return add_norm(x, branch, self.norm_f)[0]

    def _embed(self, input_ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(input_ids)
        return x.to(torch.promote_types(x.dtype, torch.float32)) if self.residual_in_fp32 else x


class MambaLM(nn.Module):
    """A Mamba-1 language model for packed, padded and single sequences.

    Parameters have mamba-ssm's names, so that its checkpoints load as they are. Inside, the batch is one list of T =
    B * L tokens.

    Args:
        config: the sizes, and the starting values.
        backend: which kernels run ``conv1d_pack`` and ``ssm_pack``; "auto" takes the fastest here. Only "reference" has
            forward-mode and second derivatives, and those of the logits only: the loss in chunks has first ones.
    """

    def __init__(self, config: MambaConfig, *, backend: str = "auto") -> None:
        super().__init__()
        if not isinstance(config, MambaConfig):
            raise ValueError(f"config must be a MambaConfig, got {type(config).__name__}. Use MambaConfig.from_dict.")
        if backend != "auto" and backend not in NAMES:
            raise ValueError(f"backend must be 'auto' or one of {', '.join(NAMES)}, got {backend!r}.")
        self.config = config
        self.backbone = MambaBackbone(config, backend)
        self.lm_head = nn.Linear(config.d_model, config.padded_vocab_size, bias=False)
        initialise(self, config)
        self.tie_weights()
        self.register_load_state_dict_post_hook(_tie_again)

    def forward(
        self,
        input_ids: Tensor,
        boundaries: Boundaries | Tensor | None = None,
        *,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        states: Sequence[MixerState] | None = None,
        return_states: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, list[MixerState]]:
        """Scores of the next token, or their loss.

        Args:
            input_ids: int64 [B, L], each below ``config.vocab_size`` (checked on the CPU only).
            boundaries: where sequences start in the flattened B * L tokens: Boundaries, or an int32 ``cu_seqlens``
                that is checked at every call. None: each row is a sequence.
            targets: int64 [B, L], each position's next token, already shifted; -100 where none counts.
            weights: float32 [B, L], how much each target counts. None: all the same.
            states: with ``return_states``, what each block remembers of each sequence; None: nothing came before.
            return_states: for generation. Every sequence must have a token.

        Returns:
            Without ``targets`` the logits [B, L, V]. With them (loss_sum, weight_sum): the weighted sum of the
            cross-entropies in nats, and the sum of the weights of the targets that counted; divide one by the other
            for a mean. All logits are never held. Where nothing counts both are 0, and so is every gradient.
            With ``return_states`` (scores, states): the scores after each sequence's last token [S, V], and what each
            block remembers then.

        Raises:
            ValueError: a shape, dtype, device or id that does not fit; the message names it.
        """
        boundaries = inputs.check(input_ids, boundaries, targets, weights, self.config.vocab_size)
        inputs.check_states(states, return_states, targets, self.config.n_layer)
        if return_states:
            hidden, after = self.backbone(input_ids.flatten(), boundaries, states, return_states=True)
            return self.logits(hidden[boundaries.cu_seqlens[1:].long() - 1]), after
        hidden = self.backbone(input_ids.flatten(), boundaries)
        if targets is None:
            return self.logits(hidden).view(*input_ids.shape, self.config.vocab_size)
        flat, share = targets.flatten(), None if weights is None else weights.flatten()
        if why_not_plain(self.lm_head, nn.Linear) is not None:
            return cross_entropy_of_module(hidden, self.lm_head, self.config.vocab_size, flat, share)
        # The padding rows too: products and rows of an odd number of logits are slow.
        return chunked_cross_entropy(hidden, self.lm_head.weight, flat, share, vocab_size=self.config.vocab_size)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [T, V] of the backbone's output [T, d_model]. The embedding's padding rows have none."""
        if why_not_plain(self.lm_head, nn.Linear) is None:
            weight = self.lm_head.weight[: self.config.vocab_size]
            # A float32 output layer on a bfloat16 backbone: as the loss has it.
            return F.linear(hidden.to(weight.dtype), weight)
        scores: Tensor = self.lm_head(hidden)
        return scores[:, : self.config.vocab_size]

    def tie_weights(self) -> None:
        """Make the output layer the embedding once more, where ``config.tie_embeddings`` says so.

        ``to_empty`` and ``load_state_dict`` do it by themselves. Code that puts a new parameter in the place of one of
        the two breaks the tie, and ``save_pretrained`` then refuses a model whose two weights differ.
        """
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> MambaLM:
        # to_empty makes a new parameter for each name that an old one had.
        tied = _own_weight(self.lm_head) is _own_weight(self.backbone.embedding) is not None
        super()._apply(fn, recurse)
        if tied:
            self.tie_weights()
        return self

    def set_gradient_checkpointing(self, on: bool = True) -> None:
        """Keep only each block's input, and run the block again in the backward pass: less memory, a third slower."""
        self.backbone.gradient_checkpointing = on

    def generate(
        self, prompts: Tensor | Sequence[Sequence[int] | Tensor], max_new_tokens: int, **options: Any
    ) -> list[list[int]]:
        """Continue each prompt: ``mamba_lab.models.generate.generate``, which explains the options."""
        from .generate import generate

        return generate(self, prompts, max_new_tokens, **options)

    @classmethod
    def from_pretrained(cls, source: str | PathLike[str], **options: Any) -> MambaLM:
        """The model in a local folder or on the Hub: ``mamba_lab.models.checkpoint.from_pretrained``."""
        from .checkpoint import from_pretrained

        return from_pretrained(source, **options)

    def save_pretrained(self, folder: str | PathLike[str], **options: Any) -> None:
        """Write configuration and weights into ``folder``: ``mamba_lab.models.checkpoint.save_pretrained``."""
        from .checkpoint import save_pretrained

        save_pretrained(self, folder, **options)


def _own_weight(layer: nn.Module) -> nn.Parameter | None:
    return layer._parameters.get("weight")


def _tie_again(model: MambaLM, _: object) -> None:
    """After ``load_state_dict(..., assign=True)``, which makes two parameters of one. Different values stay apart."""
    head, embedding = _own_weight(model.lm_head), _own_weight(model.backbone.embedding)
    if head is None or embedding is None or head is embedding or not model.config.tie_embeddings:
        return
    if head.shape == embedding.shape and same_values(head, embedding):
        model.tie_weights()


__all__ = ["MambaBackbone", "MambaBlock", "MambaLM", "MambaMixer", "MixerState"]
