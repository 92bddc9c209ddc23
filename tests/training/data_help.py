"""What the tests of a run's data share: short texts, and what every scheme must make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_help import SCHEMES, byte_tokenizer

from mamba_lab.batching import Batch
from mamba_lab.document import Document, Turn, render
from mamba_lab.tokenizer import load_tokenizer
from mamba_lab.training.config import TrainConfig
from mamba_lab.training.data import TrainingData

# (document, token, target), sorted: what a list of batches teaches.
Taught = list[tuple[int, int, int]]
__all__ = ["SCHEMES", "Settings", "alone", "as_taught", "chat", "contents", "settings", "taught", "texts"]


class Settings:
    """A configuration and its data, with a tokenizer that has a token a byte."""

    def __init__(self, folder: Path) -> None:
        self.path = byte_tokenizer(folder / "bytes.json")
        self.tokenizer = load_tokenizer(self.path)

    def config(self, scheme: str = "packed-greedy", **sections: dict[str, Any]) -> TrainConfig:
        """Rows of 24 tokens, two a micro-batch, buffers of five documents, no thread."""
        given: dict[str, dict[str, Any]] = {
            "data": {"tokenizer": self.path, "validation_share": 0.0},
            "packing": {"scheme": scheme, "capacity": 24, "rows": 2, "buffer_size": 5, "workers": 0},
        }
        return TrainConfig(
            **{name: values | sections.get(name, {}) for name, values in given.items()},
            **{name: values for name, values in sections.items() if name not in given},
        )

    def data(
        self, documents: Any, scheme: str = "packed-greedy", *, rank: int = 0, world_size: int = 1, **sections: Any
    ) -> TrainingData:
        config = self.config(scheme, **sections)
        return TrainingData(config, documents=documents, rank=rank, world_size=world_size)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path)


def texts(lengths: list[int]) -> list[Document]:
    """A document of each length in bytes. With its end token it has one token more."""
    letters = "the quick brown fox jumps over the lazy dog "
    return [
        Document(
            "".join(letters[(7 * number + 3 * i + i * i) % len(letters)] for i in range(length)), f"d{number}", "test"
        )
        for number, length in enumerate(lengths)
    ]


def chat(*conversations: str) -> list[Document]:
    """Conversations written as "user words|assistant words|...": the user begins."""
    found = []
    for number, said in enumerate(conversations):
        turns = tuple(Turn(("user", "assistant")[i % 2], words) for i, words in enumerate(said.split("|")))
        found.append(Document(render(turns), f"c{number}", "test", turns))
    return found


def alone(tokenizer: Any, documents: list[Document], most: int | None = None) -> Taught:
    """What the documents teach by themselves: every token once, with the next one as target."""
    found = []
    for number, document in enumerate(documents):
        ids = [*tokenizer.encode(document.text), tokenizer.end_id][:most]
        found += [(number, token, after) for token, after in zip(ids, [*ids[1:], -100], strict=True)]
    return sorted(found)


def taught(batches: list[Batch]) -> Taught:
    """What batches teach, padding left out. A row of "concat" says the first document only, so its numbers are not."""
    found = []
    for batch in batches:
        ids, targets = batch.input_ids.flatten().tolist(), batch.targets.flatten().tolist()
        cu = batch.boundaries.cu_seqlens.tolist()
        for place, number in enumerate(batch.sequence.tolist()):
            span = range(cu[place], cu[place + 1])
            assert number >= 0 or all(targets[at] == -100 for at in span)
            found += [(number, ids[at], targets[at]) for at in span if number >= 0]
    return sorted(found)


def as_taught(found: Taught, scheme: str) -> list[Any]:
    """For comparing: "concat" does not say which document a token is of."""
    return sorted(pair[1:] for pair in found) if scheme == "concat" else found


def contents(batch: Batch) -> tuple[Any, ...]:
    """All that a batch holds and says, for comparing to the bit."""
    return (
        batch.input_ids.tolist(),
        batch.targets.tolist(),
        batch.boundaries.cu_seqlens.tolist(),
        batch.sequence.tolist(),
        None if batch.weights is None else batch.weights.tolist(),
        (batch.n_tokens, batch.n_target_tokens, batch.max_seqlen),
        batch.stream_state,
    )
