"""Documents for a run: tokenised once, filtered, parted into training and validation, each with its targets."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from mamba_lab.batching import make_targets
from mamba_lab.batching.batch import IGNORE
from mamba_lab.corpus import Corpus, Document
from mamba_lab.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .config import DataConfig

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Teach: TypeAlias = Literal["whole", "assistant", "prompt"]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token sequences with their targets.

    Attributes:
        ids, targets: int32 [length] each; the targets are already shifted.
        numbers: int64 [n], each one's index in the corpus.
    """

    ids: list[Ints]
    targets: list[Ints]
    numbers: np.ndarray[Any, np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """int64 [n], tokens of each."""
        return np.array([len(ids) for ids in self.ids], np.int64)

    @property
    def crc32(self) -> int:
        """Of all ids and targets: whether a resume finds the same data."""
        crc = 0
        for ids, targets in zip(self.ids, self.targets, strict=True):
            crc = zlib.crc32(len(ids).to_bytes(8, "little"), crc)
            for values in (ids, targets):
                crc = zlib.crc32(values.astype("<i4", copy=False).tobytes(), crc)
        return crc


@dataclass(frozen=True)
class DataCounts:
    """What became of the documents. Nothing leaves the data without a number here.

    Attributes:
        documents: in the corpus, after ``max_documents``.
        unread: documents that could not be read (``on_error = "skip"``).
        beyond: documents after the first ``max_documents``.
        too_short: documents under ``min_seq_len`` tokens, left out.
        too_short_tokens: the tokens in them.
        shortened: documents cut off at ``max_seq_len``.
        shortened_tokens: the tokens cut off.
        truncated_tokens: training tokens that ``overflow = "truncate"`` cuts off in every epoch.
        silent: documents that are kept and have no target.
        training, validation: documents of each.
        training_tokens, training_targets, validation_tokens, validation_targets: what they hold.
    """

    documents: int = 0
    unread: int = 0
    beyond: int = 0
    too_short: int = 0
    too_short_tokens: int = 0
    shortened: int = 0
    shortened_tokens: int = 0
    truncated_tokens: int = 0
    silent: int = 0
    training: int = 0
    training_tokens: int = 0
    training_targets: int = 0
    validation: int = 0
    validation_tokens: int = 0
    validation_targets: int = 0

    def __str__(self) -> str:
        parts = [
            f"{self.training:,} documents to train on ({self.training_tokens:,} tokens, {self.training_targets:,} "
            f"targets), {self.validation:,} for validation ({self.validation_targets:,} targets)"
        ]
        left_out = {
            "could not be read": self.unread,
            "are beyond max_documents": self.beyond,
            f"are shorter than min_seq_len ({self.too_short_tokens:,} tokens)": self.too_short,
        }
        parts += [f"{count:,} {why} and are left out" for why, count in left_out.items() if count]
        if self.shortened:
            parts.append(f"{self.shortened:,} are cut off at max_seq_len ({self.shortened_tokens:,} tokens)")
        if self.truncated_tokens:
            parts.append(f'overflow = "truncate" cuts off {self.truncated_tokens:,} tokens an epoch')
        if self.silent:
            parts.append(f"{self.silent:,} have no target and teach nothing")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The two parts of the data, and what became of all documents."""

    training: Sequences
    validation: Sequences
    counts: DataCounts = field(default_factory=DataCounts)


def prepare(corpus: Corpus, tokenizer: Tokenizer, config: DataConfig, seed: int) -> Prepared:
    """Tokenise, filter, make targets, part.

    Targets are made on whole documents, before anything is cut: also the last token before a cut keeps its target.

    Args:
        corpus: all documents; the first ``config.max_documents`` of them are used.
        seed: of the parting; ``config.seed`` or the run's.

    Raises:
        ValueError: nothing is left to train on; ``teach`` needs conversations and a document is none.
    """
    total = len(corpus)
    if config.max_documents is not None:
        corpus = corpus[: config.max_documents]
    parts = (_Part(), _Part())
    ids_of = corpus.tokenize(tokenizer)
    said_of = None if config.teach == "whole" else corpus.said_by("assistant", tokenizer)
    end = [tokenizer.end_id] if config.add_end else []
    short = [number for number, ids in enumerate(ids_of) if len(ids) + len(end) < config.min_seq_len]
    kept = sorted(set(range(len(ids_of))) - set(short))
    held_out = validation_numbers(kept, config.validation_share, seed)
    shortened = shortened_tokens = 0
    for number in kept:
        ids = np.append(ids_of[number], np.array(end, np.int32))
        targets = _targets(ids, config.teach, None if said_of is None else _said(said_of[number], corpus[number], end))
        if config.max_seq_len is not None and len(ids) > config.max_seq_len:
            shortened += 1
            shortened_tokens += len(ids) - config.max_seq_len
            ids, targets = ids[: config.max_seq_len], targets[: config.max_seq_len]
        parts[number in held_out].add(number, ids, targets)
    training, validation = (part.sequences() for part in parts)
    counts = DataCounts(
        documents=len(ids_of),
        unread=corpus.skipped.count,
        beyond=total - len(ids_of),
        too_short=len(short),
        too_short_tokens=sum(len(ids_of[number]) + len(end) for number in short),
        shortened=shortened,
        shortened_tokens=shortened_tokens,
        silent=sum(part.silent for part in parts),
        training=len(training),
        training_tokens=int(training.lengths.sum()),
        training_targets=parts[0].n_targets,
        validation=len(validation),
        validation_tokens=int(validation.lengths.sum()),
        validation_targets=parts[1].n_targets,
    )
    if not len(training):
        raise ValueError(
            f"data.corpus: {corpus.name!r} leaves no document to train on ({counts}). Lower data.min_seq_len or "
            f"data.validation_share, or give more documents."
        )
    return Prepared(training, validation, counts)


def validation_numbers(numbers: Sequence[int], share: float, seed: int) -> frozenset[int]:
    """Which of ``numbers`` are held out: those whose hash, of ``seed`` and the number alone, lies under ``share``.

    Another document more or less moves no other one from one side to the other. Where chance holds out none of several,
    it is the one with the smallest hash; where it holds out all, the one with the largest stays.
    """
    if not share or len(numbers) < 2:
        return frozenset()
    ranked = sorted((_hash(seed, number), number) for number in numbers)
    chosen = sum(value < share for value, _ in ranked)
    return frozenset(number for _, number in ranked[: min(max(chosen, 1), len(ranked) - 1)])


def _hash(seed: int, number: int) -> float:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def _said(
    said: np.ndarray[Any, np.dtype[np.bool_]], document: Document, end: list[int]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """``said`` for the ids with their end token: it ends the last turn, so it is its speaker's."""
    last = bool(document.turns) and document.turns[-1].role == "assistant"  # type: ignore[index]
    return np.append(said, np.full(len(end), last))


def _targets(ids: Ints, teach: Teach, said: np.ndarray[Any, np.dtype[np.bool_]] | None) -> Ints:
    if said is None:
        return make_targets(ids).astype(np.int32)
    if teach == "assistant":
        return make_targets(ids, "assistant", said=said).astype(np.int32)
    # The prompt ends with the role token of the assistant's first turn: the next token is the first one said.
    length = int(np.argmax(said)) if said.any() else len(ids)
    return make_targets(ids, "prompt", prompt_length=length).astype(np.int32)


class _Part:
    def __init__(self) -> None:
        self.ids: list[Ints] = []
        self.targets: list[Ints] = []
        self.numbers: list[int] = []
        self.n_targets = self.silent = 0

    def add(self, number: int, ids: Ints, targets: Ints) -> None:
        self.numbers.append(number)
        self.ids.append(ids)
        self.targets.append(targets)
        found = int(np.count_nonzero(targets != IGNORE))
        self.n_targets += found
        self.silent += not found

    def sequences(self) -> Sequences:
        return Sequences(self.ids, self.targets, np.array(self.numbers, np.int64))


__all__ = ["DataCounts", "Document", "Prepared", "Sequences", "prepare", "validation_numbers"]
