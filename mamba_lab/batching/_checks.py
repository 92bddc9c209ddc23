"""Checks of host-side arguments, shared by the batching modules. Each error names argument, place, value and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import torch

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.integer[Any]]]"
IntsLike: TypeAlias = "Sequence[int] | np.ndarray[Any, Any] | torch.Tensor"
FloatsLike: TypeAlias = "Sequence[float] | np.ndarray[Any, Any] | torch.Tensor"


def as_int(value: object, name: str, *, minimum: int) -> int:
    """``value`` as a Python int of at least ``minimum``; a bool or a float is refused."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {shown(value)}.")
    if int(value) < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {int(value)}.")
    return int(value)


def as_token_id(value: object, name: str) -> int:
    """``value`` as a token id: an integer that is not negative and fits int64."""
    token = as_int(value, name, minimum=0)
    if token > INT64_MAX:
        raise ValueError(f"{name} is {token}, above the int64 limit {INT64_MAX} of token ids.")
    return token


def as_share(value: object, name: str, hint: str = "") -> float:
    """``value`` as a float between 0 and 1; a bool, a string or NaN is refused."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool | np.bool_) else -1.0
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must lie between 0 and 1{hint}, got {shown(value)}.")
    return number


def as_host_ints(values: IntsLike, name: str, *, rows: bool = False) -> IntArray:
    """``values`` as an integer array on the host. Never waits for a GPU: a GPU tensor is refused.

    One dimension, or with ``rows`` one or two. Every value fits int64.
    """
    array = tensor_on_host(values, name) if isinstance(values, torch.Tensor) else _array_on_host(values, name)
    if array.ndim != 1 and not (rows and array.ndim == 2):
        wanted = "be [T] or [B, L]" if rows else "have one dimension"
        raise ValueError(f"{name} must {wanted}, got shape {tuple(array.shape)}.")
    if array.size == 0 and not isinstance(values, np.ndarray | torch.Tensor):
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        dtype = values.dtype if isinstance(values, torch.Tensor) else array.dtype
        raise ValueError(f"{name} must hold integers, got {dtype}{_first_bad(array, values, name)}.")
    if array.dtype == np.uint64 and array.size and array.max() > INT64_MAX:
        place = int(array.argmax())
        raise ValueError(
            f"{name}{_index(place, array)} is {array.flat[place]}, above the int64 limit {INT64_MAX}. "
            f"Was a negative number stored as unsigned?"
        )
    return array


def as_lengths(lengths: IntsLike, name: str = "lengths", *, copy: bool = True) -> np.ndarray[Any, np.dtype[np.int64]]:
    """``lengths`` as int64 [n] on the host, none negative, none above the int32 limit of token positions.

    ``copy=False`` is for those who neither write to it nor keep it: what is int64 and contiguous is then used as it is.
    """
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
    return array.astype(np.int64) if copy else np.ascontiguousarray(array, np.int64)


def as_weights(weights: FloatsLike, name: str, n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """``weights`` as float32 [n] on the host, each finite and not negative."""
    array: np.ndarray[Any, Any]
    if isinstance(weights, torch.Tensor):
        array = tensor_on_host(weights, name)
    else:
        refuse_masked(weights, name)
        try:
            array = np.asarray(weights)
        except ValueError:  # rows of different lengths
            array = np.zeros(0, object)
    if array.shape != (n,) or (n and array.dtype.kind not in "fiu"):
        got = f"{array.dtype} {list(array.shape)}" if array.ndim else shown(weights)
        raise ValueError(f"{name} must hold {n} numbers, one for each token of its sequence, got {got}.")
    with np.errstate(over="ignore"):  # what is too large for float32 is refused below
        array = array.astype(np.float32)
    if (bad := np.flatnonzero(~np.isfinite(array) | (array < 0))).size:
        raise ValueError(f"{name}[{bad[0]}] is {array[bad[0]]}: a weight is a finite number, 0 or more.")
    return array


def shown(value: object) -> str:
    """``value`` in a message: what it is, cut short."""
    text = " ".join(repr(value).split())
    return f"{text[:57]}..." if len(text) > 60 else text


def refuse_masked(values: object, name: str) -> None:
    """Refuse NumPy's masked arrays, of which ``np.asarray`` forgets the mask."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"{name} must be a plain array, got a masked array, whose masked entries would count as values. "
            f"Use .compressed() or .filled(value)."
        )


def tensor_on_host(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    """A plain tensor's values; what lies elsewhere or is stored otherwise is refused."""
    if tensor.device.type == "meta":
        raise ValueError(f"{name} must lie on the host, got a tensor on meta, which has no values. Give a real tensor.")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"{name} must lie on the host, got a tensor on {tensor.device}. "
            f"Keep it as a list or array, or call .cpu() yourself (that waits for the GPU)."
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"{name} must be a plain dense tensor, got {tensor.dtype} of layout {tensor.layout}.")
    # NumPy has no bfloat16 and no float8. The dtype is refused later; the value is wanted for the message.
    return (tensor.detach().double() if tensor.is_floating_point() else tensor.detach()).numpy()


def _array_on_host(values: Any, name: str) -> np.ndarray[Any, Any]:
    refuse_masked(values, name)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be a list, array or tensor of integers, with rows of equal length if it has rows. NumPy "
            f"makes no array of it: {error}"
        ) from error
    if array.ndim == 0:
        raise ValueError(
            f"{name} must be a list, array or tensor of integers, got {shown(values)}. "
            f"Put a single number in a list; make a list of an iterator."
        )
    if isinstance(values, list | tuple):
        _refuse_bools(values, name)
    return array


def _refuse_bools(values: Sequence[Any], name: str) -> None:
    """NumPy makes [True, 3] to [1, 3] without a word."""
    if set(map(type, values)) <= {int}:
        return
    for place, value in enumerate(values):
        if isinstance(value, list | tuple):
            _refuse_bools(value, f"{name}[{place}]")
        elif isinstance(value, bool) or (str(getattr(value, "dtype", "")) in ("bool", "torch.bool")):
            raise ValueError(f"{name} must hold integers, got a bool ({name}[{place}] is {value!r}).")


def _first_bad(array: np.ndarray[Any, Any], values: object, name: str) -> str:
    """Where the first value that is no whole number stands, as the tail of a message."""
    # A list's own values: NumPy has made floats of them where they are too large for int64.
    flat = values if isinstance(values, list | tuple) and array.ndim == 1 else array.ravel().tolist()
    for place, value in enumerate(flat):
        if isinstance(value, Integral) and not isinstance(value, bool):
            if not -INT64_MAX <= int(value) <= INT64_MAX:
                return f" ({name}{_index(place, array)} is {value}, outside int64)"
        elif not isinstance(value, float) or value != value or value % 1:
            return f" ({name}{_index(place, array)} is {shown(value)})"
    return " (cast it to an integer type)"


def _index(place: int, array: np.ndarray[Any, Any]) -> str:
    return "[" + ", ".join(str(int(at)) for at in np.unravel_index(place, array.shape)) + "]"
