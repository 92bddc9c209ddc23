"""Cutting a stream of samples into batches: a loop over samples, in C++ and in Python, with equal results."""

from __future__ import annotations

import numpy as np
import torch

from ._checks import INT64_MAX
from ._native import Int64Array, lengths_as_tensor, library_available

# How many samples may wait at once. A full waiting room closes the batch, which keeps the loop linear.
WAITING_ROOM = 1024
# Below this, in one stream (a bucket, or a sorted epoch), the Python loop takes about ten milliseconds, less than
# looking for the library.
NATIVE_FROM = 20_000


def cut_batches(lengths: Int64Array, max_tokens: int, max_padding: float) -> tuple[Int64Array, Int64Array]:
    """Fill batches one after another from a stream of samples.

    A batch is full when one more sample would make its padded size, samples times longest, exceed ``max_tokens``. A
    sample that would make its padding rate exceed ``max_padding`` waits; those who wait longest are asked first when
    the next batch opens, and the first of them always gets in.

    Args:
        lengths: int64 [n], the samples in the order of the stream, none above ``max_tokens``.
        max_tokens: the budget of a batch.
        max_padding: the padding rate that no batch exceeds.

    Returns:
        Places in the stream, batch after batch, int64 [n]; and where each batch starts in them, int64 [batches + 1].
    """
    if len(lengths) >= NATIVE_FROM and native_available():
        return cut_in_cpp(lengths, max_tokens, max_padding, WAITING_ROOM)
    return cut_in_python(lengths, max_tokens, max_padding, WAITING_ROOM)


def cut_in_cpp(lengths: Int64Array, max_tokens: int, max_padding: float, room: int) -> tuple[Int64Array, Int64Array]:
    """``csrc/cpu/token_budget.cpp``. ``native_available`` must have returned True.

    Raises:
        ValueError: ``lengths`` is no contiguous int64 array of one dimension.
    """
    order, offsets = torch.ops.mamba_lab.cut_token_budget(
        lengths_as_tensor(lengths), min(max_tokens, INT64_MAX), max_padding, room
    )
    return order.numpy(), offsets.numpy()


def native_available() -> bool:
    """Whether the C++ loop can be used here; says once which loop is used and why."""
    return library_available("token_budget", "Batches are cut", "many")


def cut_in_python(lengths: Int64Array, max_tokens: int, max_padding: float, room: int) -> tuple[Int64Array, Int64Array]:
    """The Python twin of ``csrc/cpu/token_budget.cpp``."""
    length = lengths.tolist()
    n = len(length)
    order: list[int] = []
    ends = [0]
    waiting: list[int] = []
    following = 0
    while following < n or waiting:
        longest = tokens = count = 0
        still_waiting: list[int] = []
        asked = 0
        closed = False
        # Those who waited come first, in the order they came; then the stream.
        while not closed and (asked < len(waiting) or following < n):
            from_room = asked < len(waiting)
            sample = waiting[asked] if from_room else following
            new_longest = max(longest, length[sample])
            padded = (count + 1) * new_longest
            if count and padded > max_tokens:
                break
            if from_room:
                asked += 1
            else:
                following += 1
            padding = padded - tokens - length[sample]
            if count and padding > max_padding * padded:
                still_waiting.append(sample)
                closed = not from_room and len(still_waiting) >= room
                continue
            order.append(sample)
            longest = new_longest
            tokens += length[sample]
            count += 1
        waiting = still_waiting + waiting[asked:]
        ends.append(len(order))
    return np.array(order, np.int64), np.array(ends, np.int64)
