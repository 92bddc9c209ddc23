"""Documents that are read one after another, for data larger than the memory: one part of them, again each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mamba_lab.corpus import CorpusStream, Document
from mamba_lab.document_tokens import mark_said, tokenize_documents
from mamba_lab.tokenizer import Tokenizer

from .documents import share_of
from .reading import settings_named
from .sequence_maker import SequenceMaker

if TYPE_CHECKING:
    from .config import TrainConfig


class StreamedDocuments:
    """The training or the validation documents of a stream, as ``PackedStream`` takes them.

    Which are held out is decided by seed and number alone, before a document is tokenised. One that is too short then
    has no tokens.

    Attributes:
        numbers: the indices, in the stream, of the documents read so far.
        counts: what was made of those of this pass.
    """

    def __init__(self, stream: CorpusStream, tokenizer: Tokenizer, config: TrainConfig, *, held_out: bool) -> None:
        self._stream, self._tokenizer, self._config, self._held_out = stream, tokenizer, config, held_out
        self._make = SequenceMaker(tokenizer, config, training=not held_out)
        self.counts = self._make.counts
        self.numbers: list[int] = []

    def __call__(self) -> Iterator[tuple[int, Document]]:
        """The documents from the first one on, with their indices in the stream."""
        data, seed = self._config.data, self._config.data_seed
        self.counts.clear()
        count = 0
        with settings_named():
            for number, document in enumerate(islice(self._stream, data.max_documents)):
                if (share_of(seed, number) < data.validation_share) is not self._held_out:
                    continue
                if count == len(self.numbers):
                    self.numbers.append(number)
                count += 1
                yield number, document

    def tokenize(self, numbered: tuple[int, Document]) -> tuple[Any, Any]:
        """The ids and targets of one document; empty where it is too short."""
        number, document = numbered
        (ids,), (starts,) = tokenize_documents([document], self._tokenizer)
        said = None
        if self._config.data.teach != "whole":
            with settings_named():
                said = mark_said(document, len(ids), starts, "assistant")
        empty = np.zeros(0, np.int32)
        return self._make(number, document, ids, said) or (empty, empty)
