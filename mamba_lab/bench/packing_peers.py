"""Other packers, measured beside ours: TRL's, and first-fit decreasing in Numba as axolotl has it (written anew here).

Both are in the extra ``peers``. Each function returns the tokens of every bin, after checking that nothing was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Packer: TypeAlias = "Callable[[], Any]"


def trl_best_fit(lengths: Int64Array, capacity: int, window: int) -> tuple[Packer, Callable[[Any], Int64Array]]:
    """``trl.pack_dataset(strategy="bfd")``, ``window`` sequences at a time.

    The tokens are of Arrow's type null, which takes no memory: what is timed is the packing, not the copying.

    Returns:
        The call to time, and what makes checked bin sizes of its result.

    Raises:
        ModuleNotFoundError: trl is not installed.
    """
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    datasets.disable_progress_bars()
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    tokens = pa.LargeListArray.from_arrays(pa.array(ends), pa.nulls(int(ends[-1])))
    data = datasets.Dataset(pa.table({"input_ids": tokens}))

    def pack() -> Any:
        return pack_dataset(data, capacity, "bfd", map_kwargs={"batch_size": window, "keep_in_memory": True})

    def check(packed: Any) -> Int64Array:
        members = packed.with_format("numpy")["seq_lengths"][:]
        return checked_sizes(lengths, [np.asarray(of_bin, np.int64) for of_bin in members], capacity)

    return pack, check


def numba_first_fit(lengths: Int64Array, capacity: int, window: int) -> tuple[Packer, Callable[[Any], Int64Array]]:
    """First-fit decreasing over windows of the data, by scanning the window's bins, compiled by Numba.

    Returns and raises as ``trl_best_fit``.
    """
    kernel = _first_fit_kernel()

    def pack() -> Any:
        return kernel(lengths, capacity, window)

    def check(bin_of: Any) -> Int64Array:
        order = np.argsort(bin_of, kind="stable")
        ends = np.cumsum(np.bincount(bin_of))[:-1]
        return checked_sizes(lengths, np.split(lengths[order], ends), capacity)

    return pack, check


@lru_cache(maxsize=1)
def _first_fit_kernel() -> Callable[[Int64Array, int, int], Int64Array]:
    import numba

    @numba.njit  # type: ignore[untyped-decorator, unused-ignore]
    def first_fit(lengths: Any, capacity: int, window: int) -> Any:
        bin_of = np.empty(len(lengths), np.int64)
        rooms = np.empty(min(window, len(lengths)), np.int64)
        closed = 0
        for first in range(0, len(lengths), window):
            last = min(first + window, len(lengths))
            opened = 0
            for i in np.argsort(-lengths[first:last]):
                size = lengths[first + i]
                found = 0
                while found < opened and rooms[found] < size:
                    found += 1
                if found == opened:
                    rooms[opened] = capacity
                    opened += 1
                rooms[found] -= size
                bin_of[first + i] = closed + found
            closed += opened
        return bin_of

    return first_fit  # type: ignore[no-any-return, unused-ignore]


PEERS: dict[str, Callable[[Int64Array, int, int], tuple[Packer, Callable[[Any], Int64Array]]]] = {
    "trl": trl_best_fit,
    "numba": numba_first_fit,
}


def checked_sizes(lengths: Int64Array, bins: list[Int64Array], capacity: int) -> Int64Array:
    """The tokens of each bin, given the lengths in it.

    Raises:
        RuntimeError: a bin above capacity, or other lengths than were to be packed: then its time means nothing.
    """
    sizes = np.array([int(of_bin.sum()) for of_bin in bins], np.int64)
    if sizes.size and sizes.max() > capacity:
        raise RuntimeError(f"a peer made a bin of {sizes.max()} tokens at capacity {capacity}")
    packed = np.concatenate([*bins, np.zeros(0, np.int64)])
    if not np.array_equal(np.sort(packed), np.sort(lengths)):
        raise RuntimeError(f"a peer packed {len(packed)} sequences that are not the {len(lengths)} it was given")
    return sizes
