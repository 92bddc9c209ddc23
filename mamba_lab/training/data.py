"""Documents in, micro-batches out: one rank's share of every epoch, under any scheme, with an exact place to go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mamba_lab.batching import Batch, pack_best_fit
from mamba_lab.batching._checks import as_int, shown
from mamba_lab.corpus import Corpus, Document, load_corpus
from mamba_lab.log import log_once
from mamba_lab.tokenizer import Tokenizer, load_tokenizer

from .documents import DataCounts, Sequences, prepare
from .planned import Rows, dealt
from .schemes import make_scheme

if TYPE_CHECKING:
    from .config import TrainConfig

_KEYS = ("epoch", "place", "part", "batches", "settings")


class TrainingData:
    """The data of a run as one rank sees it.

        data = TrainingData(config)
        for micro_batches in data.steps(epoch, accumulation): ...      # one optimiser step each
        data.load_state_dict(micro_batches[-1].stream_state)           # goes on after that step

    The order depends on the documents, the settings, the seed and the epoch alone. Documents are tokenised once, when
    this is built, and stay in memory. Targets and weights are made on whole documents, before anything is cut.

    Args:
        config: what to read, how to batch and how to weigh it.
        rank, world_size: this process and how many there are. All ranks have the same number of steps.
        documents: instead of ``config.data.corpus``.

    Attributes:
        tokenizer: of the run.
        counts: what became of the documents; its text says it in a line.

    Raises:
        ValueError: documents that cannot be read, nothing to train on, a document above the capacity under
            ``overflow = "error"``, settings that do not go together.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        documents: Sequence[Document] | None = None,
    ) -> None:
        self.rank = as_int(rank, "rank", minimum=0)
        self.world_size = as_int(world_size, "world_size", minimum=1)
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {rank}, but world_size {world_size} has ranks 0 to {world_size - 1}.")
        self.config, self._packing = config, config.packing
        self.tokenizer: Tokenizer = load_tokenizer(config.data.tokenizer) if config.data.tokenizer else load_tokenizer()
        seed = config.training.seed if config.data.seed is None else config.data.seed
        corpus = _corpus(config, documents)
        prepared = prepare(corpus, self.tokenizer, config.data, seed)
        self._training, self._validation = prepared.training, prepared.validation
        self.counts: DataCounts = replace(prepared.counts, truncated_tokens=self._truncated(corpus))
        if rank == 0:
            log_once(logging.INFO, f"data: {self.counts}.")
        self._scheme = make_scheme(
            self._training,
            self._packing,
            pad_id=self.tokenizer.pad_id,
            seed=seed,
            rank=self.rank,
            world_size=self.world_size,
        )
        self._settings: dict[str, Any] = {
            "scheme": self._packing.scheme,
            "documents": len(self._training),
            "crc32": self._training.crc32,
            "capacity": self._packing.capacity,
            "overflow": self._packing.overflow,
            "shuffle": self._packing.shuffle,
            "pad_to_multiple_of": self._packing.pad_to_multiple_of,
            "seed": seed,
            "world_size": self.world_size,
            **self._scheme.settings,
        }
        self._restored: Mapping[str, Any] | None = None

    @property
    def vocab_size(self) -> int:
        """V, the ids that the tokenizer has."""
        return self.tokenizer.vocab_size

    @property
    def n_documents(self) -> int:
        """Documents to train on."""
        return len(self._training)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The micro-batches of an epoch, or what remains of it after ``load_state_dict``.

        Each has its ``stream_state``, the place after it, and ``weights`` where ``loss.weighting`` is "sequence".
        """
        for group in self._groups(number):
            yield from group

    def steps(self, number: int, accumulation: int) -> Iterator[list[Batch]]:
        """The epoch's micro-batches in lists, one for each optimiser step. The last one has what remains.

        Args:
            accumulation: micro-batches of a step. Under "one-at-a-time" the sequences of one pack count as one.
        """
        accumulation = as_int(accumulation, "accumulation", minimum=1)
        step: list[Batch] = []
        groups = 0
        for group in self._groups(number):
            step += group
            groups += 1
            if groups == accumulation:
                yield step
                step, groups = [], 0
        if step:
            yield step

    def micro_batches(self, epoch: int) -> int:
        """How many micro-batches an epoch has, the sequences of a pack counted as one under "one-at-a-time"."""
        return self._scheme.count(as_int(epoch, "epoch", minimum=0))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch whose ``stream_state`` this is: ``epoch`` and ``steps`` of its epoch begin there.

        Raises:
            ValueError: no such state, or one of other data or settings; the message names each that differs.
        """
        if not isinstance(state, Mapping) or any(key not in state for key in _KEYS):
            raise ValueError(f"state must be a batch's stream_state from TrainingData, got {shown(state)}.")
        theirs = state["settings"]
        names = [*self._settings, *(name for name in theirs if name not in self._settings)]
        wrong = [
            f"{name} is {theirs.get(name)!r} in the state and {self._settings.get(name)!r} here"
            for name in names
            if theirs.get(name, _MISSING) != self._settings.get(name, _MISSING)
        ]
        if wrong:
            raise ValueError(
                f"state belongs to another run: {'; '.join(wrong)}. Resume with the same documents and the same "
                f"data and packing settings, or start anew."
            )
        self._restored = dict(state)

    def validation(self) -> Iterator[Batch]:
        """This rank's packs of the documents held out: every target once, on one rank, and nothing shuffled.

        What does not fit a pack is cut, never dropped. Without documents for validation there is no batch.
        """
        if not len(self._validation):
            return
        packing = self._packing
        plan = pack_best_fit(self._validation.lengths, packing.capacity, overflow="split")
        rows = Rows(self._validation, plan, pad_id=self.tokenizer.pad_id, pad_to_multiple_of=packing.pad_to_multiple_of)
        for chosen in dealt(np.arange(plan.n_bins), packing.rows, self.rank, self.world_size, plan.n_bins):
            yield _numbered(rows.batch(chosen, widest=False), self._validation)

    def _groups(self, number: int) -> Iterator[list[Batch]]:
        number = as_int(number, "number", minimum=0)
        restored = self._restored if self._restored is not None and self._restored["epoch"] == number else None
        self._restored = restored
        place, skip, batches = (restored[key] for key in ("place", "part", "batches")) if restored else (None, 0, 0)
        for group, after in self._scheme.groups(number, place):
            if self._restored is restored:
                self._restored = None
            given = []
            for part, batch in enumerate(group[skip:], skip + 1):
                batches += 1
                last = part == len(group)
                state = {
                    "epoch": number,
                    "place": after if last else place,
                    "part": 0 if last else part,
                    "batches": batches,
                    "settings": dict(self._settings),
                }
                given.append(replace(_numbered(batch, self._training), stream_state=state))
            yield given
            place, skip = after, 0

    def _truncated(self, corpus: Corpus) -> int:
        """Tokens that ``overflow = "truncate"`` cuts off. Raises ValueError for what "error" does not allow."""
        lengths = self._training.lengths
        longer = np.flatnonzero(lengths > self._packing.capacity)
        if len(longer) and self._packing.overflow == "error":
            number = int(self._training.numbers[longer[0]])
            others = f", and so are {len(longer) - 1:,} others" if len(longer) > 1 else ""
            raise ValueError(
                f"document {number} ({corpus[number].id}) has {lengths[longer[0]]:,} tokens, above packing.capacity "
                f'{self._packing.capacity:,}{others}. Raise the capacity, or choose packing.overflow = "split" or '
                f'"truncate".'
            )
        if self._packing.overflow != "truncate":
            return 0
        return int((lengths[longer] - self._packing.capacity).sum())


_MISSING = object()


def _corpus(config: TrainConfig, documents: Sequence[Document] | None) -> Corpus:
    if documents is not None:
        return documents if isinstance(documents, Corpus) else Corpus(documents, "documents")
    return load_corpus(config.data.corpus)


def _numbered(batch: Batch, sequences: Sequences) -> Batch:
    """The batch with the corpus's numbers of its sequences."""
    sequence = batch.sequence.clone()
    real = sequence >= 0
    sequence[real] = torch.from_numpy(sequences.numbers)[sequence[real]]
    return replace(batch, sequence=sequence)
