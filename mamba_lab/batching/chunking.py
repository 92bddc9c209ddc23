"""Fixed-length chunks: the simplest way to make rows of equal length."""

from __future__ import annotations

import numpy as np

from ._checks import INT32_MAX, IntsLike, as_int, as_lengths
from .plan import PackingPlan


def chunk_fixed(lengths: IntsLike, capacity: int, *, across: bool = False, drop_last: bool = False) -> PackingPlan:
    """Cut every document into chunks of ``capacity`` tokens, one chunk a row.

    Args:
        lengths: [N], the tokens of each document.
        capacity: the tokens of a row.
        across: False cuts each document by itself, so its last chunk may be shorter and is padded. True joins the
            documents to one stream and cuts that, so a row may hold pieces of several documents and only the last
            row is padded.
        drop_last: leave out chunks that are shorter than ``capacity``. ``plan.dropped`` counts their tokens.

    Returns:
        A plan whose pieces are in document order. An empty document leaves no piece.

    Raises:
        ValueError: a bad length, or a capacity below 1.
    """
    host = as_lengths(lengths, copy=False)
    capacity = as_int(capacity, "capacity", minimum=1)
    if capacity > INT32_MAX:
        raise ValueError(f"capacity is {capacity}, above the int32 limit {INT32_MAX} of token positions.")
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(host)))
    total = int(ends[-1])
    if across:
        row_starts = np.arange(0, total, capacity, dtype=np.int64)
        # A piece starts where a row or a document starts. The end of the stream starts nothing.
        starts = np.concatenate((row_starts, ends[ends < total]))
        starts.sort(kind="stable")
        starts = starts[np.diff(starts, prepend=-1) > 0]
        sequence = np.searchsorted(ends, starts, side="right") - 1
        offsets = np.append(np.searchsorted(starts, row_starts), len(starts))
        begin = starts - ends[sequence]
        stop = begin + np.diff(np.append(starts, total))
        if drop_last and total % capacity:
            offsets = offsets[:-1]
    else:
        per_document = host // capacity if drop_last else -(-host // capacity)
        sequence = np.repeat(np.arange(len(host)), per_document)
        first = np.cumsum(per_document) - per_document
        begin = (np.arange(len(sequence)) - first[sequence]) * capacity
        stop = np.minimum(begin + capacity, host[sequence])
        offsets = np.arange(len(sequence) + 1)
    kept = int(offsets[-1])
    begin, stop = begin[:kept].astype(np.int32), stop[:kept].astype(np.int32)
    dropped = total - int((stop - begin).sum(dtype=np.int64))
    return PackingPlan._trusted(
        capacity, offsets.astype(np.int64), sequence[:kept].astype(np.int64), begin, stop, dropped
    )
