"""Packers: several whole sequences in each row, so that little of it is padding.

Picture a shelf of equal boxes. ``pack_sequential`` fills them as the sequences arrive. ``pack_greedy`` looks at a
buffer of sequences, places the longest first, and puts each where the least room is left. ``pack_best_fit`` does the
same with all of them at once.

All three promise one order: pieces in a bin stand in data order, and bins stand in the order of their earliest pieces.
A document then moves as little as the packing allows. The same lengths give the same plan on every machine.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from . import _pack
from ._checks import INT32_MAX, IntsLike, as_int, as_lengths, shown
from .plan import PackingPlan

Overflow: TypeAlias = Literal["error", "split", "truncate"]
OVERFLOWS = ("error", "split", "truncate")


def pack_sequential(lengths: IntsLike, capacity: int, *, overflow: Overflow = "error") -> PackingPlan:
    """Fill bins in data order (next fit): a sequence that does not fit closes the bin and starts the next.

    Args:
        lengths: [N], the tokens of each sequence, on the host. An empty sequence leaves no piece.
        capacity: the tokens of a bin, at most 2**31 - 1.
        overflow: what becomes of a sequence longer than ``capacity``. "error": a ValueError. "split": it is cut at
            multiples of ``capacity``, and each piece is packed like any other. "truncate": its first ``capacity``
            tokens are kept, and ``plan.dropped`` counts the others.

    Returns:
        A plan. Its pieces are all in data order, and no document moves. Without sequences it has no bins.

    Raises:
        ValueError: a sequence longer than ``capacity`` under "error", with its place; a bad argument; more than
            2**31 - 1 pieces.
    """
    host, capacity, dropped = _checked(lengths, capacity, overflow)
    return PackingPlan._trusted(capacity, *_pack.next_fit(host, capacity, overflow == "split"), dropped)


def pack_greedy(
    lengths: IntsLike, capacity: int, *, buffer_size: int = 1024, overflow: Overflow = "error"
) -> PackingPlan:
    """Pack ``buffer_size`` sequences at a time: longest first, each where the least room is left (best fit).

    All bins close at the end of a buffer. So a stream can be packed while it arrives, and no document moves further
    than its buffer. The plan is that of ``pack_best_fit`` on each buffer, one after another.

    Args:
        lengths, capacity, overflow: as for ``pack_sequential``.
        buffer_size: sequences in a buffer, empty ones included. A larger one leaves less padding.

    Returns:
        A plan. Pieces of a bin are in data order, bins in the order of their earliest pieces.

    Raises:
        ValueError: as for ``pack_sequential``; ``buffer_size`` below 1.
    """
    host, capacity, dropped = _checked(lengths, capacity, overflow)
    buffer_size = as_int(buffer_size, "buffer_size", minimum=1)
    found = _pack.best_fit(host, capacity, min(buffer_size, max(len(host), 1)), overflow == "split")
    return PackingPlan._trusted(capacity, *found, dropped)


def pack_best_fit(lengths: IntsLike, capacity: int, *, overflow: Overflow = "error") -> PackingPlan:
    """Pack the whole set at once: longest first, each where the least room is left (best fit decreasing).

    It never needs more than 11/9 of the fewest possible bins and 4 more (Johnson et al., SIAM J. Comput. 3, 1974).
    With a hundred thousand documents next to nothing is left empty. The price: a document may move anywhere in the
    data set.

    Args:
        lengths, capacity, overflow: as for ``pack_sequential``.

    Returns:
        A plan. Pieces of a bin are in data order, bins in the order of their earliest pieces.

    Raises:
        ValueError: as for ``pack_sequential``.
    """
    host, capacity, dropped = _checked(lengths, capacity, overflow)
    return PackingPlan._trusted(
        capacity, *_pack.best_fit(host, capacity, max(len(host), 1), overflow == "split"), dropped
    )


def _checked(
    lengths: IntsLike, capacity: int, overflow: object
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int, int]:
    """Lengths, capacity, and how many tokens truncation drops."""
    host = as_lengths(lengths, copy=False)
    capacity = as_int(capacity, "capacity", minimum=1)
    if capacity > INT32_MAX:
        raise ValueError(f"capacity is {capacity}, above the int32 limit {INT32_MAX} of token positions.")
    if not isinstance(overflow, str) or overflow not in OVERFLOWS:
        raise ValueError(f"overflow must be one of {', '.join(map(repr, OVERFLOWS))}, got {shown(overflow)}.")
    pieces, dropped = len(host), 0
    longer = host[host > capacity] if len(host) and host.max() > capacity else host[:0]
    if len(longer):
        if overflow == "error":
            place = int(np.argmax(host > capacity))
            others = f", and so are {len(longer) - 1:,} others" if len(longer) > 1 else ""
            raise ValueError(
                f"lengths[{place}] is {host[place]}, above the capacity {capacity}{others}. Raise the capacity, or "
                f"choose overflow='split' (cut at multiples of the capacity) or overflow='truncate' (keep the first "
                f"{capacity} tokens, count the rest as dropped)."
            )
        if overflow == "split":
            pieces += int((-(-longer // capacity)).sum()) - len(longer)
        else:
            dropped = int(longer.sum()) - capacity * len(longer)
    if pieces > INT32_MAX:
        raise ValueError(f"lengths make {pieces} pieces, more than {INT32_MAX} in a plan. Pack them in several parts.")
    return host, capacity, dropped
