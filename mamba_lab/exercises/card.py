"""The answer card of a check: HTML for notebooks, text for everything else.

Marks and borders say what the colours say.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mamba_lab.exercises.compare import differences

# The page may be light or dark, so the card brings its own ground. The values are those of mamba_lab.viz.colours,
# which this module doesn't import: a check works without matplotlib.
_INK, _CARD, _MUTED, _BAD, _GOOD, _LINE = "#1A1A1A", "#FCFCFA", "#595959", "#C00018", "#00664A", "#A3A3A3"
_WIDEST = 24
_LONGEST_TEXT = 200
_HALF = _LONGEST_TEXT // 2
_LONGEST_INT = 4000  # bits; Python refuses to write out much longer ones
NOTHING = object()
"""There is no answer to show: the call ended in an error, or the stub is untouched."""


@dataclass(frozen=True)
class Card:
    """What to show. ``inputs``, ``expected`` and ``got`` are one case; leave ``got`` out where there is no answer."""

    ok: bool
    title: str
    headline: str
    inputs: dict[str, Any] = field(default_factory=dict)
    expected: Any = NOTHING
    got: Any = NOTHING
    notes: tuple[str, ...] = ()
    printed: str = ""
    one_answer: bool = True
    """False where other answers than ``expected`` are right too: then places are not marked one by one."""

    @property
    def mark(self) -> str:
        return "✓" if self.ok else "✗"

    def to_text(self) -> str:
        lines = [f"{self.mark} {self.title}: {self.headline}"]
        lines += [f"  {name} = {show_value(value)}" for name, value in self.inputs.items()]
        where, expected, got = self._compared()
        if expected is not NOTHING:
            rows = _aligned(expected, got, self.one_answer)
            lines.append(f"  {self._label + where:14} {rows[0]}")
            if got is not NOTHING:
                lines.append(f"  {'got' + where:14} {rows[1]}")
                if rows[2]:
                    lines.append(f"  {'':14} {rows[2]}")
        if self.printed:
            lines += ["  printed:", *(f"    {line}" for line in self.printed.splitlines()[:8])]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes])

    def to_html(self) -> str:
        edge = _GOOD if self.ok else _BAD
        parts = [
            f'<div style="background:{_CARD};color:{_INK};border:1px solid {_LINE};border-left:6px solid {edge};'
            f'padding:8px 12px;font:14px/1.45 sans-serif;max-width:736px;overflow-x:auto">',
            f'<div><b style="color:{edge}">{self.mark} {_escape(self.title)}</b>: {_escape(self.headline)}</div>',
        ]
        rows = [_table_row(name, [_cell(show_value(value))]) for name, value in self.inputs.items()]
        if rows:
            parts.append(_table(rows))
        where, expected, got = self._compared()
        if expected is not NOTHING:
            parts.append(_table(_compared_rows(self._label + where, "got" + where, expected, got, self.one_answer)))
        if self.printed:
            text = _escape("\n".join(self.printed.splitlines()[:8]))
            parts.append(
                f'<div style="color:{_MUTED}">It printed:</div><pre style="margin:0;color:{_INK}">{text}</pre>'
            )
        parts += [f'<div style="margin-top:4px">{_escape(note)}</div>' for note in self.notes]
        return "".join(parts) + "</div>"

    @property
    def _label(self) -> str:
        return "expected" if self.one_answer else "one that fits"

    def _compared(self) -> tuple[str, Any, Any]:
        """The values to lay side by side; of lists of lists only the first row that differs."""
        expected, got = self.expected, self.got
        if self.one_answer and _is_table(expected) and _is_table(got):
            for number, (want, have) in enumerate(zip(expected, got, strict=False)):
                if differences(have, want, most=1):
                    return f"[{number}]", want, have
        return "", expected, got


def show_value(value: Any) -> str:
    """``value`` in one short line, the same on each machine: floats with four digits, long lists cut in the middle."""
    text = _text(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_HALF]} ... {text[-_HALF:]}"


def _text(value: Any) -> str:
    """The text from which show_value keeps both ends: what lies between is left out before it is written."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(show_value, _ends(value))) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show_value(k)}: {show_value(v)}" for k, v in _ends(list(value.items()))) + "}"
    if isinstance(value, (str, bytes, bytearray)):
        return repr(_ends(value))
    if isinstance(value, int) and value.bit_length() > _LONGEST_INT:
        return f"a number of about {int(value.bit_length() * math.log10(2)):,} digits"
    if isinstance(value, (set, frozenset)) and len(value) > _LONGEST_TEXT:
        return f"a set of {len(value):,}"
    if callable(value):
        return getattr(value, "__name__", "a function")
    if type(value).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(value, "tolist"):
        return _text(value.tolist())
    try:
        text = repr(value)
    except Exception:
        text = ""
    # The default repr carries an address, which differs in each run.
    return f"a {type(value).__name__}" if not text or " at 0x" in text else text


