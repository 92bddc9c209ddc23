"""A run on screen and in TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mamba_lab.log import logger

if TYPE_CHECKING:
    from .config import TrainConfig
    from .metrics import StepMetrics

__all__ = ["Bar", "Board", "Waiting", "numbers"]


class Waiting:
    """The share of the time that went into waiting for data, over all steps so far."""

    def __init__(self) -> None:
        self._waited = self._seconds = 0.0

    def add(self, metrics: StepMetrics) -> float:
        """Count one more step. Returns the share, 0 to 1."""
        self._waited += metrics.waiting_seconds
        self._seconds += metrics.seconds
        return self._waited / self._seconds if self._seconds > 0 else 0.0


def numbers(metrics: StepMetrics, waiting: float, validation: float | None = None) -> str:
    """A step in one line: the four numbers to watch, then speed, learning rate, memory, waiting and time left."""
    parts = [f"loss {metrics.loss:.3f}"]
    if validation is not None:
        parts.append(f"val {validation:.3f}")
    parts += [
        f"valid {metrics.valid_ratio:.0%}",
        f"longest {metrics.longest:,}",
        f"grad {metrics.grad_norm:.2f}",
        f"{metrics.tgs:,.0f} tok/s",
        f"lr {metrics.learning_rate:.1e}",
        f"{metrics.memory_gib:.1f} GiB",
        f"wait {waiting:.1%}",
    ]
    if metrics.seconds_left is not None:
        parts.append(f"{_clock(metrics.seconds_left)} left")
    return "  ".join(parts) + ("  SKIPPED" if metrics.skipped else "")


class Bar:
    """A bar on the terminal, or in a notebook.

    Args:
        show: None shows it where standard error is a terminal.
    """

    def __init__(self, name: str, total: int | None, start: int, show: bool | None) -> None:
        self._bar: Any = None
        self._waiting = Waiting()
        self._validation: float | None = None
        if show is None:
            show = sys.stderr is not None and sys.stderr.isatty()
        if show:
            from tqdm.auto import tqdm

            shape = "{desc} {n}/{total} |{bar:10}| {postfix}" if total else "{desc} {n} {postfix}"
            self._bar = tqdm(total=total, initial=start, desc=name, bar_format=shape, dynamic_ncols=True)

    def step(self, metrics: StepMetrics) -> None:
        waiting = self._waiting.add(metrics)
        if self._bar is not None:
            self._bar.set_postfix_str(numbers(metrics, waiting, self._validation), refresh=False)
            self._bar.update()

    def validation(self, loss: float) -> None:
        self._validation = loss

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While something else is printed."""
        if self._bar is not None:
            self._bar.clear()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Board:
    """TensorBoard's event files, in ``folder``/tensorboard. Points after ``after_step`` are taken back.

    A disk that becomes full does not end a run: from then on there are no more points, and that is said.

    Raises:
        ValueError: TensorBoard is missing, or its folder cannot be written.
    """

    def __init__(self, folder: Path, after_step: int, config: TrainConfig) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ValueError(
                f"logging.tensorboard is true, but the package {error.name} is missing: pip install 'mamba-lab[train]'."
            ) from error

        self._folder = folder / "tensorboard"
        text = "".join(f"    {line}\n" for line in config.to_toml().splitlines())
        try:
            self._writer: Any = SummaryWriter(str(self._folder), purge_step=after_step + 1)
            self._writer.add_text("settings", text, after_step)
        except OSError as error:
            raise ValueError(
                f"logging.tensorboard is true, but {self._folder} cannot be written: {error.strerror or error}. Free "
                f"space, or set it to false."
            ) from error

    def step(self, metrics: StepMetrics) -> None:
        values = metrics.to_dict()
        watched = {name: values.pop(name) for name in ("loss", "valid_ratio", "longest", "grad_norm")}
        values.pop("step")
        self.scalars("watch", watched, metrics.step)
        self.scalars("run", values, metrics.step)

    def scalars(self, group: str, values: Mapping[str, Any], step: int) -> None:
        """A point on each curve. What is None has none."""
        with self._going_on():
            for name, value in values.items():
                if value is not None and self._writer is not None:
                    self._writer.add_scalar(f"{group}/{name}", float(value), step)

    def close(self) -> None:
        with self._going_on():
            if self._writer is not None:
                self._writer.close()

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of now, or of its own thread some points ago
            self._writer = None
            logger.warning(
                "%s cannot be written (%s): training goes on without it", self._folder, error.strerror or error
            )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
