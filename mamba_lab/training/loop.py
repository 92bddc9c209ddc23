"""The training loop: take a step's batches, one mean loss, one update, look at the numbers, keep the place.

Logging, validation and checkpoints all come at a step's end. So there is one kind of place to stop at and go on from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mamba_lab.document import Document
from mamba_lab.models import MambaLM

from .config import TrainConfig
from .data import TrainingData
from .gradient_report import gradient_report
from .kinds import require_config, require_documents, require_function, require_gradients, require_model
from .memory import require_training_fits
from .metrics import BatchCounts, StepMetrics, peak_memory_gib
from .prepare import (
    make_model,
    pick_device,
    repeatable,
    require_targets,
    require_vocabulary,
    seed_all,
    write_settings,
)
from .rescue import saved_on_error
from .run_folder import open_run
from .run_log import RunLog
from .session import Session
from .signals import StopRequests
from .step import backward


@dataclass
class TrainResult:
    """What a run leaves.

    Attributes:
        model: as the last step left it.
        steps: taken so far, those before a resume among them.
        history: the steps of this call.
        validation: (step, loss) of every validation so far.
        stopped: "finished" (all epochs), "max_steps", "signal" (Ctrl-C, SIGTERM, SIGHUP), or "nonfinite".
        folder: where the run is; None where nothing was written.
        tokens: trained on so far, without padding.
        seconds: spent in steps so far.
    """

    model: MambaLM
    steps: int = 0
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
    """Train a model as ``config`` says.

    Seeds the random generators of Python, NumPy and PyTorch with ``training.seed``.

    Args:
        resume: go on from the newest whole checkpoint in ``training.output_dir``, or from this checkpoint or run.
        model: train this one, in place, instead of making one.
        documents: train on these instead of ``data.corpus``.
        on_step: called with each step's metrics.

    Raises:
        ValueError: settings, data, model or checkpoint do not fit together, or are something else; the message names
            what.
        Exception: whatever ends a step, such as torch.OutOfMemoryError. A checkpoint of the last finished step is
            written first, where there is an output_dir, and the log says so.
    """
    require_gradients()
    require_config(config)
    require_model(model)
    require_documents(documents)
    require_function(on_step, "on_step", "a step's StepMetrics")
    settings = config.training
    device = pick_device(settings.device)
    with open_run(settings.output_dir, resume=resume) as run, repeatable(settings.deterministic):
        seed_all(settings.seed)
        data = TrainingData(config, documents=documents)
        require_targets(data)
        if model is None:
            require_training_fits(config, data.vocab_size, device)
            model = make_model(config.model, data.vocab_size)
        require_vocabulary(model, data.vocab_size)
        session = Session(config, model.to(device).train(), data, run.path)
        if run.checkpoint is not None:
            session.load(run.checkpoint)
        if run.config is not None:
            write_settings(config, run.config)
        with StopRequests() as stop, RunLog(config, run.path, session.total_steps, session.state.step) as log:
            with saved_on_error(session):
                result = _loop(session, log, stop, on_step)
            session.save()
            return result


def _loop(
    session: Session, log: RunLog, stop: StopRequests, on_step: Callable[[StepMetrics], None] | None
) -> TrainResult:
    settings, state, model = session.config.training, session.state, session.model
    result = TrainResult(model, folder=session.folder)
    report_steps = session.config.logging.gradient_report_steps

    if state.step and _due(state.step, settings.eval_steps):
        _validate(session, log)  # an error may have ended the run before it
    for epoch, batches, started, waiting in session.steps():
        # The step. The gradient is that of one mean over all of its micro-batches.
        rate = session.schedule.set(state.step)
        mean = backward(session.forward, batches, bf16=session.bf16)
        if _due(state.step + 1, report_steps):
            log.gradients(state.step + 1, gradient_report(model).to_dict())
        taken = session.update(mean)

        # Its numbers, and what is wrong with them.
        seconds = time.perf_counter() - started
        recent = [step.seconds for step in result.history[-50:]] + [seconds]
        step = StepMetrics.of(
            BatchCounts.of(batches),
            step=state.step + 1,
            epoch=epoch,
            loss=mean.loss,
            grad_norm=mean.grad_norm,
            learning_rate=rate,
            seconds=seconds,
            waiting_seconds=waiting,
            memory_gib=peak_memory_gib(session.device),
            seconds_left=sum(recent) / len(recent) * (session.total_steps - state.step - 1),
            skipped=not taken,
        )
        for warning in session.watch.look(step, batches, mean.micro_losses):
            log.warning(step.step, warning)
        if not mean.finite and settings.on_nonfinite == "stop":
            result.stopped = "nonfinite"  # and the place stays before this step
            break

        # The place moves behind the step; from here on everything is at a step's end.
        session.advance(step, batches)
        result.history.append(step)
        log.step(step)
        if on_step is not None:
            on_step(step)
        if _due(step.step, settings.eval_steps):
            _validate(session, log)
        if _due(step.step, settings.save_steps):
            session.save(or_go_on=True)
        if stop.requested:
            result.stopped = "signal"
            break
    else:
        if not state.step:  # a stream of which nobody knew that it is empty
            raise ValueError(
                f"data.corpus: {session.config.data.corpus!r} gave no document to train on ({session.data.counts}). "
                f"Give more documents, or lower data.min_seq_len."
            )
        result.stopped = "finished" if settings.max_steps is None or state.step < settings.max_steps else "max_steps"
        if result.history and state.step < session.total_steps:  # of a stream nobody knew
            log.warning(
                state.step,
                f"the documents end at step {state.step:,} of the {session.total_steps:,} that the learning rate was "
                f"planned for. Lower training.max_steps, or raise training.num_train_epochs.",
            )
        _validate(session, log)
    result.steps, result.validation = state.step, list(state.validation)
    result.tokens, result.seconds = int(state.counters["tokens"]), float(state.counters["seconds"])
    return result


def _validate(session: Session, log: RunLog) -> None:
    found = session.validate()
    if found is not None:
        log.validation(session.state.step, found.loss, targets=found.weight)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
