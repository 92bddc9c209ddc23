"""`mamba-lab train CONFIG`: a run from its settings, one line for each mistake, and how to go on at its end.

What is needed is imported when the command runs.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mamba_lab.log import logger

if TYPE_CHECKING:
    from mamba_lab.training import StepMetrics, TrainConfig, TrainResult

EXAMPLES = """\
examples:
  mamba-lab train pretrain-docs                               an example run of the package, by its name
  mamba-lab train my.toml --set training.learning_rate=5e-4   another value for one setting
  mamba-lab train my.toml --set training.output_dir=runs/2 --set packing.scheme=padded
  mamba-lab train my.toml --dry-run                           what would be trained on, and how long an epoch is
  mamba-lab train my.toml --resume                            go on after the last checkpoint
  mamba-lab train runs/2 --resume                             the same, with the settings that the run has saved
  mamba-lab generate runs/2 --prompt "The list"               what it has learnt

Ctrl-C, SIGTERM and a terminal that is closed end the step, write a checkpoint and end the run; a second signal ends it
at once.

exit codes:
  0    the run is finished, or it was stopped and a checkpoint is written
  1    a setting, the data or a checkpoint is wrong, memory did not suffice, or a loss was not finite and
       on_nonfinite is "stop"; where steps were taken, the last one is in a checkpoint
  2    wrong usage
  130, 143, 129   ended at once by a second Ctrl-C, SIGTERM or SIGHUP; the checkpoints before it are there
"""
_SECONDS_BETWEEN_LINES = 20.0


def add_train(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mamba-lab train`."""
    parser = subparsers.add_parser(
        "train",
        help="train a model as a TOML file says, or go on with a run",
        description="Trains on packs, padded batches or one sequence at a time. Settings are in six sections: data, "
        "packing, loss, training, model, logging.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config", metavar="CONFIG", help="a TOML file, or the name of an example (configs/), or a run's folder"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="overrides",
        help='another value for a setting, as often as you like; "none" takes it back to its default',
    )
    parser.add_argument("--resume", action="store_true", help="go on after the newest checkpoint in output_dir")
    parser.add_argument("--resume-from", metavar="PATH", help="go on after this checkpoint, or the newest of this run")
    parser.add_argument("--dry-run", action="store_true", help="read settings and data, say what they are, and stop")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Train. Returns 0, or 1 when a number that is not finite ended the run.

    Raises:
        ValueError, OSError: a setting, the data or a checkpoint is wrong; the message says which.
    """
    if args.resume and args.resume_from is not None:
        raise ValueError("--resume and --resume-from were both given. Give one of them.")
    if args.dry_run and (args.resume or args.resume_from is not None):
        raise ValueError("--dry-run starts nothing, so it goes without --resume and --resume-from.")
    try:
        from mamba_lab.training import TrainConfig, train
        from mamba_lab.training.rescue import is_out_of_memory
    except ModuleNotFoundError as error:  # its message names the extra
        raise ValueError(str(error)) from error
    config = TrainConfig.from_toml(_settings(args.config), args.overrides)
    if args.dry_run:
        return _dry_run(config)
    if config.training.output_dir is None:
        if args.resume:
            raise ValueError(
                "--resume needs training.output_dir, where the checkpoints are. Set it, or give --resume-from."
            )
        logger.warning("training.output_dir is not set: neither numbers nor weights are kept")
    lines = Lines(quiet=config.logging.progress is not None or sys.stderr is None or sys.stderr.isatty())
    try:
        result = train(config, resume=args.resume_from or args.resume, on_step=lines)
    except (RuntimeError, MemoryError) as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise ValueError(
                f"training.torch_compile is true, and PyTorch's compiler failed: {str(error).splitlines()[0]}. Mend "
                f"that (it needs a C++ compiler, on a GPU Triton), or set it to false: --resume may go on without it."
            ) from error
        if not is_out_of_memory(error):
            raise
        raise ValueError(_out_of_memory(config, str(error))) from error
    print(closing_lines(result, args.config))
    return 1 if result.stopped == "nonfinite" else 0


@dataclass
class Lines:
    """A step's numbers as a line of text every 20 seconds, where no bar can be shown: a log file, a batch system."""

    quiet: bool = False
    _shown: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        from mamba_lab.training.run_display import Waiting

        self._waiting = Waiting()

    def __call__(self, metrics: StepMetrics) -> None:
        from mamba_lab.training.run_display import numbers

        waiting = self._waiting.add(metrics)
        if self.quiet or time.monotonic() - self._shown < _SECONDS_BETWEEN_LINES:
            return
        self._shown = time.monotonic()
        print(f"step {metrics.step:,}  {numbers(metrics, waiting)}", file=sys.stderr, flush=True)


