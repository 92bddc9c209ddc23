"""What a run says while it runs: a line of numbers a step in metrics.jsonl, TensorBoard's curves, a bar.

for line in read_metrics("runs/first"):
    print(line["step"], line["loss"])
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mamba_lab.log import logger

from .metrics_file import METRICS, MetricsFile, read_metrics
from .run_display import Bar, Board

if TYPE_CHECKING:
    from .config import TrainConfig
    from .metrics import StepMetrics

__all__ = ["METRICS", "RunLog", "read_metrics"]


class RunLog:
    """Hands what a run says to every place that was asked for; a context manager, or ``close`` it.

    Lines of metrics.jsonl are JSON objects with ``kind`` and ``step``. Kinds: "start" (once each time the run is
    started or resumed), "step" (the fields of ``StepMetrics``), "validation" (loss), "warning" (text), "gradients"
    (the report). A number that is not finite is null.

    Args:
        config: ``logging`` says what is wanted.
        folder: the run's folder; None writes no file.
        total_steps: where the run ends, None where that is not known.
        after_step: the step of the checkpoint that the run goes on from. What metrics.jsonl has beyond it belongs to
            steps that are taken again, and is removed.

    Raises:
        ValueError: metrics.jsonl cannot be written, or TensorBoard is wanted and missing.
    """

    def __init__(
        self, config: TrainConfig, folder: Path | None, total_steps: int | None = None, after_step: int = 0
    ) -> None:
        settings = config.logging
        self._every, self._total = settings.logging_steps, total_steps
        self.name = settings.run_name or (folder.resolve().name if folder is not None else "train")
        self._board = Board(folder, after_step, config) if settings.tensorboard and folder is not None else None
        self._file = MetricsFile(folder / METRICS, after_step) if folder is not None else None
        self._bar = Bar(self.name, total_steps, after_step, settings.progress)
        self._write("start", after_step, {"run_name": self.name, "total_steps": total_steps})

    def step(self, metrics: StepMetrics) -> None:
        """One step's numbers: on the bar at once, elsewhere every ``logging_steps``, and at the last step."""
        self._bar.step(metrics)
        if metrics.step % self._every and metrics.step != self._total and not metrics.skipped:
            return
        self._write("step", metrics.step, metrics.to_dict())
        if self._board is not None:
            self._board.step(metrics)

    def validation(self, step: int, loss: float, **numbers: float) -> None:
        """The loss on the validation documents after ``step``, and what else was measured there."""
        self._bar.validation(loss)
        self._write("validation", step, {"loss": loss, **numbers})
        if self._board is not None:
            self._board.scalars("validation", {"loss": loss, **numbers}, step)

    def warning(self, step: int, text: str, **facts: Any) -> None:
        """Something to look at, in words that say where: written, and said to whoever watches."""
        self._write("warning", step, {"text": text, **facts})
        with self._bar.aside():
            logger.warning("%s", text)

    def gradients(self, step: int, report: Mapping[str, Any]) -> None:
        """The report of each layer's gradient at ``step``, JSON-able."""
        self._write("gradients", step, report)
        if self._board is not None:
            norms = {layer["name"]: layer["norm"] for layer in report.get("layers", ())}
            self._board.scalars("gradient norm", norms, step)

    def close(self) -> None:
        """Write what is still held, and end the bar. May be called twice."""
        self._bar.close()
        for sink in (self._file, self._board):
            if sink is not None:
                sink.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(kind, step, values)
