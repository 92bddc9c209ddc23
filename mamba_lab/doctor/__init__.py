"""`mamba-lab doctor`: what works on this machine, what does not, and the one command that mends it."""

from __future__ import annotations

import json

from mamba_lab.doctor.checks import one_line, report
from mamba_lab.doctor.classroom import class_report
from mamba_lab.doctor.table import Report, Row

__all__ = ["Report", "Row", "class_report", "one_line", "report", "show"]


def show() -> Report:
    """The report, for a notebook: as the last line of a cell it appears as a table."""
    return report()


def run(students: int | None = None, as_json: bool = False) -> int:
    """Print the report, for a class too when `students` is given. Returns 0 when the course can run, otherwise 1."""
    parts = {"machine": report()}
    if students is not None:
        parts["class"] = class_report(students)
    ok = all(part.ok for part in parts.values())
    if as_json:
        print(json.dumps({"ok": ok, **{name: part.as_dicts() for name, part in parts.items()}}, indent=1))
    else:
        print("\n\n".join(str(part) for part in parts.values()))
    return 0 if ok else 1
