"""Training on packs, padded batches or one sequence at a time: one loop, one mean, exact resume.

    from mamba_lab.training import TrainConfig, train
    result = train(TrainConfig(training={"max_steps": 100}))

Needs the extra ``train``: pip install 'mamba-lab[train]'.
"""

from __future__ import annotations

from .checkpoint import CheckpointError, find_checkpoint, latest_checkpoint
from .config import ConfigError, TrainConfig
from .data import TrainingData
from .evaluate import Validation, evaluate
from .gradient_report import GradientReport, gradient_report
from .loop import TrainResult, train
from .metrics import StepMetrics
from .optim import learning_rate_factor, parameter_groups
from .run_log import read_metrics
from .step import StepResult, backward, update
from .watch import Watch
from .weights import sequence_weights

__all__ = [
    "CheckpointError",
    "ConfigError",
    "GradientReport",
    "StepMetrics",
    "StepResult",
    "TrainConfig",
    "TrainResult",
    "TrainingData",
    "Validation",
    "Watch",
    "backward",
    "evaluate",
    "find_checkpoint",
    "gradient_report",
    "latest_checkpoint",
    "learning_rate_factor",
    "parameter_groups",
    "read_metrics",
    "sequence_weights",
    "train",
    "update",
]
