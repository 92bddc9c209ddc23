"""From a plan or a list of sequences to a batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from mamba_lab.log import log_once

from ._checks import INT32_MAX, FloatsLike, IntsLike, as_host_ints, as_int, as_token_id, as_weights, shown
from .batch import IGNORE, Batch
from .boundaries import Boundaries
from .plan import PackingPlan

V = TypeVar("V")


def pack_collate(
    plan: PackingPlan,
    sequences: Sequence[IntsLike],
    *,
    rows: IntsLike | None = None,
    isolate: bool = True,
    pad_id: int,
    targets: Sequence[IntsLike] | None = None,
    weights: Sequence[FloatsLike] | None = None,
    pad_to_multiple_of: int | None = None,
) -> Batch:
    """Fill the rows that a plan describes.

    Targets are made on whole sequences, before anything is cut: the last token of a piece that was cut off keeps the
    next token of its sequence as target; the last token of a sequence has none.

    Args:
        plan: where each piece goes; its sequence numbers index ``sequences``. A plan of shorter sequences leaves the
            ends of these out without a word: ``plan.check_conserved(lengths)`` tells, once for all its batches.
        sequences: the data set: token ids, one-dimensional integer arrays, tensors or lists.
        rows: which bins of the plan become rows, in this order; all by default.
        isolate: True makes every piece a sequence of its own. False makes each row *one* sequence, so that the state
            leaks from a piece into the next: the wrong ``concat`` scheme, kept for comparison. Targets stay the same;
            ``batch.sequence`` then has the index of the row's first piece.
        pad_id: the token id that fills the rest of a row. It marks nothing: padding is known from lengths.
        targets: the target of every token of every sequence, -100 where none counts; the next token by default.
        weights: how much the target of every token of every sequence counts in the loss, 0 or more, where it stands
            for the whole sequence; no ``batch.weights`` by default, and every target counts the same.
        pad_to_multiple_of: make the row length, otherwise ``plan.capacity``, a multiple of this.

    Returns:
        A batch of B = number of rows, L = ``plan.capacity`` rounded up.

    Raises:
        ValueError: a row or a sequence outside the plan or data set, a piece outside its sequence, ids that are no
            integers or negative, targets or weights of another length, a weight that is negative or not finite.
    """
    if not isinstance(plan, PackingPlan):
        raise ValueError(f"plan must be a PackingPlan, got {shown(plan)}. Make one with chunk_fixed or from_bins.")
    sequences = _as_sequences(sequences, "sequences")
    chosen = np.arange(plan.n_bins) if rows is None else as_host_ints(rows, "rows").astype(np.int64)
    if (bad := np.flatnonzero((chosen < 0) | (chosen >= plan.n_bins))).size:
        raise ValueError(f"rows[{bad[0]}] is {chosen[bad[0]]}, but the plan has bins 0 to {plan.n_bins - 1}.")
    counts = np.diff(plan.offsets)[chosen]
    row_of = np.repeat(np.arange(len(chosen)), counts)
    within = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    piece = np.repeat(plan.offsets[:-1][chosen], counts) + within
    if not isolate:
        log_once(
            logging.WARNING,
            "pack_collate(isolate=False): each row is one sequence, so state leaks from one document into the next. "
            "This is for comparison only; train with isolate=True.",
        )
    return _fill(
        sequences,
        targets,
        weights,
        plan.sequence[piece],
        plan.start[piece].astype(np.int64),
        plan.stop[piece].astype(np.int64),
        row_of,
        len(chosen),
        _round_up(plan.capacity, pad_to_multiple_of),
        pad_id,
        isolate,
    )


def pad_collate(
    sequences: Sequence[IntsLike],
    *,
    pad_id: int,
    indices: IntsLike | None = None,
    targets: Sequence[IntsLike] | None = None,
    weights: Sequence[FloatsLike] | None = None,
    pad_to_multiple_of: int | None = None,
) -> Batch:
    """One sequence a row, each padded to the longest.

    Args:
        sequences: token ids, one-dimensional integer arrays, tensors or lists. Empty ones are legal.
        pad_id: the token id that fills the rest of a row. It marks nothing: padding is known from lengths.
        indices: which of ``sequences`` become rows, in this order, for example one batch of a sampler; all by default.
            ``batch.sequence`` holds these numbers.
        targets: the target of every token of every sequence, -100 where none counts; the next token by default.
        weights: how much the target of every token of every sequence counts in the loss, 0 or more, where it stands
            for the whole sequence; no ``batch.weights`` by default, and every target counts the same.
        pad_to_multiple_of: make the row length a multiple of this.

    Returns:
        A batch of B = number of rows, L = the longest of them, rounded up.

    Raises:
        ValueError: an index outside ``sequences``, ids that are no integers or negative, targets or weights of another
            length, a weight that is negative or not finite.
    """
    sequences = _as_sequences(sequences, "sequences")
    chosen = np.arange(len(sequences)) if indices is None else as_host_ints(indices, "indices").astype(np.int64)
    if (bad := np.flatnonzero((chosen < 0) | (chosen >= len(sequences)))).size:
        raise ValueError(f"indices[{bad[0]}] is {chosen[bad[0]]}, but there are {len(sequences)} sequences.")
    lengths = np.array([_length(sequences[i], f"sequences[{i}]") for i in chosen.tolist()], np.int64)
    return _fill(
        sequences,
        targets,
        weights,
        chosen,
        np.zeros_like(lengths),
        lengths,
        np.arange(len(chosen)),
        len(chosen),
        _round_up(int(lengths.max(initial=0)), pad_to_multiple_of),
        pad_id,
        isolate=True,
    )


def _fill(
    sequences: Sequence[IntsLike],
    targets: Sequence[IntsLike] | None,
    weights: Sequence[FloatsLike] | None,
    sequence: np.ndarray[Any, Any],
    start: np.ndarray[Any, Any],
    stop: np.ndarray[Any, Any],
    row_of: np.ndarray[Any, Any],
    n_rows: int,
    width: int,
    pad_id: int,
    isolate: bool,
) -> Batch:
    """Lay pieces, given in row order, side by side and pad each row's end."""
    pad_id = as_token_id(pad_id, "pad_id")
    if n_rows * width > INT32_MAX:
        raise ValueError(f"{n_rows} rows of {width} positions exceed the int32 limit {INT32_MAX}. Use fewer rows.")
    targets = None if targets is None else _as_sequences(targets, "targets")
    weights = None if weights is None else _as_sequences(weights, "weights")
    for name, given in (("targets", targets), ("weights", weights)):
        if given is not None and len(given) != len(sequences):
            raise ValueError(f"{name} has {len(given)} entries and sequences {len(sequences)}: one for each is needed.")
    length = stop - start
    used = np.bincount(row_of, length, n_rows).astype(np.int64)
    before = np.cumsum(length) - length
    # Where each piece lies: its row, and what the row held before it.
    position = row_of * width + before - (np.cumsum(used) - used)[row_of]

    ids = np.full(n_rows * width, pad_id, np.int64)
    labels = np.full(n_rows * width, IGNORE, np.int64)
    shares = None if weights is None else np.zeros(n_rows * width, np.float32)
    for index, first, last, at in zip(sequence.tolist(), start.tolist(), stop.tolist(), position.tolist(), strict=True):
        if index >= len(sequences):
            raise ValueError(f"the plan names sequence {index}, but there are {len(sequences)} sequences.")
        tokens = as_host_ints(sequences[index], f"sequences[{index}]")
        if last > len(tokens):
            raise ValueError(
                f"the plan takes tokens {first}:{last} of sequence {index}, which has only {len(tokens)}. "
                f"Make the plan from these sequences' lengths."
            )
        ids[at : at + last - first] = tokens[first:last]
        if targets is None:
            after = tokens[first + 1 : last + 1]
        else:
            after = as_host_ints(targets[index], f"targets[{index}]")
            if len(after) != len(tokens):
                raise ValueError(f"targets[{index}] has {len(after)} entries, its sequence {len(tokens)} tokens.")
            after = after[first:last]
        labels[at : at + len(after)] = after
        if weights is not None and shares is not None:
            shares[at : at + last - first] = as_weights(weights[index], f"weights[{index}]", len(tokens))[first:last]

    _check_values(ids, labels, sequence, position, length)
    row_sequence, row_length = (sequence, length) if isolate else _whole_rows(sequence, row_of, used)
    row_number = row_of if isolate else np.flatnonzero(np.bincount(row_of, minlength=n_rows))
    rest = width - used
    padded = np.flatnonzero(rest)
    # A row's padding comes after its pieces: sort by row, stably, pieces first.
    order = np.argsort(np.concatenate((row_number, padded)), kind="stable")
    all_sequence = np.concatenate((row_sequence, np.full(len(padded), -1, np.int64)))[order]
    boundaries = Boundaries.from_lengths(np.concatenate((row_length, rest[padded]))[order], padding=all_sequence < 0)
    return Batch(
        input_ids=torch.from_numpy(ids).view(n_rows, width),
        targets=torch.from_numpy(labels).view(n_rows, width),
        boundaries=boundaries,
        sequence=torch.from_numpy(all_sequence),
        n_tokens=int(length.sum()),
        n_target_tokens=int(np.count_nonzero(labels != IGNORE)),
        max_seqlen=int(row_length.max(initial=0)),
        weights=None if shares is None else torch.from_numpy(shares).view(n_rows, width),
    )


