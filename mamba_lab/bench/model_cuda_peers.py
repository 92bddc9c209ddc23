"""mamba-ssm's training steps on a row of documents: three ways to train on documents without boundaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

INSTALL = {
    "mamba-ssm": "pip install --no-build-isolation --no-deps mamba-ssm==2.3.2.post1",
    "causal-conv1d": "pip install --no-build-isolation --no-deps causal-conv1d==1.7.0",
}


def load() -> str | None:
    """Import what the steps need; otherwise say what is missing and how to add it."""
    try:
        import causal_conv1d  # noqa: F401
        import mamba_ssm.models.mixer_seq_simple  # noqa: F401
    except ImportError as error:
        return f"{error.name or error} is not installed; see environment-peers.yml"
    return None


def concat(model: Any, batch: Any) -> Tensor:
    """The row as one document: states run on from one document into the next."""
    return loss_of(model, batch.ids, batch.targets)


def one_by_one(model: Any, batch: Any) -> Tensor:
    """A step for each document alone."""
    pieces = zip(batch.ids.split(batch.lengths, 1), batch.targets.split(batch.lengths, 1), strict=True)
    return torch.stack([loss_of(model, *piece) for piece in pieces]).sum()


def padded_length(lengths: Sequence[int]) -> int:
    """The longest, up to the next multiple of 8: other numbers of positions make matrix products slow."""
    return -(-max(lengths) // 8) * 8


def padding(model: Any, batch: Any) -> Tensor:
    """A row for each document, all of ``padded_length``."""
    rows, longest = len(batch.lengths), padded_length(batch.lengths)
    ids = batch.ids.new_zeros(rows, longest)
    targets = batch.targets.new_full((rows, longest), -100)
    starts = 0
    for row, length in enumerate(batch.lengths):
        ids[row, :length] = batch.ids[0, starts : starts + length]
        targets[row, :length] = batch.targets[0, starts : starts + length]
        starts += length
    return loss_of(model, ids, targets)


def loss_of(model: Any, ids: Tensor, targets: Tensor) -> Tensor:
    """The summed cross-entropy of all logits, as they come: in bfloat16 where the model computes in it."""
    logits = model(ids).logits  # the loss outside of autocast, which would make float32 logits, in twice the memory
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    loss.backward()
    return loss.detach()


PEER_STEPS: dict[str, Callable[[Any, Any], Tensor]] = {"concat": concat, "one_by_one": one_by_one, "padding": padding}
