"""What the tests of logs and commands share: a step's numbers."""

from __future__ import annotations

from typing import Any

from mamba_lab.training.metrics import StepMetrics


def metrics(step: int, **other: Any) -> StepMetrics:
    """Those of a step that went well, but for ``other``."""
    values: dict[str, Any] = {
        "step": step,
        "epoch": 0,
        "loss": 9.0 / step,
        "valid_ratio": 0.996,
        "longest": 2048,
        "grad_norm": 0.75,
        "learning_rate": 1e-3,
        "tokens": 2040,
        "targets": 2030,
        "sequences": 5,
        "positions": 2048,
        "seconds": 2.0,
        "waiting_seconds": 0.01,
        "tgs": 1020.0,
        "memory_gib": 1.25,
        "seconds_left": 3725.0,
        "skipped": False,
    }
    return StepMetrics(**(values | other))