def _as_sequences(values: Sequence[V], name: str) -> Sequence[V]:
    """``values`` where it is indexed by place and knows its size. A data set stays where it is."""
    if hasattr(values, "iloc"):  # A pandas Series is indexed by its labels.
        return list(values)
    usable = hasattr(values, "__getitem__") and hasattr(values, "__len__")
    if not usable or isinstance(values, str | bytes | Mapping) or getattr(values, "ndim", 1) == 0:
        raise ValueError(
            f"{name} must be a list of token sequences, each a list, array or tensor of integers, got {shown(values)}. "
            f"Make a list of an iterator; put a single sequence in a list."
        )
    return values


def _length(values: IntsLike, name: str) -> int:
    try:
        return len(values)
    except TypeError:
        raise ValueError(
            f"{name} must be a list, array or tensor of token ids, got {shown(values)}. "
            f"Put a single sequence in a list: [sequence]."
        ) from None


def _whole_rows(
    sequence: np.ndarray[Any, Any], row_of: np.ndarray[Any, Any], used: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Each row that holds a piece as one sequence, under the index of its first piece."""
    present, first = np.unique(row_of, return_index=True)
    return sequence[first], used[present]


def _check_values(
    ids: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    sequence: np.ndarray[Any, Any],
    position: np.ndarray[Any, Any],
    length: np.ndarray[Any, Any],
) -> None:
    for name, values, wrong in (("sequences", ids, ids < 0), ("targets", labels, (labels < 0) & (labels != IGNORE))):
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            piece = int(np.flatnonzero((position <= place) & (place < position + length))[0])
            raise ValueError(
                f"{name}[{sequence[piece]}] holds {values[place]}: token ids are never negative"
                f"{', and -100 alone marks a position without target' if name == 'targets' else ''}."
            )


def _round_up(width: int, multiple: int | None) -> int:
    if multiple is None:
        return width
    multiple = as_int(multiple, "pad_to_multiple_of", minimum=1)
    return -(-width // multiple) * multiple
