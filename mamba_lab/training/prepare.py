"""What is settled before the first step: device, precision, whether results must repeat, the model, how many steps."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mamba_lab.log import logger
from mamba_lab.models import MambaLM

from .checkpoint import find_checkpoint
from .manifest import MANIFEST

if TYPE_CHECKING:
    from .config import ModelConfig, TrainConfig, TrainingConfig
    from .data import TrainingData


def pick_device(wanted: str) -> torch.device:
    """The device that ``training.device`` means; "auto" is a GPU where there is one.

    Raises:
        ValueError: a GPU that this machine does not have.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= there:
            raise ValueError(
                f'training.device is "{wanted}", but PyTorch sees {there} GPUs here. Use "auto" or "cpu"; '
                f"mamba-lab doctor says what is there."
            )
        return torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())
    return device


def uses_bf16(config: TrainingConfig, device: torch.device) -> bool:
    """Whether the forward pass runs in bfloat16; "auto" does on a GPU that has it.

    Raises:
        ValueError: ``training.bf16`` is true on a GPU that has none.
    """
    there = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if config.bf16 == "auto":
        return device.type == "cuda" and there
    if config.bf16 and not there:
        raise ValueError("training.bf16 is true, but this GPU computes no bfloat16. Set it to false.")
    return config.bf16


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch, GPUs included."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is the one to seed
    torch.manual_seed(seed)


@contextmanager
def repeatable(on: bool) -> Iterator[None]:
    """Inside the block PyTorch takes only operations that give the same bits again, and raises where there is none."""
    if not on:
        yield
        return
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    # cuBLAS reads this when it is first used: with its usual workspaces equal calls may add in another order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
        torch.backends.cudnn.benchmark = benchmark


def make_model(config: ModelConfig, vocab_size: int) -> MambaLM:
    """A new model of ``config``'s sizes, or the one in ``from_pretrained``, float32 on the CPU.

    Args:
        vocab_size: ids of the tokenizer.

    Raises:
        ValueError: no model there, or one with fewer ids than the tokenizer.
    """
    if config.from_pretrained is None:
        return MambaLM(config.mamba(vocab_size), backend=config.backend)
    try:
        model = MambaLM.from_pretrained(weights_in(config.from_pretrained), backend=config.backend)
    except ValueError as error:
        raise ValueError(f"model.from_pretrained: {error}") from error
    require_vocabulary(model, vocab_size)
    return model


def require_vocabulary(model: MambaLM, vocab_size: int) -> None:
    """Refuse a model with fewer ids than the tokenizer has.

    Raises:
        ValueError: naming both numbers.
    """
    if model.config.vocab_size < vocab_size:
        raise ValueError(
            f"the model has {model.config.vocab_size} ids and the tokenizer {vocab_size}: a text would hold ids that "
            f"the model does not know. Set data.tokenizer to the model's own."
        )


def require_targets(data: TrainingData) -> None:
    """Refuse documents without a single target: every step would be skipped. Of a stream nobody knows.

    Raises:
        ValueError: with what became of the documents.
    """
    if data.n_documents is not None and not data.counts.training_targets:
        raise ValueError(
            f"no document has a target to learn from ({data.counts}). Is data.teach right, and are sequences longer "
            f"than one token?"
        )


def weights_in(source: str) -> str:
    """Where the weights lie: in a run's folder those of its newest whole checkpoint; anything else as it is.

    Raises:
        ValueError: a run's folder without a whole checkpoint, or a checkpoint that is damaged.
    """
    folder = Path(source)
    ours = (folder / MANIFEST).is_file() or (folder / "checkpoints").is_dir()
    return str(find_checkpoint(folder)) if ours else source


def planned_steps(config: TrainConfig, data: TrainingData) -> int:
    """How many steps the run has: those of all epochs, or ``max_steps`` if that is less.

    The last step of an epoch takes the micro-batches that remain. Fewer than ``max_steps`` are said in the log.

    Raises:
        ValueError: it is not known in advance and ``max_steps`` does not say.
    """
    training, total = config.training, 0
    for epoch in range(training.num_train_epochs):
        if training.max_steps is not None and total >= training.max_steps:
            break
        batches = data.micro_batches(epoch)
        if batches is None:
            if training.max_steps is None:
                raise ValueError(
                    "training.max_steps must be set: these documents are read one after another, so nobody knows how "
                    "many steps they make, and the learning rate needs to."
                )
            return training.max_steps
        total += math.ceil(batches / training.gradient_accumulation_steps)
    if training.max_steps is None:
        return total
    if total < training.max_steps:
        epochs = "1 epoch" if training.num_train_epochs == 1 else f"{training.num_train_epochs:,} epochs"
        logger.warning(
            f"the documents give {total:,} steps in {epochs}, and training.max_steps asks for {training.max_steps:,}: "
            f"the run ends after {total:,}. Raise training.num_train_epochs."
        )
    return min(total, training.max_steps)


def write_settings(config: TrainConfig, path: Path) -> None:
    """Write every setting with its value, for the reader and for the next run; a broken write leaves the old file.

    Raises:
        ValueError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(config.to_toml(), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ValueError(
            f"{path} cannot be written: {error.strerror}. Free space, or name another output_dir."
        ) from error
