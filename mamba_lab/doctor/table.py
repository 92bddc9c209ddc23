"""Rows of a report, and the report as text, as an HTML table and as JSON."""

from __future__ import annotations

import html
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "broken"]

# Words carry the meaning. Colours only help, and these two are told apart by readers who see red and green alike.
_COLOURS = {"ok": "inherit", "note": "#b26a00", "broken": "#c0392b"}


@dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        part: what was looked at.
        state: "ok"; "note" when the course runs without it; "broken" when it does not.
        found: what is there, or what is missing.
        remedy: the one command or step that mends it; empty when there is nothing to mend.
    """

    part: str
    state: State
    found: str
    remedy: str = ""


class Report(Sequence[Row]):
    """Rows with a title and a last line that says what they come to."""

    def __init__(self, title: str, rows: Sequence[Row], verdict: str) -> None:
        self.title, self.rows, self.verdict = title, tuple(rows), verdict

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not any(row.state == "broken" for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def as_dicts(self) -> list[dict[str, str]]:
        """The rows as plain dictionaries."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        width = min(shutil.get_terminal_size((110, 24)).columns, 140)
        first = max((len(row.part) for row in self.rows), default=0)
        indent = " " * (first + 10)
        lines = [self.title, "─" * min(width, 100)]
        for row in self.rows:
            lines += textwrap.wrap(
                row.found, width, initial_indent=f"{row.part:<{first}}  {row.state:<6}  ", subsequent_indent=indent
            )
            if row.remedy:
                lines += textwrap.wrap(row.remedy, width, initial_indent=f"{indent}→ ", subsequent_indent=f"{indent}  ")
        return "\n".join([*lines, "─" * min(width, 100), self.verdict])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = 'style="text-align:left; vertical-align:top"'
        head = "".join(f"<th scope='col' {cell}>{name}</th>" for name in ("part", "state", "found", "to mend it"))
        body = "".join(
            f"<tr><th scope='row' {cell}>{html.escape(row.part)}</th>"
            f'<td style="text-align:left; vertical-align:top; color:{_COLOURS[row.state]}">{row.state}</td>'
            f"<td {cell}>{html.escape(row.found)}</td><td {cell}>{html.escape(row.remedy)}</td></tr>"
            for row in self.rows
        )
        caption = f"<caption>{html.escape(self.title)}</caption>"
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{table}<p>{html.escape(self.verdict)}</p>"
