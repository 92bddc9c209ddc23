"""What the tests of checkpoints and resumed runs share: a run so small that it takes a fraction of a second."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mamba_lab.document import Document
from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.tokenizer import END, PAD, ROLES, role_token
from mamba_lab.training.checkpoint import TrainState, find_checkpoint, load_checkpoint, save_checkpoint
from mamba_lab.training.config import TrainConfig
from mamba_lab.training.loop import TrainResult, train
from mamba_lab.training.metrics import StepMetrics
from mamba_lab.training.metrics_file import read_metrics
from mamba_lab.training.optim import Schedule, make_optimizer

# What differs from one run to the next without a difference in the run.
FILES = (
    "config.json",
    "model.safetensors",
    "optimizer.safetensors",
    "trainer.json",
    "train_config.json",
    "manifest.json",
)
CLOCK = {"seconds", "waiting_seconds", "tgs", "memory_gib", "seconds_left"}
SCHEMES = (
    "fixed",
    "padded",
    "bucketed",
    "packed-sequential",
    "packed-greedy",
    "packed-best-fit",
    "one-at-a-time",
    "concat",
)


def byte_tokenizer(path: Path) -> str:
    """A tokenizer with a token a byte, so that the embedding costs nothing."""
    if not path.exists():
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([END, PAD, *map(role_token, ROLES)])
        tokenizer.save(str(path))
    return str(path)


def documents(n: int = 40) -> list[Document]:
    """Texts of 2 to 59 bytes, each unlike the others."""
    return [
        Document(f"{number * 7919 % 1000:03d} " * (1 + number * 37 % 14) + "end", str(number), "here")
        for number in range(n)
    ]


def config(folder: Path, output: Path | None, **sections: dict[str, Any]) -> TrainConfig:
    """Two epochs over ``documents`` in steps of two rows of 48 tokens, buffers of 8 documents."""
    given: dict[str, dict[str, Any]] = {
        "data": {"validation_share": 0.1, "tokenizer": byte_tokenizer(folder / "bytes.json")},
        "packing": {"capacity": 48, "rows": 2, "buffer_size": 8, "workers": 0},
        "training": {"output_dir": output, "num_train_epochs": 2, "device": "cpu", "warmup_steps": 3},
        "model": {"d_model": 8, "n_layer": 1, "d_state": 4},
        "logging": {"progress": False},
    }
    return TrainConfig(
        **{name: values | sections.get(name, {}) for name, values in given.items()},
        **{name: values for name, values in sections.items() if name not in given},
    )


def run(
    settings: TrainConfig, *, stop_at: int | None = None, resume: bool | str | Path = False, **more: Any
) -> TrainResult:
    """Train; with ``stop_at`` a SIGTERM comes after that step."""
    return train(settings, resume=resume, documents=documents(), on_step=stopper(stop_at), **more)


def stopper(stop_at: int | None) -> Callable[[StepMetrics], None]:
    def on_step(step: StepMetrics) -> None:
        if step.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


def same_weights(one: MambaLM, two: MambaLM) -> bool:
    """To the bit."""
    first, second = one.state_dict(), two.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def without_clock(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in CLOCK}


def lines(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of these kinds, without times."""
    return [
        without_clock(line) for line in read_metrics(folder, None) if line["kind"] in (kinds or ("step", "validation"))
    ]


SIZES: dict[str, Any] = {"d_model": 8, "n_layer": 2, "vocab_size": 21, "d_state": 4}


def names_in(folder: Path) -> list[str]:
    """What lies beside the checkpoints of a run, and they themselves."""
    return sorted(each.name for each in (folder / "checkpoints").iterdir())


def assert_same_run(folder: Path, one: TrainResult, other: TrainResult, *, history: bool = True) -> None:
    """The runs "whole" and "part" in ``folder``, to the bit: weights, moments, place, watch, random numbers, lines."""
    assert same_weights(one.model, other.model)
    assert one.validation == other.validation
    assert (one.steps, one.stopped, one.tokens) == (other.steps, other.stopped, other.tokens)
    assert lines(folder / "whole") == lines(folder / "part")
    paths = [find_checkpoint(folder / name) for name in ("whole", "part")]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert paths[0].joinpath(name).read_bytes() == paths[1].joinpath(name).read_bytes(), name
    rest = [json.loads((path / "trainer.json").read_text()) for path in paths]
    for values in rest:
        del values["state"]["counters"]["seconds"]
    assert rest[0] == rest[1]
    if history:
        wanted = [without_clock(step.to_dict()) for step in one.history]
        assert [without_clock(step.to_dict()) for step in other.history] == wanted[-len(other.history) :]


class Run:
    """A model that has learnt a little, with what belongs to it."""

    def __init__(self, *, steps: int = 2, seed: int = 1, config: TrainConfig | None = None, **sizes: Any) -> None:
        torch.manual_seed(seed)
        self.config = config or TrainConfig(training={"weight_decay": 0.1})
        self.model = MambaLM(MambaConfig(**(SIZES | sizes)))
        self.optimizer = make_optimizer(self.model, self.config.training)
        self.schedule = Schedule(self.optimizer, self.config.training, 100)
        for number in range(steps):
            self.step(number)

    def step(self, number: int) -> None:
        self.schedule.set(number)
        ids = torch.randint(0, 21, (2, 9)).to(next(self.model.parameters()).device)
        loss, weight = self.model(ids, targets=ids.roll(-1, 1))
        (loss / weight).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path, step: int = 2, keep: int | None = 3, **state: Any) -> Path:
        return save_checkpoint(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.schedule,
            state=TrainState(step=step, **state),
            config=self.config,
            keep=keep,
        )

    def load(self, path: Path, **more: Any) -> TrainState:
        return load_checkpoint(
            path, model=self.model, optimizer=self.optimizer, scheduler=self.schedule, config=self.config, **more
        )

    def everything(self) -> dict[str, Any]:
        """All that a checkpoint sets, as something that == compares to the bit."""
        found: dict[str, Any] = {name: value.cpu().numpy().tobytes() for name, value in self.model.state_dict().items()}
        packed = self.optimizer.state_dict()
        for number, entry in packed["state"].items():
            found |= {f"{number}/{key}": value.cpu().numpy().tobytes() for key, value in entry.items()}
        found["groups"] = [sorted(group.items(), key=str) for group in packed["param_groups"]]
        found["random"] = random.getstate(), torch.get_rng_state().numpy().tobytes()
        found["numpy"] = repr(np.random.get_state())  # noqa: NPY002
        return found
