"""A run's folder: what lies where in it, one run at a time, and from which checkpoint it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """Where a run writes; None everywhere for a run that writes nothing.

    Attributes:
        path: the folder, absolute.
        config: ``config.toml``, the resolved configuration.
        metrics: ``metrics.jsonl``.
        tensorboard: the folder of TensorBoard's files.
        checkpoint: the checkpoint to go on from, verified; None: from the beginning.
    """

    path: Path | None
    checkpoint: Path | None

    @property
    def config(self) -> Path | None:
        return None if self.path is None else self.path / "config.toml"

    @property
    def metrics(self) -> Path | None:
        return None if self.path is None else self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path | None:
        return None if self.path is None else self.path / "tensorboard"


@contextmanager
def open_run(folder: Path | None, *, resume: bool | str | os.PathLike[str] = False) -> Iterator[RunFolder]:
    """The run's folder, made, writable, and held by this process alone until the block ends."""
    raise NotImplementedError
    yield
