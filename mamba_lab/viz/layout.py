"""Rows as pictures need them: the pieces of a plan or of a batch, their places, their padding and their leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from mamba_lab.batching import Batch, PackingPlan

Rows: TypeAlias = "PackingPlan | Batch | Sequence[PackingPlan | Batch]"


@dataclass(frozen=True)
class Piece:
    """Tokens ``start:stop`` of document ``document``, at ``column`` of a row; ``ids`` are its token ids where known."""

    document: int
    start: int
    stop: int
    column: int
    ids: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.column + self.stop - self.start


@dataclass(frozen=True)
class Row:
    """One row: its pieces in order and how many positions it has. What the pieces leave free is padding."""

    pieces: tuple[Piece, ...]
    length: int

    @property
    def n_tokens(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)

    def leaks(self) -> list[tuple[Piece, Piece]]:
        """Neighbours where a model without boundaries carries state from one document (or passage) into another."""
        pairs = pairwise(self.pieces)
        return [(a, b) for a, b in pairs if (b.document, b.start) != (a.document, a.stop)]


def rows_of(rows: Rows) -> list[list[Row]]:
    """Groups of rows:

    One group for a plan or a batch, several for a sequence of them (buckets have rows of several lengths).
    """
    if isinstance(rows, (list, tuple)):
        return [group for part in rows for group in rows_of(part)]
    if isinstance(rows, PackingPlan):
        return [_plan_rows(rows)]
    if isinstance(rows, Batch):
        return [_batch_rows(rows)]
    raise ValueError(f"rows is a {type(rows).__name__}: expected a PackingPlan, a Batch, or a list of them")


def valid_ratio(rows: Rows) -> float:
    """Valid tokens / all positions, over all rows; 1.0 for no position."""
    every = [row for group in rows_of(rows) for row in group]
    positions = sum(row.length for row in every)
    return sum(row.n_tokens for row in every) / positions if positions else 1.0


def _plan_rows(plan: PackingPlan) -> list[Row]:
    offsets, sequence, start, stop = (
        [int(v) for v in getattr(plan, k)] for k in ("offsets", "sequence", "start", "stop")
    )
    rows = []
    for first, last in pairwise(offsets):
        pieces, column = [], 0
        for i in range(first, last):
            pieces.append(Piece(sequence[i], start[i], stop[i], column))
            column += stop[i] - start[i]
        rows.append(Row(tuple(pieces), int(plan.capacity)))
    return rows


def _batch_rows(batch: Batch) -> list[Row]:
    """A batch doesn't say at which token a piece begins: pieces of one document are taken to follow one another."""
    n_rows, length = batch.input_ids.shape
    ids = batch.input_ids.reshape(-1).tolist()
    cuts = [int(v) for v in batch.boundaries.cu_seqlens]
    documents = [int(v) for v in batch.sequence]
    reached: dict[int, int] = {}
    pieces: list[list[Piece]] = [[] for _ in range(n_rows)]
    for document, first, last in zip(documents, cuts, cuts[1:], strict=False):
        if document < 0 or first == last:
            continue
        start = reached.get(document, 0)
        reached[document] = start + last - first
        row, column = divmod(first, length)
        pieces[row].append(Piece(document, start, start + last - first, column, tuple(ids[first:last])))
    return [Row(tuple(p), length) for p in pieces]


def known_lengths(groups: list[list[Row]], lengths: Sequence[int] | None) -> dict[int, int]:
    if lengths is not None:
        return {i: int(n) for i, n in enumerate(lengths)}
    ends: dict[int, int] = {}
    for group in groups:
        for row in group:
            for piece in row.pieces:
                ends[piece.document] = max(ends.get(piece.document, 0), piece.stop)
    return ends
