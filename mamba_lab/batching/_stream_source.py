"""Where a stream's documents come from: by number, one after another, or from a function that starts anew."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch

from mamba_lab.log import log_once

from ._checks import shown
from ._epoch import permutation
from ._stream_threads import Stop

AGAIN = "Give a function that returns a fresh iterator, such as lambda: read(path), or a list."


class Source:
    """Documents that can be read again, from any place.

    Attributes:
        size: how many there are where they can be read by number; None where they come one after another.

    Raises:
        ValueError: what can be read only once, has no order, or holds no documents.
    """

    def __init__(self, documents: Any) -> None:
        if isinstance(documents, Iterator):
            raise ValueError(
                f"documents is an iterator ({type(documents).__name__}), which can be read only once: no second epoch "
                f"and no resume. {AGAIN}"
            )
        if isinstance(documents, str | bytes | bytearray | Mapping | AbstractSet) or hasattr(documents, "columns"):
            raise ValueError(
                f"documents must be a list of documents, got {shown(documents)}. Put a single document in a list; of "
                f"a mapping, a set or a table pass a list of its values in a fixed order."
            )
        if hasattr(documents, "iloc"):  # A pandas Series is indexed by its labels.
            documents = list(documents)
        by_number = (
            hasattr(documents, "__len__")
            and hasattr(documents, "__getitem__")
            and not isinstance(documents, torch.utils.data.IterableDataset)
        )
        if not by_number and not isinstance(documents, Iterable) and not callable(documents):
            raise ValueError(
                f"documents must be a list, a data set or a function that returns an iterator, got {shown(documents)}."
            )
        self._documents = documents
        self._last: object = None
        self._most = 0  # documents that one pass has read, of those that come one after another
        self.size: int | None = len(documents) if by_number else None

    def read(self, start: int, shuffled: np.random.PCG64 | None, stop: Stop) -> Iterator[tuple[int, Any]]:
        """Documents with their numbers, from the one that is read as number ``start``.

        Args:
            start: how many to pass over. By number that costs nothing; otherwise they are read and thrown away.
            shuffled: where the order comes from; None for the order of the numbers. Used only where ``size`` is known.
            stop: checked before each document.

        Raises:
            ValueError: fewer than ``start`` documents, another number of documents than at first, none where there
                were some before, or the source raised a ValueError or a TypeError.
            RuntimeError: it raised anything else.
        """
        if self.size is None:
            yield from self._read_on(start, stop)
            return
        if (now := len(self._documents)) != self.size:
            raise ValueError(
                f"documents has {now:,} entries now and had {self.size:,} when the PackedStream was built, which would "
                f"read it short or too far. Build the PackedStream anew, or give a copy that does not change."
            )
        if start > self.size:
            raise _too_few(start, self.size)
        order: Any = range(self.size) if shuffled is None else permutation(shuffled, self.size)
        for place in range(start, self.size):
            stop.check()
            number = int(order[place])
            try:
                document = self._documents[number]
            except Exception as error:
                raise wrapped(f"document {number} cannot be read", error) from error
            yield number, document

    def _read_on(self, start: int, stop: Stop) -> Iterator[tuple[int, Any]]:
        number = 0
        iterator = self._begin()
        try:
            while True:
                stop.check()
                try:
                    document = next(iterator)
                except StopIteration:
                    break
                except Exception as error:
                    raise wrapped(f"document {number} cannot be read", error) from error
                if number >= start:
                    yield number, document
                number += 1
                self._most = max(self._most, number)
        finally:
            if callable(close := getattr(iterator, "close", None)):
                close()
        if not number and self._most:
            raise ValueError(
                f"documents gave {self._most:,} documents before and none now: something under it can be read only "
                f"once. {AGAIN}"
            )
        if number < start:
            raise _too_few(start, number)
        if number < self._most:
            log_once(
                logging.WARNING,
                f"PackedStream: documents gave {self._most:,} documents before and {number:,} now. {AGAIN}",
            )

    def _begin(self) -> Iterator[Any]:
        try:
            iterator = iter(self._documents if isinstance(self._documents, Iterable) else self._documents())
        except Exception as error:
            raise wrapped("documents cannot be read", error) from error
        if iterator is self._last:
            raise ValueError(
                f"documents() returned the same iterator ({type(iterator).__name__}) again, which was read before: a "
                f"second epoch would miss documents. {AGAIN}"
            )
        self._last = iterator
        return iterator

    def __getstate__(self) -> dict[str, Any]:
        # Iterators are seldom picklable, and another process has read none.
        return self.__dict__ | {"_last": None}


def wrapped(what: str, error: Exception) -> ValueError | RuntimeError:
    """An error that says which document, and what the cause said."""
    kind = ValueError if isinstance(error, ValueError | TypeError) else RuntimeError
    return kind(f"{what}: {type(error).__name__}: {error}")


def _too_few(start: int, size: int) -> ValueError:
    return ValueError(
        f"the state was taken after {start} documents, but there are only {size}: documents is not what it was. "
        f"Resume with the same documents, or start the epoch anew."
    )
