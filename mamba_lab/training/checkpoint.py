"""Checkpoints of a run: written whole or not at all, checked before anything of them is used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .train_state import TrainState

if TYPE_CHECKING:
    from .config import TrainConfig

__all__ = ["CheckpointError", "TrainState", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, found, or used here. The message names file, reason and remedy."""


def save_checkpoint(
    folder: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    state: TrainState,
    config: TrainConfig,
    keep: int | None = 3,
) -> Path:
    """Write ``folder/checkpoints/step-00000123`` and give back its path; the oldest beyond ``keep`` are removed."""
    raise NotImplementedError


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    config: TrainConfig,
    verified: bool = False,
) -> TrainState:
    """Set model, optimiser, schedule and random numbers from a checkpoint. Checked before anything is changed."""
    raise NotImplementedError


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint of a run that is whole. Broken ones are passed over, with a warning that names them."""
    raise NotImplementedError
