"""Documents in, micro-batches out: one rank's share of every epoch, under any scheme, with an exact place to go on."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mamba_lab.batching import Batch, PackedStream, pack_best_fit
from mamba_lab.batching._checks import as_int, shown
from mamba_lab.corpus import Corpus, CorpusStream, Document
from mamba_lab.log import log_once, logger
from mamba_lab.tokenizer import Tokenizer

from .documents import DataCounts, Sequences, prepare
from .kinds import require_config, require_documents
from .memory import require_batch_fits
from .planned import Rows, dealt
from .reading import read_corpus, read_tokenizer, stream_corpus
from .schemes import make_scheme
from .streamed import StreamedDocuments
from .weights import sequence_weights

if TYPE_CHECKING:
    from .config import TrainConfig

_KEYS = ("epoch", "place", "part", "batches", "settings")


class TrainingData:
    """The data of a run as one rank sees it.

        data = TrainingData(config)
        for micro_batches in data.steps(epoch, accumulation): ...      # one optimiser step each
        data.load_state_dict(micro_batches[-1].stream_state)           # goes on after that step

    The order depends on the documents, the settings, the seed and the epoch alone. Documents are tokenised once, when
    this is built, and stay in memory; with ``data.streaming`` they are read and tokenised again in each epoch. Targets
    and weights are made on whole sequences, before anything is cut into rows.

    Args:
        config: what to read, how to batch and how to weigh it.
        rank, world_size: this process and how many there are. All ranks have the same number of steps.
        documents: instead of ``config.data.corpus``.

    Attributes:
        tokenizer: of the run.

    Raises:
        ValueError: documents that cannot be read, nothing to train on, a document above the capacity under
            ``overflow = "error"``, settings that do not go together.
        OSError, ImportError: a file, the network or a library that is needed is not there.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        documents: Sequence[Document] | None = None,
    ) -> None:
        require_config(config)
        require_documents(documents)
        self.world_size = as_int(world_size, "world_size", minimum=1)
        self.rank = as_int(rank, "rank", minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {rank}, but world_size {world_size} has ranks 0 to {self.world_size - 1}.")
        self._config, packing = config, config.packing
        require_batch_fits(packing, weighted=config.loss.weighting == "sequence")
        self.tokenizer: Tokenizer = read_tokenizer(config.data)
        self._training: Sequences | StreamedDocuments
        self._validation: Sequences | StreamedDocuments
        self._counts: DataCounts | None = None
        self._streams: tuple[CorpusStream, ...] = ()
        self._settings: dict[str, Any] = {"scheme": packing.scheme}
        if config.data.streaming and documents is None:
            chosen = ("corpus", "max_documents", "validation_share", "min_seq_len", "max_seq_len", "add_end", "teach")
            self._settings |= {name: getattr(config.data, name) for name in chosen}
            # Two readers, since validation may read while the training documents are read ahead.
            self._streams = (stream_corpus(config.data), stream_corpus(config.data))
            self._training, self._validation = (
                StreamedDocuments(stream, self.tokenizer, config, held_out=held_out)
                for stream, held_out in zip(self._streams, (False, True), strict=True)
            )
        else:
            corpus = read_corpus(config.data) if documents is None else _as_corpus(documents)
            prepared = prepare(corpus, self.tokenizer, config)
            self._training, self._validation, self._counts = prepared.training, prepared.validation, prepared.counts
            self._settings |= {"documents": len(prepared.training), "crc32": prepared.training.crc32}
            if self.rank == 0:
                log_once(logging.INFO, f"data: {self.counts}.")
        self._options: dict[str, Any] = {
            "weighted": config.loss.weighting == "sequence",
            "pad_id": self.tokenizer.pad_id,
            "rank": self.rank,
            "world_size": self.world_size,
        }
        self._scheme = make_scheme(self._training, packing, seed=config.data_seed, **self._options)
        same = ("capacity", "overflow", "shuffle", "pad_to_multiple_of")
        self._settings |= {name: getattr(packing, name) for name in same} | self._scheme.settings
        self._settings |= {"seed": config.data_seed, "world_size": self.world_size}
        self._restored: Mapping[str, Any] | None = None

    @property
    def vocab_size(self) -> int:
        """V, the ids that the tokenizer has."""
        return self.tokenizer.vocab_size

    @property
    def n_documents(self) -> int | None:
        """Documents to train on; None where they are streamed."""
        return len(self._training) if isinstance(self._training, Sequences) else None

    @property
    def counts(self) -> DataCounts:
        """What became of the documents; ``str(counts)`` says it in a line. Of a stream: in this epoch so far."""
        if self._counts is not None:
            return self._counts
        assert isinstance(self._training, StreamedDocuments)
        assert isinstance(self._validation, StreamedDocuments)
        unread = self._streams[0].skipped.count
        return DataCounts.of(self._training.counts, self._validation.counts, unread=unread, beyond=None)

    def epoch(self, number: int) -> Generator[Batch, None, None]:
        """The micro-batches of an epoch, or what remains of it after ``load_state_dict``.

        Each has its ``stream_state``, the place after it, and ``weights`` where ``loss.weighting`` is "sequence".
        """
        with closing(self._groups(number)) as groups:
            for group in groups:
                yield from group

    def steps(self, number: int, accumulation: int) -> Generator[list[Batch], None, None]:
        """The epoch's micro-batches in lists, one for each optimiser step. The last one has what remains.

        Args:
            accumulation: micro-batches of a step. Under "one-at-a-time" the sequences of one pack count as one.
        """
        accumulation = as_int(accumulation, "accumulation", minimum=1)
        step: list[Batch] = []
        joined = 0
        with closing(self._groups(number)) as groups:
            for group in groups:
                step += group
                joined += 1
                if joined == accumulation:
                    yield step
                    step, joined = [], 0
        if step:
            yield step

    def micro_batches(self, epoch: int) -> int | None:
        """How many micro-batches an epoch has, as ``steps`` counts them. None where only reading it would tell."""
        return self._scheme.count(as_int(epoch, "epoch", minimum=0))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch whose ``stream_state`` this is: ``epoch`` and ``steps`` of its epoch begin there.

        Another epoch that is asked for first begins at its start, and the place is forgotten.

        Raises:
            ValueError: no such state, or one of other data or settings; the message names each that differs.
        """
        theirs = state.get("settings") if isinstance(state, Mapping) else None
        if not isinstance(theirs, Mapping) or any(key not in state for key in _KEYS):
            raise ValueError(f"state must be the stream_state of a batch from TrainingData, got {shown(state)}.")
        names = dict.fromkeys((*self._settings, *theirs))
        wrong = [
            f"{_NAMES.get(name, name)} is {theirs.get(name)!r} in the state and {self._settings.get(name)!r} here"
            for name in names
            if theirs.get(name, _MISSING) != self._settings.get(name, _MISSING)
        ]
        if wrong:
            raise ValueError(
                f"state belongs to another run: {'; '.join(wrong)}. Go on with the same documents, tokenizer and "
                f"data and packing settings, or start anew."
            )
        self._restored = dict(state)

    def validation(self) -> Generator[Batch, None, None]:
        """This rank's packs of the documents held out, in the same order each time: every target once, on one rank.

        A sequence that does not fit a pack is cut, never dropped. Without documents for validation there is no batch.
        """
        packing, held_out = self._config.packing, self._validation
        if isinstance(held_out, StreamedDocuments):
            if self._config.data.validation_share:
                yield from self._streamed_validation(held_out)
            return
        if not len(held_out):
            return
        lengths = held_out.lengths
        # No wider than all of them together, whatever padded batches are allowed.
        plan = pack_best_fit(lengths, min(packing.capacity, int(lengths.sum())), overflow="split")
        rows = Rows(
            held_out,
            plan,
            weighted=self._options["weighted"],
            pad_id=self._options["pad_id"],
            pad_to_multiple_of=packing.pad_to_multiple_of,
        )
        for chosen in dealt(np.arange(plan.n_bins), packing.rows, self.rank, self.world_size, plan.n_bins):
            yield _numbered(rows.batch(chosen, widest=False), held_out.numbers)

    def _streamed_validation(self, held_out: StreamedDocuments) -> Generator[Batch, None, None]:
        packing, weighted = self._config.packing, self._options["weighted"]
        stream = PackedStream(
            held_out,
            packing.capacity,
            tokenize=held_out.tokenize,
            weights=sequence_weights if weighted else None,
            rows=packing.rows,
            buffer_size=packing.buffer_size,
            shuffle=False,
            min_target_share=0,
            rank=self.rank,
            world_size=self.world_size,
            workers=packing.workers,
            pad_id=self._options["pad_id"],
            pad_to_multiple_of=packing.pad_to_multiple_of,
        )
        for batch in stream:
            yield _numbered(replace(batch, stream_state=None), held_out.numbers)

    def _groups(self, number: int) -> Generator[list[Batch], None, None]:
        number = as_int(number, "number", minimum=0)
        try:
            yield from self._groups_after(number)
        finally:
            if self._streams and self.rank == 0:  # of documents in memory it was said when they were read
                logger.info("data, read in epoch %d: %s.", number, self.counts)

    def _groups_after(self, number: int) -> Generator[list[Batch], None, None]:
        """The groups after the place restored, if it is one of this epoch."""
        restored = self._restored if self._restored is not None and self._restored["epoch"] == number else None
        self._restored = restored
        place, skip, batches = (restored[key] for key in ("place", "part", "batches")) if restored else (None, 0, 0)
        with closing(self._scheme.groups(number, place)) as groups:
            for group, after in groups:
                if self._restored is restored:  # kept until something came: a failed first step can be tried again
                    self._restored = None
                given = []
                for part, batch in enumerate(group[skip:], skip + 1):
                    batches += 1
                    whole = part == len(group)
                    state = {
                        "epoch": number,
                        "place": after if whole else place,
                        "part": 0 if whole else part,
                        "batches": batches,
                        "settings": dict(self._settings),
                    }
                    given.append(replace(_numbered(batch, self._training.numbers), stream_state=state))
                yield given
                place, skip = after, 0


_MISSING = object()
_NAMES = {"crc32": "the checksum of token ids and targets", "documents": "the number of training documents"}


def _as_corpus(documents: Sequence[Document]) -> Corpus:
    return documents if isinstance(documents, Corpus) else Corpus(documents, "documents")


def _numbered(batch: Batch, numbers: Sequence[int]) -> Batch:
    """The batch with the corpus's numbers of its sequences."""
    sequence = [number if number < 0 else numbers[number] for number in batch.sequence.tolist()]
    return replace(batch, sequence=torch.tensor(sequence, dtype=torch.int64))
