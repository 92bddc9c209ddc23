"""Training on packs, padded batches or one sequence at a time: one loop, one mean, exact resume."""

from __future__ import annotations

from .evaluate import Validation, evaluate
from .metrics import StepMetrics

__all__ = ["StepMetrics", "Validation", "evaluate"]
