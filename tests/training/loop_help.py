"""What the tests of the step and the loop share: a small model, short sequences, packs of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mamba_lab.batching import Batch, chunk_fixed, pack_collate, pack_sequential, pad_collate
from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.training.weights import sequence_weights

VOCAB, PAD = 50, 0
# A wide start, so that sequences differ in their losses.
_SIZES = {"d_model": 16, "n_layer": 2, "vocab_size": VOCAB, "d_state": 4, "initializer_range": 0.5}


def small_model(seed: int = 0, **sizes: Any) -> MambaLM:
    torch.manual_seed(seed)
    return MambaLM(MambaConfig(**(_SIZES | sizes)))


def some_sequences(lengths: Sequence[int], seed: int = 1) -> list[np.ndarray[Any, Any]]:
    drawn = np.random.RandomState(seed)
    return [drawn.randint(0, VOCAB, length) for length in lengths]


def pack(sequences: Sequence[Any], capacity: int = 16, *, weighted: bool = False, **options: Any) -> Batch:
    """All sequences in one batch, with sequence weights where asked for."""
    plan = pack_sequential([len(ids) for ids in sequences], capacity)
    batch = pack_collate(plan, sequences, pad_id=PAD, **options)
    return with_weights(batch) if weighted else batch


def each_alone(sequences: Sequence[Any], *, weighted: bool = False) -> list[Batch]:
    batches = [pad_collate(sequences, indices=[number], pad_id=PAD) for number in range(len(sequences))]
    return [with_weights(batch) for batch in batches] if weighted else batches


def chunks(sequences: Sequence[Any], width: int = 8) -> Batch:
    return pack_collate(chunk_fixed([len(ids) for ids in sequences], width), sequences, pad_id=PAD)


def with_weights(batch: Batch) -> Batch:
    """Whole sequences only."""
    flat, cu = batch.targets.flatten(), batch.boundaries.cu_seqlens.tolist()
    weights = [sequence_weights(flat[start:stop].numpy()) for start, stop in itertools.pairwise(cu)]
    return replace(batch, weights=torch.from_numpy(np.concatenate(weights)).view(batch.targets.shape))


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
