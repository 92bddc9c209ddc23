"""Checks of host-side arguments, shared by the batching modules. Each error names argument, place, value and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch

INT32_MAX = 2**31 - 1

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.integer[Any]]]"
IntsLike: TypeAlias = "Sequence[int] | np.ndarray[Any, Any] | torch.Tensor"


def as_int(value: object, name: str, *, minimum: int) -> int:
    """``value`` as a Python int of at least ``minimum``; a bool or a float is refused."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}.")
    if int(value) < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {int(value)}.")
    return int(value)


def as_host_ints(values: IntsLike, name: str) -> IntArray:
    """``values`` as a one-dimensional integer array on the host. Never waits for a GPU: a GPU tensor is refused."""
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            raise ValueError(
                f"{name} must lie on the host, got a tensor on {values.device}. "
                f"Keep lengths as a list or array, or call .cpu() yourself (that waits for the GPU)."
            )
        array = values.detach().numpy()
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(array.shape)}.")
    if array.size == 0 and not isinstance(values, np.ndarray | torch.Tensor):
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got {array.dtype}{_first_bad(array, name)}.")
    return array


def as_lengths(lengths: IntsLike, name: str = "lengths") -> np.ndarray[Any, np.dtype[np.int64]]:
    """``lengths`` as int64 [n] on the host, none negative, none above the int32 limit of token positions."""
    array = as_host_ints(lengths, name)
    if array.size:
        place = int(array.argmin())
        if array[place] < 0:
            raise ValueError(f"{name}[{place}] is {array[place]}: a length cannot be negative.")
        place = int(array.argmax())
        if array[place] > INT32_MAX:
            raise ValueError(
                f"{name}[{place}] is {array[place]}: token positions are int32, at most {INT32_MAX}. "
                f"Cut the sequence first."
            )
    return array.astype(np.int64)


def _first_bad(array: np.ndarray[Any, Any], name: str) -> str:
    """Where the first value that is no whole number stands, as the tail of a message."""
    for place, value in enumerate(array.tolist()):
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value % 1:
            return f" ({name}[{place}] is {value!r})"
    return " (cast it to an integer type)"
