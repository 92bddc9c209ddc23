"""The same packs run otherwise: each sequence by itself, or each row as one sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mamba_lab.batching import Batch, Boundaries


def one_by_one(batch: Batch) -> list[Batch]:
    """Each sequence of ``batch`` in a batch of its own, [1, its length], in the same order.

    Right by construction, since nothing is beside it; and slow, since each one is too short to keep a machine busy. A
    batch without any sequence stays as it is.
    """
    cu = batch.boundaries.cu_seqlens.tolist()
    ids, targets = batch.input_ids.flatten(), batch.targets.flatten()
    weights = None if batch.weights is None else batch.weights.flatten()
    parts = []
    for place, number in enumerate(batch.sequence.tolist()):
        start, stop = cu[place], cu[place + 1]
        if number < 0 or start == stop:
            continue
        own = targets[None, start:stop].clone()
        parts.append(
            Batch(
                input_ids=ids[None, start:stop].clone(),
                targets=own,
                boundaries=Boundaries.from_lengths([stop - start]),
                sequence=batch.sequence[place : place + 1].clone(),
                n_tokens=stop - start,
                n_target_tokens=int((own != -100).sum()),
                max_seqlen=stop - start,
                weights=None if weights is None else weights[None, start:stop].clone(),
            )
        )
    return parts or [batch]


def joined(batch: Batch) -> Batch:
    """The batch with each row as *one* sequence: the state leaks from every document into the next of its row.

    Wrong, and kept to be compared with. Ids, targets and weights stay the same. ``sequence`` has the first of each row.
    """
    rows, width = batch.input_ids.shape
    lengths, sequence = batch.boundaries.lengths.numpy(), batch.sequence.numpy()
    row_of = batch.boundaries.cu_seqlens[:-1].numpy() // max(width, 1)
    real = np.flatnonzero((sequence >= 0) & (lengths > 0))
    used = np.bincount(row_of[real], lengths[real], rows).astype(np.int64)
    _, first = np.unique(row_of[real], return_index=True)
    both = np.stack((used, width - used), 1)  # what a row holds, and its padding
    numbers = np.full((rows, 2), -1, np.int64)
    numbers[used > 0, 0] = sequence[real[first]]
    there = both > 0
    return replace(
        batch,
        boundaries=Boundaries.from_lengths(both[there], padding=numbers[there] < 0),
        sequence=torch.from_numpy(numbers[there]),
        max_seqlen=int(used.max(initial=0)),
    )
