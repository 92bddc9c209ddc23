"""A stream's buffer: so many documents, tokenised and packed together."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ._checks import INT32_MAX, as_host_ints, as_weights, shown
from ._epoch import permutation
from ._stream_source import wrapped
from ._stream_threads import Stop, Workers
from .batch import IGNORE
from .packing import pack_best_fit, pack_greedy, pack_sequential
from .plan import PackingPlan

Packer: TypeAlias = Literal["greedy", "sequential", "best_fit"]
Tokenize: TypeAlias = Callable[[Any], Any]
MakeTargets: TypeAlias = Callable[[Any, Any], Any]
MakeWeights: TypeAlias = Callable[[Any], Any]

PACKERS = {"greedy": pack_greedy, "sequential": pack_sequential, "best_fit": pack_best_fit}

# Documents that a tokenizer thread takes at once: enough that handing them over costs nothing beside tokenising them.
CHUNK = 16


@dataclass(frozen=True, eq=False)
class Tokens:
    """One document's token ids; its targets where they are not the next token; its weights where they differ."""

    number: int
    ids: np.ndarray[Any, Any]
    targets: np.ndarray[Any, Any] | None
    weights: np.ndarray[Any, np.dtype[np.float32]] | None = None

    def all_targets(self) -> np.ndarray[Any, Any]:
        """The targets, the next token where the document brought none."""
        return np.append(self.ids[1:], IGNORE)[: len(self.ids)] if self.targets is None else self.targets

    def all_weights(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The weights, 1 each where the stream makes none."""
        return np.ones(len(self.ids), np.float32) if self.weights is None else self.weights


Piece: TypeAlias = tuple[Tokens, int, int]


@dataclass(frozen=True, eq=False)
class Bin:
    """A future row: pieces (document, start, stop), and the tokens in them."""

    pieces: list[Piece]
    size: int


@dataclass(eq=False)
class Buffer:
    """The bins of ``documents`` documents, from the one read as number ``start``.

    Attributes:
        empty: documents without tokens, of which no bin knows.
        dropped: tokens cut off by ``overflow="truncate"``.
        crc32: of all lengths, token ids and targets: whether a resume finds the same documents.
        taken: bins handed out already.
    """

    start: int
    documents: int
    empty: int
    dropped: int
    crc32: int
    bins: list[Bin]
    taken: int = 0


@dataclass(frozen=True)
class BufferSettings:
    """How buffers are made."""

    capacity: int
    packer: Packer
    buffer_size: int
    overflow: Literal["error", "split", "truncate"]
    workers: int
    tokenize: Tokenize | None = field(repr=False)
    targets: MakeTargets | None = field(repr=False)
    weights: MakeWeights | None = field(default=None, repr=False)


def make_buffers(
    documents: Iterator[tuple[int, Any]],
    start: int,
    settings: BufferSettings,
    shuffled: Callable[[int], np.random.PCG64] | None,
    stop: Stop,
) -> Generator[Buffer, None, None]:
    """Buffers of the documents, one after another.

    Args:
        documents: with their numbers, from the one that is read as number ``start``.
        shuffled: from a buffer's number to the source of the order of its bins; None keeps the packer's order.
    """
    workers: Workers[tuple[int, Any], Tokens] = Workers(lambda pair: as_tokens(*pair, settings), settings.workers, stop)
    try:
        while True:
            begun: list[Callable[[], list[Tokens]]] = []
            read, chunk = 0, []
            for pair in documents:
                chunk.append(pair)
                read += 1
                if len(chunk) == CHUNK or read == settings.buffer_size:
                    begun.append(workers.start(chunk))
                    chunk = []
                if read == settings.buffer_size:
                    break
            if chunk:
                begun.append(workers.start(chunk))
            if not read:
                return
            tokens = [one for result in begun for one in result()]
            del begun, chunk
            order = None if shuffled is None else shuffled(start // settings.buffer_size)
            yield _packed(tokens, start, settings, order)
            start += read
    finally:
        workers.close()


def count_bins(lengths: np.ndarray[Any, np.dtype[np.int64]], settings: BufferSettings) -> int:
    """The bins of all buffers of documents of these lengths, in the order in which they are read."""
    size = settings.buffer_size
    return sum(_plan(lengths[at : at + size], settings).n_bins for at in range(0, len(lengths), size))


def _plan(lengths: np.ndarray[Any, np.dtype[np.int64]], settings: BufferSettings) -> PackingPlan:
    """Of one buffer's documents; empty ones leave no piece."""
    more = {"buffer_size": max(len(lengths), 1)} if settings.packer == "greedy" else {}
    return PACKERS[settings.packer](lengths, settings.capacity, overflow=settings.overflow, **more)


def _packed(tokens: list[Tokens], start: int, settings: BufferSettings, shuffled: np.random.PCG64 | None) -> Buffer:
    full = [one for one in tokens if len(one.ids)]
    lengths = np.array([len(one.ids) for one in full], np.int64)
    crc = 0
    for one in tokens:
        crc = zlib.crc32(len(one.ids).to_bytes(8, "little"), crc)
        for values in (one.ids, one.all_targets()):
            crc = zlib.crc32(values.astype("<i8").tobytes(), crc)
    plan = _plan(lengths, settings)
    bins = [
        Bin([(full[i], first, last) for i, first, last in pieces], sum(last - first for _, first, last in pieces))
        for pieces in plan.bins()
    ]
    if shuffled is not None:
        bins = [bins[i] for i in permutation(shuffled, len(bins)).tolist()]
    return Buffer(start, len(tokens), len(tokens) - len(full), plan.dropped, crc, bins)


def as_tokens(number: int, document: Any, settings: BufferSettings) -> Tokens:
    """A document's ids and targets, checked, in arrays of their own.

    Raises:
        ValueError: ids, targets or weights that are none; a document above the capacity under ``overflow="error"``; a
            ValueError or TypeError in ``tokenize``, ``targets`` or ``weights``. It names the document.
        RuntimeError: one of these functions raised anything else.
    """
    ids, targets = document, None
    if settings.tokenize is not None:
        try:
            ids = settings.tokenize(document)
        except Exception as error:
            raise wrapped(f"document {number}: tokenize failed", error) from error
    elif isinstance(document, str | bytes) or hasattr(document, "text"):
        example = "load_tokenizer().encode for texts"
        if hasattr(document, "text"):
            example = "tokenize_document from mamba_lab.document_tokens for a corpus's documents"
        raise ValueError(
            f"document {number} is a {type(document).__name__}, not token ids. Give tokenize, a function from a "
            f"document to its ids, such as {example}."
        )
    # A pair of ids and targets; a tuple of two ids is a sequence of two tokens.
    if isinstance(ids, tuple) and len(ids) == 2 and all(np.ndim(part) > 0 for part in ids):
        ids, targets = ids
    array = as_host_ints(ids, f"document {number}, token ids")
    if (bad := np.flatnonzero(array < 0)).size:
        raise ValueError(f"document {number}, token ids[{bad[0]}] is {array[bad[0]]}: token ids are never negative.")
    if len(array) > INT32_MAX:
        raise ValueError(f"document {number} has {len(array)} tokens, above the int32 limit {INT32_MAX}. Cut it first.")
    if settings.overflow == "error" and len(array) > settings.capacity:
        raise ValueError(
            f"document {number} has {len(array)} tokens, above the capacity {settings.capacity}. Raise the capacity, "
            f"or choose overflow='split' or overflow='truncate' (what is cut off is counted in counts.dropped)."
        )
    if settings.targets is not None:
        if targets is not None:
            raise ValueError(
                f"document {number} comes with targets, and the argument targets would make others. Leave one out."
            )
        try:
            targets = settings.targets(document, array)
        except Exception as error:
            raise wrapped(f"document {number}: targets failed", error) from error
        if targets is None:
            raise ValueError(f"document {number}: targets returned None, expected [{len(array)}] integers.")
    own = None if targets is None else _own(_checked_targets(targets, number, len(array)))
    tokens = Tokens(number, _own(array), own)
    return tokens if settings.weights is None else replace(tokens, weights=_made_weights(tokens, settings.weights))


def _made_weights(tokens: Tokens, weights: MakeWeights) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        made = weights(tokens.all_targets().astype(np.int64))
    except Exception as error:
        raise wrapped(f"document {tokens.number}: weights failed", error) from error
    return as_weights(made, f"document {tokens.number}, weights", len(tokens.ids))


def _checked_targets(targets: Any, number: int, n: int) -> np.ndarray[Any, Any]:
    array = as_host_ints(targets, f"document {number}, targets")
    if len(array) != n:
        raise ValueError(f"document {number} has {n} tokens, but {len(array)} targets: one for each token is needed.")
    if (bad := np.flatnonzero((array < 0) & (array != IGNORE))).size:
        raise ValueError(
            f"document {number}, targets[{bad[0]}] is {shown(int(array[bad[0]]))}: token ids are never negative, and "
            f"{IGNORE} alone marks a position without target."
        )
    return array


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy, since tokenisers may use their arrays again; four bytes an entry where that is enough."""
    small = not len(array) or int(array.max()) <= INT32_MAX
    return array.astype(np.int32 if small else np.int64)
