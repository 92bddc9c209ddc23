"""One training batch: ids, targets and boundaries, the same form for padded, packed and chunked data."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from mamba_lab.log import log_once

from .boundaries import Boundaries

IGNORE = -100


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """B rows of L positions. Padded, packed and chunked batches all have this form.

    Attributes:
        input_ids: int64 [B, L].
        targets: int64 [B, L], the next token of the same sequence; -100 where none counts. Already shifted: the loss
            compares position i's logits with ``targets[i]``.
        boundaries: over the flattened B*L tokens. Padding at a row's end is a sequence of its own.
        sequence: int64 [S], the data-set index of each sequence; -1 for padding.
        n_tokens: tokens without padding (host).
        n_target_tokens: positions that have a target (host).
        max_seqlen: the longest sequence, padding left out (host). ``boundaries.max_seqlen`` counts padding too.
        weights: float32 [B, L], the loss weight of each position, or None for all equal.
        stream_state: the loader's position after this batch, which a checkpoint stores; None where there is none.
    """

    input_ids: torch.Tensor
    targets: torch.Tensor
    boundaries: Boundaries
    sequence: torch.Tensor
    n_tokens: int
    n_target_tokens: int
    max_seqlen: int
    weights: torch.Tensor | None = None
    stream_state: object | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.input_ids.shape)
        if len(shape) != 2:
            raise ValueError(f"input_ids must be [B, L], got {list(shape)}.")
        wanted = [
            ("input_ids", self.input_ids, torch.int64, shape),
            ("targets", self.targets, torch.int64, shape),
            ("sequence", self.sequence, torch.int64, (self.boundaries.n_sequences,)),
        ]
        if self.weights is not None:
            wanted.append(("weights", self.weights, torch.float32, shape))
        for name, tensor, dtype, size in wanted:
            if tensor.dtype != dtype or tuple(tensor.shape) != size:
                raise ValueError(
                    f"{name} must be {dtype} {list(size)}, got {tensor.dtype} {list(tensor.shape)}. "
                    f"Let pad_collate or pack_collate build the batch."
                )
            if tensor.device != self.boundaries.cu_seqlens.device:
                raise ValueError(
                    f"{name} is on {tensor.device} and boundaries on {self.boundaries.cu_seqlens.device}: "
                    f"move the whole batch with batch.to(device)."
                )
        positions = shape[0] * shape[1]
        if self.boundaries.n_tokens != positions:
            raise ValueError(f"boundaries cover {self.boundaries.n_tokens} tokens, input_ids has {positions}.")
        if not 0 <= self.n_target_tokens <= self.n_tokens <= positions:
            raise ValueError(
                f"n_target_tokens <= n_tokens <= B * L must hold, got {self.n_target_tokens}, {self.n_tokens}, "
                f"{positions}. Padding is no token and has no target: -100 there."
            )

    def __repr__(self) -> str:
        rows, width = self.input_ids.shape
        n = int(self.boundaries.n_sequences)
        return (
            f"Batch({rows} rows of {width}, {self.n_tokens} tokens, {self.n_target_tokens} targets, {n} sequences, "
            f"{self.input_ids.device})"
        )

    @property
    def valid_ratio(self) -> float:
        """Tokens over positions: 1 - padding rate. An empty batch wastes nothing, so it counts as 1."""
        return self.n_tokens / self.input_ids.numel() if self.input_ids.numel() else 1.0

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on ``device``. From pinned memory ``non_blocking=True`` copies in the background."""
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=non_blocking),
            targets=self.targets.to(device, non_blocking=non_blocking),
            boundaries=self.boundaries.to(device, non_blocking=non_blocking),
            sequence=self.sequence.to(device, non_blocking=non_blocking),
            weights=None if self.weights is None else self.weights.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory. ``DataLoader(pin_memory=True)`` calls this."""
        return replace(
            self,
            input_ids=self.input_ids.pin_memory(),
            targets=self.targets.pin_memory(),
            boundaries=self.boundaries.pin_memory(),
            sequence=self.sequence.pin_memory(),
            weights=None if self.weights is None else self.weights.pin_memory(),
        )

    def to_huggingface(self, *, padding_free: bool = True) -> dict[str, torch.Tensor | int]:
        """The arguments of a Hugging Face causal language model. Waits for the GPU once.

        Those models shift labels themselves: position i is compared with ``labels[i + 1]``. So the labels here stand
        one place to the right of ``targets``, and the first token of a sequence has -100. A target of the very last
        position has no place in that form (only a sequence that was cut has one); how many were lost is logged once.

        Args:
            padding_free: True gives one row [1, B*L] with the names of Hugging Face's ``DataCollatorWithFlattening``:
                input_ids, labels, position_ids (int64), seq_idx (int32), cu_seq_lens_q and cu_seq_lens_k (int32
                [S + 1]), max_length_q and max_length_k (ints). Only models that read these keep sequences apart;
                Hugging Face's Mamba ignores them.
                False gives [B, L] with input_ids, labels and attention_mask (int64, 0 on padding).

        Raises:
            ValueError: ``padding_free=False`` and a row that holds more than one sequence, which an attention mask
                cannot keep apart.
        """
        rows, width = self.input_ids.shape
        if padding_free:
            rows, width = 1, rows * width
        targets = self.targets.reshape(rows, width)
        labels = torch.full_like(targets, IGNORE)
        labels[:, 1:] = targets[:, :-1]
        real = self.sequence >= 0
        # One row's sequences beyond its first start inside the row. Both facts travel to the host together.
        inside = real & (self.boundaries.cu_seqlens[:-1] % max(width, 1) != 0)
        lost, several = torch.stack(((targets[:, -1:] != IGNORE).sum(), inside.sum())).tolist()
        if several and not padding_free:
            raise ValueError(
                "padding_free=False needs one sequence a row, and a row here holds several. An attention mask cannot "
                "keep them apart: use padding_free=True, or build the batch with pad_collate."
            )
        if lost:
            log_once(
                logging.WARNING,
                f"to_huggingface: {lost} targets at row ends have no place in labels, because the next token was cut "
                f"off; Hugging Face's loss leaves them out.",
            )
        result: dict[str, torch.Tensor | int] = {"input_ids": self.input_ids.reshape(rows, width), "labels": labels}
        if not padding_free:
            result["attention_mask"] = real.long()[self.boundaries.seq_idx.long()].reshape(rows, width)
            return result
        cu_seqlens, longest = self.boundaries.cu_seqlens, self.boundaries.max_seqlen
        return result | {
            "position_ids": self.boundaries.position_indices.long()[None],
            "seq_idx": self.boundaries.seq_idx[None],
            "cu_seq_lens_q": cu_seqlens,
            "cu_seq_lens_k": cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }
