"""Documents for a run: tokenised once, filtered, parted into training and validation, each with its targets."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mamba_lab.corpus import Corpus
from mamba_lab.tokenizer import Tokenizer

from .reading import settings_named
from .sequence_maker import Ints, SequenceMaker

if TYPE_CHECKING:
    from .config import TrainConfig


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token sequences with their targets.

    Attributes:
        ids, targets: int32 [length] each; the targets are already shifted.
        numbers: each one's index in the corpus.
    """

    ids: list[Ints]
    targets: list[Ints]
    numbers: list[int]

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
        unread: documents that could not be read (``on_error = "skip"``).
        beyond: documents after the first ``max_documents``; None where nobody has looked (a stream).
        too_short, too_short_tokens: documents under ``min_seq_len`` tokens, left out.
        shortened, shortened_tokens: documents cut off at ``max_seq_len``, and the tokens they lose.
        truncated, truncated_tokens: training documents that ``overflow = "truncate"`` cuts off, and what they lose.
        silent: documents that are kept and have no target.
        training, training_tokens, training_targets: what is trained on in an epoch.
        validation, validation_tokens, validation_targets: what is held out.
    """

    unread: int = 0
    beyond: int | None = 0
    too_short: int = 0
    too_short_tokens: int = 0
    shortened: int = 0
    shortened_tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    silent: int = 0
    training: int = 0
    training_tokens: int = 0
    training_targets: int = 0
    validation: int = 0
    validation_tokens: int = 0
    validation_targets: int = 0

    @classmethod
    def of(
        cls, training: Mapping[str, int], validation: Mapping[str, int], *, unread: int, beyond: int | None
    ) -> DataCounts:
        """From what two ``SequenceMaker`` counted."""
        both = Counter(training) + Counter(validation)
        names = ("too_short", "shortened", "truncated")
        cut = {name: both[name] for base in names for name in (base, f"{base}_tokens")}
        parts = {
            f"{name}{ending}": part.get(what, 0)
            for name, part in (("training", training), ("validation", validation))
            for what, ending in (("documents", ""), ("tokens", "_tokens"), ("targets", "_targets"))
        }
        return cls(unread=unread, beyond=beyond, silent=both["silent"], **cut, **parts)

    def __str__(self) -> str:
        parts = [
            f"{_n(self.training, 'document')} to train on ({_n(self.training_tokens, 'token')}, "
            f"{_n(self.training_targets, 'target')})"
        ]
        if self.validation or self.beyond is not None:  # a stream's are read when they are needed
            parts[0] += f", {self.validation:,} for validation ({_n(self.validation_targets, 'target')})"
        told = (
            (self.unread, 0, "left out: cannot be read"),
            (self.beyond or 0, 0, "left out: beyond data.max_documents"),
            (self.too_short, self.too_short_tokens, "left out: shorter than data.min_seq_len"),
            (self.shortened, self.shortened_tokens, "cut off at data.max_seq_len"),
            (self.truncated, self.truncated_tokens, 'cut off by packing.overflow = "truncate"'),
            (self.silent, 0, "without a target, which teach nothing"),
        )
        for count, tokens, what in told:
            if count:
                parts.append(f"{_n(count, 'document')} {what}" + (f" ({_n(tokens, 'token')})" if tokens else ""))
        return "; ".join(parts)


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True, eq=False)
class Prepared:
    """The two parts of the data, and what became of all documents."""

    training: Sequences
    validation: Sequences
    counts: DataCounts


def prepare(corpus: Corpus, tokenizer: Tokenizer, config: TrainConfig) -> Prepared:
    """Tokenise, filter, part, make targets.

    Raises:
        ValueError: nothing is left to train on; ``teach`` needs conversations and a document is none; a document to
            train on is above the capacity under ``overflow = "error"``.
    """
    data, total = config.data, len(corpus)
    if data.max_documents is not None:
        corpus = corpus[: data.max_documents]
    makers = {held_out: SequenceMaker(tokenizer, config, training=not held_out) for held_out in (False, True)}
    parts = {held_out: Sequences([], [], []) for held_out in makers}
    ids_of = corpus.tokenize(tokenizer)
    with settings_named():
        said_of = None if data.teach == "whole" else corpus.said_by("assistant", tokenizer)
    long_enough = [number for number, ids in enumerate(ids_of) if makers[False].long_enough(ids)]
    validation = validation_numbers(long_enough, data.validation_share, config.data_seed)
    for number, ids in enumerate(ids_of):
        held_out = number in validation
        made = makers[held_out](number, corpus[number], ids, None if said_of is None else said_of[number])
        if made is not None:
            parts[held_out].ids.append(made[0])
            parts[held_out].targets.append(made[1])
            parts[held_out].numbers.append(number)
    counts = DataCounts.of(
        makers[False].counts, makers[True].counts, unread=corpus.skipped.count, beyond=total - len(corpus)
    )
    if not len(parts[False]):
        raise ValueError(
            f"data.corpus: {corpus.name!r} leaves no document to train on ({counts}). Give more documents, or lower "
            f"data.min_seq_len."
        )
    return Prepared(parts[False], parts[True], counts)


def validation_numbers(numbers: Sequence[int], share: float, seed: int) -> frozenset[int]:
    """Which of ``numbers`` are held out: those whose hash lies under ``share``.

    So another document more or less moves no other one from one side to the other. Where chance holds out none of
    several, it is the one with the smallest hash; where it holds out all, the one with the largest stays.
    """
    if not share or len(numbers) < 2:
        return frozenset()
    ranked = sorted((share_of(seed, number), number) for number in numbers)
    chosen = sum(value < share for value, _ in ranked)
    return frozenset(number for _, number in ranked[: min(max(chosen, 1), len(ranked) - 1)])


def share_of(seed: int, number: int) -> float:
    """A number from 0 to 1 that depends on ``seed`` and ``number`` alone, the same on every machine."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
