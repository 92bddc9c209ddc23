"""Is the answer the expected one, and where does it first differ?

Answers come from readers: lists, tuples, arrays and tensors with the same values count as the same.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import numbers
import sys
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

RTOL, ATOL = 1e-4, 1e-6
MOST_ITEMS = 100_000
"""An answer with more items than this is not read: no exercise expects as many."""
MOST_PLACES = 100


class AnswerTooLarge(Exception):
    """The value holds more than MOST_ITEMS items, maybe without end."""


class AnswerUnreadable(Exception):
    """The value holds no numbers that can be read."""


class Rounded(float):
    """A float from an array or tensor whose dtype is coarser than Python's: ``rtol`` is what its dtype can tell."""

    rtol: float

    def __new__(cls, value: float, rtol: float) -> Rounded:
        self = super().__new__(cls, value)
        self.rtol = rtol
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Rounded:
        return self


def plain(value: Any) -> Any:
    """``value`` with tensors, arrays, tuples, iterators and the like as nested lists and numbers as Python's own;

    Anything else as it is. An iterator is used up.

    Raises:
        AnswerTooLarge: more than MOST_ITEMS items in all.
        AnswerUnreadable: a tensor without values.
    """
    return _Reader().read(value)


_PLAIN = frozenset({bool, int, float, str, type(None), Rounded})


class _Reader:
    """Counts the items of the whole value, so that nesting doesn't get round the limit."""

    def __init__(self) -> None:
        self.room = MOST_ITEMS

    def read(self, value: Any) -> Any:
        if type(value) in _PLAIN:  # first, because asking for abstract classes is slow
            return value
        if type(value) is list or type(value) is tuple:
            return [self.read(item) for item in self._items(value)]
        if _is_array(value):
            return self._array(value)
        if isinstance(value, (list, tuple, range, deque, Iterator, KeysView, ValuesView, ItemsView)):
            return [self.read(item) for item in self._items(value)]
        if isinstance(value, Mapping):
            return {plain_key(key): self.read(item) for key, item in self._items(value.items())}
        # A subclass may do anything when it is compared or shown; its value is what counts.
        if isinstance(value, float):
            return float.__pos__(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__pos__(value)
        if isinstance(value, str):
            return str.__str__(value)
        return value

    def _take(self, n: int) -> None:
        self.room -= n
        if self.room < 0:
            raise AnswerTooLarge(f"more than {MOST_ITEMS:,} items")

    def _items(self, values: Iterable[Any]) -> Iterator[Any]:
        # islice: list() of an endless iterator written in C would run until the memory is full.
        for item in itertools.islice(values, self.room + 1):
            self._take(1)
            yield item

    def _array(self, value: Any) -> Any:
        self._take(int(value.numel()) if hasattr(value, "numel") else int(value.size))
        rtol = _precision(value)
        try:
            listed = (value.detach() if hasattr(value, "detach") else value).tolist()
        except Exception as error:
            raise AnswerUnreadable(f"a {type(value).__name__} whose values cannot be read") from error
        return listed if rtol is None else _rounded(listed, rtol)


def _is_array(value: Any) -> bool:
    module = type(value).__module__
    return isinstance(module, str) and module.partition(".")[0] in ("numpy", "torch") and hasattr(value, "tolist")


def _precision(value: Any) -> float | None:
    """Twice the step of the dtype relative to 1, or None where Python's floats are no finer."""
    with contextlib.suppress(Exception):  # no finfo: not a floating dtype
        eps = float(sys.modules[type(value).__module__.partition(".")[0]].finfo(value.dtype).eps)
        return 2 * eps if eps > sys.float_info.epsilon else None
    return None


def _rounded(listed: Any, rtol: float) -> Any:
    if isinstance(listed, list):
        return [_rounded(item, rtol) for item in listed]
    return Rounded(listed, rtol) if isinstance(listed, float) else listed


def plain_key(key: Any) -> Any:
    return key.item() if _is_array(key) else key


def kind(value: Any) -> str:
    """In a reader's words what ``value`` is: "a list of 4", "a number", "None"."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, numbers.Number):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return f"a list of {len(value)}" + (" lists" if value and all(isinstance(v, list) for v in value) else "")
    if isinstance(value, dict):
        return "a dict"
    if callable(value):
        return "a function (is a call missing?)"
    return f"a {type(value).__name__}"


def same(got: Any, expected: Any) -> bool:
    """Equal structure and values; floating-point numbers to a relative 1e-4, or to what the answer's dtype can tell.

    A NaN equals only a NaN.
    """
    return not differences(plain(got), plain(expected), most=1)


def differences(got: Any, expected: Any, most: int = MOST_PLACES) -> list[tuple[Any, ...]]:
    """The first ``most`` places where the plain values differ, in order.

    () is the whole, (2,) item 2, (0, 3) item 3 of row 0.
    """
    return list(itertools.islice(_places(got, expected, ()), most))


def _places(got: Any, expected: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(expected, list) and isinstance(got, list):
        for i in range(max(len(got), len(expected))):
            if i < len(got) and i < len(expected):
                yield from _places(got[i], expected[i], (*place, i))
            else:
                yield (*place, i)
    elif isinstance(expected, dict) and isinstance(got, dict):
        for key in itertools.chain(expected, (key for key in got if key not in expected)):
            if key in got and key in expected:
                yield from _places(got[key], expected[key], (*place, key))
            else:
                yield (*place, key)
    elif isinstance(expected, (list, dict)) or not _equal(got, expected):
        yield place


def has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(has_nan, value))
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    return isinstance(value, float) and math.isnan(value)


def _equal(got: Any, expected: Any) -> bool:
    try:
        return _equal_numbers(got, expected) if _are_numbers(got, expected) else _equal_others(got, expected)
    except Exception:  # no float holds 10**400, a signalling NaN refuses ==, and readers write their own __eq__
        return False


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, numbers.Number) for value in values)


def _equal_numbers(got: Any, expected: Any) -> bool:
    if isinstance(got, complex) or isinstance(expected, complex):
        return bool(got == expected)
    if isinstance(got, numbers.Integral) and isinstance(expected, numbers.Integral):
        return int(got) == int(expected)
    a, b = float(got), float(expected)
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    rtol = max(RTOL, *(value.rtol for value in (got, expected) if isinstance(value, Rounded)), 0.0)
    return math.isclose(a, b, rel_tol=rtol, abs_tol=ATOL)


def _equal_others(got: Any, expected: Any) -> bool:
    return type(got) is type(expected) and bool(got == expected)
