"""The rules of a notebook, all together. `mamba-lab course --lint` prints what they find; the tests demand nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from . import cellcode, form, outputs, prose
from .findings import Finding, Sheet
from .notebooks import Notebook

Rule = Callable[[Sheet], Iterator[Finding]]

# For notebooks and their solutions.
COMMON: tuple[Rule, ...] = (
    cellcode.plain_python,
    cellcode.executed,
    cellcode.cell_length,
    cellcode.public_names,
    cellcode.environment_line,
    cellcode.devices,
    cellcode.no_markers,
    cellcode.stands_alone,
    outputs.known_tags,
    outputs.ignored_for_a_reason,
    outputs.no_errors,
    outputs.no_machine,
    outputs.figures,
    outputs.size,
    outputs.stubs_unsolved,
    form.links,
    prose.length,
    prose.sentence_length,
    prose.wording,
    prose.headings,
    prose.formulas,
)
LESSON: tuple[Rule, ...] = (
    *COMMON,
    form.header,
    form.opens_with_code,
    form.text_between,
    form.ending,
    form.prediction,
    form.exercises,
)
SOLUTION: tuple[Rule, ...] = (*COMMON, form.solution)


def check_sheet(sheet: Sheet) -> list[Finding]:
    """Everything that the rules find in one notebook, in the rules' order."""
    return [finding for rule in (SOLUTION if sheet.is_solution else LESSON) for finding in rule(sheet)]


def check_notebook(notebook: Notebook) -> list[Finding]:
    """``check_sheet`` of a file."""
    return check_sheet(Sheet.load(notebook))


def check_course(notebooks: Iterable[Notebook]) -> list[Finding]:
    """What concerns several notebooks: the glossary in course order, and a solution for each notebook."""
    notebooks = sorted(notebooks, key=lambda notebook: notebook.number)
    sheets = [Sheet.load(notebook) for notebook in notebooks]
    findings = list(prose.glossary(sheets))
    for notebook, sheet in zip(notebooks, sheets, strict=True):
        if not (notebook.path.parent / "solutions" / notebook.path.name).exists():
            findings.append(sheet.whole("no solution notebook", f"Write solutions/{notebook.path.name}"))
    return findings
