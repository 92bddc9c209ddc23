"""All that a run holds between two steps: what to train with, the place it has reached, and how to keep it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import torch

from mamba_lab.batching import Batch
from mamba_lab.log import log_once, logger
from mamba_lab.models import MambaLM

from .checkpoint import CheckpointError, TrainState, load_checkpoint, save_checkpoint
from .config import TrainConfig
from .data import TrainingData
from .evaluate import Validation, evaluate
from .metrics import StepMetrics, reset_peak_memory
from .optim import Schedule, make_optimizer
from .prepare import planned_steps, uses_bf16
from .step import StepResult, update
from .watch import Watch


class Session:
    """A run between two steps.

    Args:
        config: the settings.
        model: on its device.
        data: the batches.
        folder: where checkpoints go; None: nowhere.

    Attributes:
        forward: the model, compiled where ``training.torch_compile`` says so.
        bf16: whether the forward pass runs in bfloat16.
        total_steps: of the whole run.
        state: the place that was reached; it moves on with ``advance``.
        whole: the weights are those of ``state``. They are not from the moment an update begins until ``advance``.
    """

    def __init__(self, config: TrainConfig, model: MambaLM, data: TrainingData, folder: Path | None) -> None:
        self.config, self.model, self.data, self.folder = config, model, data, folder
        self.device = next(model.parameters()).device
        self.bf16 = uses_bf16(config.training, self.device)
        reset_peak_memory(self.device)
        if config.training.gradient_checkpointing:
            model.set_gradient_checkpointing()
        self.forward = cast(torch.nn.Module, torch.compile(model)) if config.training.torch_compile else model
        self.optimizer = make_optimizer(model, config.training)
        self.total_steps = planned_steps(config, data)
        self.schedule = Schedule(self.optimizer, config.training, self.total_steps)
        self.watch = Watch()
        self.state = TrainState(counters={"tokens": 0, "targets": 0, "skipped": 0, "seconds": 0.0})
        self.whole = True
        self._saved_at: int | None = None

    def steps(self) -> Iterator[tuple[int, list[Batch], float, float]]:
        """The steps that remain: epoch, micro-batches, when they were asked for, and how many seconds they took."""
        empty = 0
        for epoch in range(self.state.epoch, self.config.training.num_train_epochs):
            empty += 1
            with closing(self.data.steps(epoch, self.config.training.gradient_accumulation_steps)) as steps:
                while self.state.step < self.total_steps:
                    started = time.perf_counter()
                    batches = next(steps, None)
                    if batches is None:
                        break
                    empty = 0
                    yield epoch, batches, started, time.perf_counter() - started
            # An epoch that was left at its very end has nothing more; a stream that gives nothing twice gives nothing.
            if self.state.step >= self.total_steps or empty > 1:
                return

    def update(self, mean: StepResult) -> bool:
        """Clip and take the optimiser's step. False where weights and optimiser stay as they were."""
        self.whole = False
        taken = update(self.model, self.optimizer, mean, self.config.training.max_grad_norm)
        self.whole = not taken
        return taken

    def advance(self, step: StepMetrics, batches: Sequence[Batch]) -> None:
        """Move the place behind this step."""
        state = self.state
        state.step, state.epoch, state.stream_state = step.step, step.epoch, batches[-1].stream_state
        for name in state.counters:
            state.counters[name] += getattr(step, name)
        state.watch = self.watch.state_dict()
        self.whole = True

    def validate(self) -> Validation | None:
        """The mean loss of the validation documents; None where they have no target, or this step has it already."""
        if not self.config.data.validation_share:
            return None
        if any(step == self.state.step for step, _ in self.state.validation):
            return None
        found = evaluate(self.model, self.data.validation(), bf16=self.bf16)
        if not found.weight:
            log_once(logging.WARNING, "no validation loss: the documents held out, if there are any, have no target")
            return None
        self.state.validation.append((self.state.step, found.loss))
        self._saved_at = None  # a checkpoint of this step would lack it
        return found

    def save(self, *, or_go_on: bool = False) -> None:
        """Write a checkpoint, unless this step has one or there is no folder.

        Args:
            or_go_on: log a failure instead of raising it. Older checkpoints are there either way.

        Raises:
            CheckpointError: it could not be written.
        """
        if self.folder is None or self._saved_at == self.state.step:
            return
        try:
            save_checkpoint(
                self.folder,
                model=self.model,
                optimizer=self.optimizer,
                scheduler=self.schedule,
                state=self.state,
                config=self.config,
                keep=self.config.training.save_total_limit,
            )
        except CheckpointError as error:
            if not or_go_on:
                raise
            logger.error("no checkpoint at step %d: %s", self.state.step, error)
        else:
            self._saved_at = self.state.step

    def load(self, checkpoint: Path) -> None:
        """Take the place of ``checkpoint``, which was verified.

        Raises:
            ValueError: it is of another model, other settings or other data.
        """
        self.state = load_checkpoint(
            checkpoint,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.schedule,
            config=self.config,
            verified=True,
        )
        self.watch.load_state_dict(self.state.watch)
        if self.state.stream_state is not None:
            self.data.load_state_dict(self.state.stream_state)
        self._saved_at = self.state.step
