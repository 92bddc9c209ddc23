"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mamba_lab.document import Document
from mamba_lab.models import MambaLM

from .metrics import StepMetrics

if TYPE_CHECKING:
    from .config import TrainConfig


@dataclass
class TrainResult:
    """What a run leaves.

    Attributes:
        model: as the last step left it.
        steps: taken so far, those before a resume among them.
        history: the steps of this call.
        validation: (step, loss) of every validation of this call.
        stopped: "finished" (all epochs), "max_steps", "signal" (Ctrl-C or SIGTERM), or "nonfinite".
        folder: where the run is; None where nothing was written.
        tokens: trained on so far, without padding.
        seconds: spent so far.
    """

    model: MambaLM
    steps: int
    history: list[StepMetrics] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    stopped: str = "finished"
    folder: Path | None = None
    tokens: int = 0
    seconds: float = 0.0


def train(
    config: TrainConfig,
    *,
    resume: bool | str | Path = False,
    model: MambaLM | None = None,
    documents: Sequence[Document] | None = None,
    on_step: Callable[[StepMetrics], None] | None = None,
) -> TrainResult:
    """Train a model as ``config`` says."""
    raise NotImplementedError
