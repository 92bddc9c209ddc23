"""One rank's bins as a batch, and the check of a stream's first batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from ._stream_buffer import Bin, Tokens
from .batch import IGNORE, Batch
from .collate import pack_collate
from .plan import PackingPlan
from .target_check import check_targets

# A batch, and which of its sequences are pieces that go on elsewhere.
Made: TypeAlias = "tuple[Batch, np.ndarray[Any, np.dtype[np.bool_]]]"


def collate_bins(bins: list[Bin], capacity: int, pad_id: int, pad_to_multiple_of: int | None) -> Made:
    """A row for each bin. ``batch.sequence`` has the documents' numbers in the data set."""
    pieces = [piece for one in bins for piece in one.pieces]
    place = {document: i for i, document in enumerate(dict.fromkeys(document for document, _, _ in pieces))}
    plan = PackingPlan(
        capacity,
        np.cumsum([0, *(len(one.pieces) for one in bins)], dtype=np.int64),
        np.array([place[document] for document, _, _ in pieces], np.int64),
        np.array([start for _, start, _ in pieces], np.int32),
        np.array([stop for _, _, stop in pieces], np.int32),
    )
    own_targets = any(document.targets is not None for document in place)
    batch = pack_collate(
        plan,
        [document.ids for document in place],
        pad_id=pad_id,
        targets=[_targets(document) for document in place] if own_targets else None,
        pad_to_multiple_of=pad_to_multiple_of,
    )
    real = batch.sequence >= 0
    sequence, cut = batch.sequence.clone(), np.zeros(len(real), bool)
    sequence[real] = torch.tensor([document.number for document, _, _ in pieces], dtype=torch.int64)
    cut[real.numpy()] = [stop < len(document.ids) for document, _, stop in pieces]
    return replace(batch, sequence=sequence), cut


def require_right_targets(made: list[Made], pad_id: int, rank: int) -> None:
    """Check a stream's first batches.

    Raises:
        ValueError: ``check_targets`` found a mistake.
    """
    report = check_targets([batch for batch, _ in made], pad_id=pad_id, cut=[cut for _, cut in made])
    if not report.ok:
        first = "batch" if len(made) == 1 else f"{len(made)} batches"
        findings = "\n".join(f"- {finding}" for finding in report.findings)
        raise ValueError(
            f"check_targets finds mistakes in the first {first} of rank {rank}:\n{findings}\n"
            f"If the targets are meant to be so, pass check_batches=0."
        )


def _targets(document: Tokens) -> np.ndarray[Any, Any]:
    """A document's targets: the next token where it brought none and others did."""
    return np.append(document.ids[1:], IGNORE) if document.targets is None else document.targets
