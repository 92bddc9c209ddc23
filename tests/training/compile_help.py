"""Runs with and without ``torch_compile``, and how many graphs the compiler has made by each step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from run_help import config, documents
from torch._dynamo.utils import counters

from mamba_lab.training.loop import TrainResult, train


@dataclass
class Compared:
    """Two runs of the same settings.

    Attributes:
        plain, compiled: what they have come to.
        graphs: compiled by the end of each step, of the second.
        shapes: how many different numbers of sequences its steps had.
    """

    plain: TrainResult
    compiled: TrainResult
    graphs: list[int]
    shapes: int


def both(folder: Path, **sections: dict[str, Any]) -> Compared:
    """Train without and with the compiler."""
    results, graphs = [], []
    for on in (False, True):
        torch._dynamo.reset()
        counters.clear()
        graphs.clear()
        training = sections.get("training", {}) | {"torch_compile": on}
        results.append(
            train(
                config(folder, None, **(sections | {"training": training})),
                documents=documents(),
                on_step=lambda _: graphs.append(counters["stats"]["unique_graphs"]),
            )
        )
    torch._dynamo.reset()
    shapes = len({step.sequences for step in results[1].history})
    return Compared(results[0], results[1], graphs, shapes)


def losses(result: TrainResult) -> list[float]:
    """Of every step."""
    return [step.loss for step in result.history]