def _ends(values: Any) -> Any:
    return values if len(values) <= 2 * _LONGEST_TEXT else values[:_LONGEST_TEXT] + values[-_LONGEST_TEXT:]


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)


def _columns(expected: Any, got: Any, one_answer: bool) -> tuple[list[Any], list[Any]] | None:
    """Both as lists to compare place by place, or None where they are shown as a whole.

    A list of one is shown whole: a single cell would look like a number.
    """
    if not one_answer or got is NOTHING:
        return None
    both = (expected, got)
    flat = (isinstance(v, list) and len(v) <= _WIDEST and not any(isinstance(x, (list, dict)) for x in v) for v in both)
    return (expected, got) if all(flat) and max(map(len, both)) > 1 else None


def _marks(expected: Sequence[Any], got: Sequence[Any]) -> list[str]:
    wrong = {place[0] for place in differences(list(got), list(expected))}
    return ["✗" if i in wrong else "✓" for i in range(max(len(expected), len(got)))]


def _aligned(expected: Any, got: Any, one_answer: bool) -> tuple[str, str, str]:
    columns = _columns(expected, got, one_answer)
    if columns is None:
        mark = "" if got is NOTHING or not one_answer else "✗" if differences(got, expected, most=1) else "✓"
        return show_value(expected), "" if got is NOTHING else show_value(got), mark
    want, have = ([show_value(v) for v in column] for column in columns)
    n = max(len(want), len(have))
    want += [""] * (n - len(want))
    have += [""] * (n - len(have))
    widths = [max(len(a), len(b), 1) for a, b in zip(want, have, strict=True)]
    marks = _marks(*columns)
    lines = ["  ".join(f"{v:>{w}}" for v, w in zip(row, widths, strict=True)) for row in (want, have, marks)]
    return lines[0] or "[]", lines[1] or "[]", lines[2]


def _compared_rows(label: str, got_label: str, expected: Any, got: Any, one_answer: bool) -> list[str]:
    columns = _columns(expected, got, one_answer)
    want, have = ([expected], [] if got is NOTHING else [got]) if columns is None else columns
    rows = [_table_row(label, [_cell(show_value(v)) for v in want])]
    if got is NOTHING:
        return rows
    marks = _marks(want, have) if one_answer else [""] * len(have)
    bad = [mark == "✗" for mark in marks]
    values = [show_value(v) for v in have] + ["missing"] * (len(marks) - len(have))
    rows.append(_table_row(got_label, [_cell(v, wrong=b) for v, b in zip(values, bad, strict=True)]))
    if one_answer:
        rows.append(_table_row("", [_cell(m, wrong=b, bare=True) for m, b in zip(marks, bad, strict=True)]))
    return rows


def _cell(text: str, wrong: bool = False, bare: bool = False) -> str:
    border = "none" if bare else f"2px dashed {_BAD}" if wrong else f"1px solid {_LINE}"
    colour = _BAD if wrong else _GOOD if bare else _INK
    weight = "bold" if wrong else "normal"
    return (
        f'<td style="border:{border};color:{colour};font-weight:{weight};background:{_CARD};padding:1px 7px;'
        f'text-align:center;font-family:monospace">{_escape(text)}</td>'
    )


def _table_row(name: str, cells: Sequence[str]) -> str:
    look = f"color:{_MUTED};background:{_CARD};padding:1px 10px 1px 0;text-align:left;border:none;min-width:76px"
    return f'<tr style="background:{_CARD}"><td style="{look}">{_escape(name)}</td>{"".join(cells)}</tr>'


def _table(rows: Sequence[str]) -> str:
    look = f"border-collapse:collapse;margin:5px 0;font-size:14px;background:{_CARD}"
    return f'<table style="{look}">{"".join(rows)}</table>'


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