def closing_lines(result: TrainResult, config: str) -> str:
    """What a run has come to, and what to do next."""
    why = {
        "finished": "finished",
        "max_steps": "reached training.max_steps",
        "signal": "stopped",
        "nonfinite": "ended by a loss or gradient that is not finite",
    }[result.stopped]
    parts = [f"{why} after {_n(result.steps, 'step')}, {result.tokens:,} tokens, {result.seconds:,.0f} s in steps."]
    if result.history:
        few = max(1, min(20, len(result.history) // 5))
        first = sum(step.loss for step in result.history[:few]) / few
        last = sum(step.loss for step in result.history[-few:]) / few
        parts.append(f"Loss {first:.3f} at the start, {last:.3f} at the end.")
    if result.validation:
        parts.append(f"Validation loss {result.validation[-1][1]:.3f}.")
    lines = [" ".join(parts)]
    if skipped := sum(step.skipped for step in result.history):
        lines.append(f"{_n(skipped, 'step')} left the weights as they were: see the warnings.")
    if result.folder is not None:
        lines.append(f"{_short(result.folder)}: settings, metrics.jsonl, checkpoints.")
        if result.stopped == "signal":
            lines.append(f"Go on: mamba-lab train {shlex.quote(config)} --resume (with the same --set)")
        elif result.stopped != "nonfinite":
            lines.append(
                f'Read what it writes: mamba-lab generate {shlex.quote(str(_short(result.folder)))} --prompt "The"'
            )
    return "\n".join(lines)


def _dry_run(config: TrainConfig) -> int:
    from mamba_lab.training.data import TrainingData
    from mamba_lab.training.memory import require_training_fits
    from mamba_lab.training.prepare import make_model, pick_device, planned_steps

    device = pick_device(config.training.device)
    level = logger.level
    logger.setLevel(logging.WARNING)  # what became of the documents is said below, and is not to stand there twice
    try:
        data = TrainingData(config)
    finally:
        logger.setLevel(level)
    require_training_fits(config, data.vocab_size, device)
    model = make_model(config.model, data.vocab_size)
    steps = data.steps(0, config.training.gradient_accumulation_steps)
    first = next(steps)
    steps.close()
    tokens, positions = sum(b.n_tokens for b in first), sum(b.input_ids.numel() for b in first)
    print(f"data: {data.counts}")
    print(
        f"first step ({config.packing.scheme}): {len(first):,} micro-batches, {positions:,} positions, "
        f"{tokens / positions:.1%} of them tokens, {sum(b.n_target_tokens for b in first):,} targets"
    )
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters, on {device}")
    print(f"run: {_n(planned_steps(config, data), 'step')}, {config.training.output_dir or 'nothing is written'}")
    return 0


def _settings(name: str) -> str:
    """The file of the settings: a run's folder has them in config.toml."""
    inside = Path(name) / "config.toml"
    try:
        return str(inside) if inside.is_file() else name
    except (OSError, ValueError):  # a name the system does not take; what reads it says so
        return name


def _out_of_memory(config: TrainConfig, message: str) -> str:
    """What takes less memory. A run can go on with one of these settings; the others make it another run."""
    packing, training = config.packing, config.training
    smaller = "half of packing.capacity" if packing.rows == 1 else "packing.rows=1"
    if packing.scheme in ("padded", "bucketed") and packing.budget > packing.capacity:
        smaller = f"packing.max_tokens={max(packing.capacity, packing.budget // 2)}"
    less = [] if training.gradient_checkpointing else ["training.gradient_checkpointing=true"]
    what = message.splitlines()[0] if message else "out of memory"
    if "API call failed" in what:  # a line of C++ that names none of the bytes
        what = "an operator's result found no room"
    said = f"memory does not suffice for this model and batch: {what.rstrip('.')}."
    if not _has_checkpoint(training.output_dir):
        return (
            f"{said} Try --set {' or '.join([*less, smaller])}, and more training.gradient_accumulation_steps to keep "
            f"the step's size."
        )
    if less:
        return f"{said} Go on with --resume --set {less[0]} (and the same --set as before)."
    return (
        f"{said} A smaller batch makes another run, which can start from the weights saved: --set "
        f"model.from_pretrained={shlex.quote(str(training.output_dir))}, {smaller}, and another training.output_dir."
    )


def _has_checkpoint(folder: Path | None) -> bool:
    from mamba_lab.training.checkpoint_folders import steps_in

    return folder is not None and bool(steps_in(folder.expanduser() / "checkpoints"))


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _short(folder: Path) -> Path:
    try:
        return folder.relative_to(Path.cwd())
    except (ValueError, OSError):
        return folder
