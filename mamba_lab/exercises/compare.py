"""Is the answer the expected one, and where does it first differ?

Answers come from readers: lists, tuples, arrays and tensors with the same values count as the same.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

RTOL, ATOL = 1e-4, 1e-6


def plain(value: Any) -> Any:
    """``value`` with tensors, arrays and tuples as nested lists and numpy scalars as Python's;

    Anything else as it is.
    """
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Mapping):
        return {plain_key(key): plain(item) for key, item in value.items()}
    if type(value).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(value, "tolist"):
        value = value.detach() if hasattr(value, "detach") else value
        return value.tolist()
    return value


def plain_key(key: Any) -> Any:
    return key.item() if hasattr(key, "item") else key


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
    """Equal structure and values; floating-point numbers to a relative 1e-4. A NaN equals only a NaN."""
    return not differences(plain(got), plain(expected))


def differences(got: Any, expected: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places where the plain values differ, in order: () for the whole, (2,) for item 2, (0, 3) for item 3 of row 0."""
    if isinstance(expected, list):
        if not isinstance(got, list):
            return [place]
        out: list[tuple[Any, ...]] = []
        for i in range(max(len(got), len(expected))):
            if i < len(got) and i < len(expected):
                out += differences(got[i], expected[i], (*place, i))
            else:
                out.append((*place, i))
        return out
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return [place]
        keys = [*expected, *(key for key in got if key not in expected)]
        return [
            p
            for key in keys
            for p in (
                differences(got[key], expected[key], (*place, key))
                if key in got and key in expected
                else [(*place, key)]
            )
        ]
    return [] if _equal(got, expected) else [place]


def has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(has_nan, value))
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    return isinstance(value, float) and math.isnan(value)


def _equal(got: Any, expected: Any) -> bool:
    if isinstance(expected, numbers.Number) and isinstance(got, numbers.Number):
        if isinstance(got, complex) or isinstance(expected, complex):
            return got == expected
        if isinstance(got, numbers.Integral) and isinstance(expected, numbers.Integral):
            return int(got) == int(expected)
        a, b = float(got), float(expected)  # type: ignore[arg-type]
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return math.isclose(a, b, rel_tol=RTOL, abs_tol=ATOL)
    if type(got) is not type(expected):
        return False
    return bool(got == expected)
