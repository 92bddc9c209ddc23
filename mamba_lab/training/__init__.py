"""Training on packs, padded batches or one sequence at a time: one loop, one mean, exact resume.

    from mamba_lab.training import TrainConfig, train
    result = train(TrainConfig(training={"max_steps": 100}))

Needs the extra ``train``: pip install 'mamba-lab[train]'.
"""

from __future__ import annotations

from . import _extra as _extra
from .checkpoint import CheckpointError, find_checkpoint, latest_checkpoint
from .config import ConfigError, TrainConfig, TrainingConfig
from .data import TrainingData
from .evaluate import Validation, evaluate
from .gradient_report import GradientReport, gradient_report
from .loop import TrainResult, train
from .loss import language_loss
from .metrics import StepMetrics
from .optim import learning_rate_factor, parameter_groups
from .regression import MambaRegressor, pack_series, regression_loss, series_batches
from .run_log import read_metrics
from .step import StepResult, backward, update
from .train_regressor import train_regressor
from .watch import Watch
from .weights import sequence_weights

__all__ = [
    "CheckpointError",
    "ConfigError",
    "GradientReport",
    "MambaRegressor",
    "StepMetrics",
    "StepResult",
    "TrainConfig",
    "TrainResult",
    "TrainingConfig",
    "TrainingData",
    "Validation",
    "Watch",
    "backward",
    "evaluate",
    "find_checkpoint",
    "gradient_report",
    "language_loss",
    "latest_checkpoint",
    "learning_rate_factor",
    "pack_series",
    "parameter_groups",
    "read_metrics",
    "regression_loss",
    "sequence_weights",
    "series_batches",
    "train",
    "train_regressor",
    "update",
]
