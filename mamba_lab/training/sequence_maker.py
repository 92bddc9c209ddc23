"""From one document's tokens to the sequence that is trained on: its end token, its targets, and what is cut off."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mamba_lab.batching import make_targets
from mamba_lab.batching.batch import IGNORE
from mamba_lab.document import Document
from mamba_lab.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .config import TrainConfig

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


class SequenceMaker:
    """Makes sequences and counts what it leaves out. Several threads may call it.

    What ``max_seq_len`` or ``overflow = "truncate"`` cuts off is gone: the sequence ends there, and its last token has
    no target. What ``overflow = "split"`` cuts later goes on in another row, and loses none.

    Args:
        config: its sections ``data`` and ``packing`` say what is wanted.
        training: whether the sequences are trained on: ``overflow`` concerns these only.

    Attributes:
        counts: documents, tokens, targets; too_short, too_short_tokens; shortened, shortened_tokens (``max_seq_len``);
            truncated, truncated_tokens (``overflow``); silent (no target).
    """

    def __init__(self, tokenizer: Tokenizer, config: TrainConfig, *, training: bool) -> None:
        self._data, self._packing = config.data, config.packing
        self._overflow = config.packing.overflow if training else "split"
        self._end = np.array([tokenizer.end_id] if config.data.add_end else [], np.int32)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def long_enough(self, ids: Ints) -> bool:
        """Whether a document of these ids is no shorter than ``min_seq_len``, its end token counted."""
        return len(ids) + len(self._end) >= self._data.min_seq_len

    def __call__(self, number: int, document: Document, ids: Ints, said: Bools | None) -> tuple[Ints, Ints] | None:
        """Ids and targets, int32 [n] each; None for a document that is too short.

        Args:
            number: the document's index in the corpus, for messages.
            ids: of the whole document, without an end token.
            said: which of them the assistant says; None where ``teach`` is "whole".

        Raises:
            ValueError: the document is above the capacity under ``overflow = "error"``.
        """
        found: Counter[str] = Counter()
        made = None
        if self.long_enough(ids):
            length = self._kept(number, document, len(ids) + len(self._end), found)
            made = np.append(ids, self._end)[:length], self._targets(document, ids, said, length)
            taught = int(np.count_nonzero(made[1] != IGNORE))
            found.update(documents=1, tokens=length, targets=taught, silent=int(not taught))
        else:
            found.update(too_short=1, too_short_tokens=len(ids) + len(self._end))
        with self._lock:
            self.counts.update(found)
        return made

    def _kept(self, number: int, document: Document, length: int, found: Counter[str]) -> int:
        """How many of ``length`` tokens are kept."""
        most, capacity = self._data.max_seq_len, self._packing.capacity
        if most is not None and length > most:
            found.update(shortened=1, shortened_tokens=length - most)
            length = most
        if self._overflow == "split" or length <= capacity:
            return length
        if self._overflow == "error":
            raise ValueError(
                f"document {number} ({document.id}) has {length:,} tokens, above packing.capacity {capacity:,}. Raise "
                f'the capacity, or choose packing.overflow = "split" or "truncate" (counted).'
            )
        found.update(truncated=1, truncated_tokens=length - capacity)
        return capacity

    def _targets(self, document: Document, ids: Ints, said: Bools | None, length: int) -> Ints:
        """Of the first ``length`` tokens, of which the last one has no target."""
        kept = np.append(ids, self._end)[:length]
        if said is None:
            return make_targets(kept).astype(np.int32)
        # The end token ends the last turn, so it is that speaker's.
        ends = bool(document.turns) and document.turns[-1].role == "assistant"  # type: ignore[index]
        said = np.append(said, np.full(len(self._end), ends))
        if self._data.teach == "assistant":
            return make_targets(kept, "assistant", said=said[:length]).astype(np.int32)
        # The prompt ends with the role token of the assistant's first turn: the next token is the first one said.
        prompt = min(int(np.argmax(said)) if said.any() else length, length)
        return make_targets(kept, "prompt", prompt_length=prompt).astype(np.int32)
