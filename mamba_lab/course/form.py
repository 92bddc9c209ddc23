"""Rules about a notebook's form: its beginning, its end, the order of text and code, prediction, exercises, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .curriculum import CURRICULUM
from .findings import Finding, Sheet, tags
from .notebooks import parse_header

if TYPE_CHECKING:
    from nbformat import NotebookNode

FIRST_CODE_WITHIN = 5
CODE_CELLS_IN_A_ROW = 2
LEVELS = ("warm-up", "core", "stretch")
REQUIRED_LEVELS = ("warm-up", "core")
_HEADING = re.compile(r"^#{2,4} +(.*?)\s*$", re.MULTILINE)
_EXERCISE = re.compile(r"^#{2,4} Exercise: (warm-up \(3 minutes\)|core \(10 minutes\)|stretch)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def header(sheet: Sheet) -> Iterator[Finding]:
    """The first cell has the fixed form and says what the curriculum says."""
    form = "See 'The first cell' in CONTRIBUTING.md"
    if not sheet.cells or sheet.cells[0].cell_type != "markdown":
        yield sheet.at(0, "the first cell is not text", form)
        return
    try:
        head = parse_header(sheet.cells[0].source)
    except ValueError as error:
        yield sheet.at(0, str(error), form)
        return
    if head.number != sheet.number:
        yield sheet.at(0, f"the title says {head.number}, the file {sheet.number}", "Use the file's number")
    entry = next((entry for entry in CURRICULUM if entry.number == sheet.number), None)
    if entry is None:
        yield sheet.whole(f"curriculum.py has no number {sheet.number}", "Add an entry for the notebook")
        return
    for field in ("question", "minutes", "needs"):
        ours, theirs = getattr(head, field), getattr(entry, field)
        if ours != theirs:
            yield sheet.at(0, f"{field} is {ours!r}, in curriculum.py {theirs!r}", "Make the two agree")
    if head.next is not None and head.next not in {entry.number for entry in CURRICULUM}:
        yield sheet.at(0, f"next is {head.next!r}, which curriculum.py does not have", "Name an existing notebook")


def opens_with_code(sheet: Sheet) -> Iterator[Finding]:
    """The failure that a notebook opens with is run, not told: code among the first cells."""
    if not any(index < FIRST_CODE_WITHIN for index, _ in sheet.code):
        yield sheet.whole(
            f"no code among the first {FIRST_CODE_WITHIN} cells", "Open with the failure, as a cell the reader runs"
        )


def text_between(sheet: Sheet) -> Iterator[Finding]:
    """At most two code cells without text between them."""
    run = 0
    for index, cell in enumerate(sheet.cells):
        run = run + 1 if cell.cell_type == "code" else 0
        if run == CODE_CELLS_IN_A_ROW + 1:
            yield sheet.at(index, "a third code cell without text between", "Say before it what it is for")


def ending(sheet: Sheet) -> Iterator[Finding]:
    """The last cells: the reader's own text, then the next step."""
    if not sheet.cells:
        return
    last = sheet.cells[-1]
    if last.cell_type != "markdown" or "Next" not in _headings(last):
        yield sheet.at(len(sheet.cells) - 1, "the last cell has no heading 'Next'", "End with text under '## Next'")
    closing = [heading for cell in sheet.cells[-4:] for heading in _headings(cell)]
    if "Try your own text" not in closing:
        yield sheet.whole("no heading 'Try your own text' in the last four cells", "Add it before '## Next'")


def prediction(sheet: Sheet) -> Iterator[Finding]:
    """One prediction per notebook: ``my_prediction = None`` in the one cell tagged ``prediction``."""
    remedy = "Tag one code cell `prediction` and write `my_prediction = None` in it"
    tagged = [index for index, cell in enumerate(sheet.cells) if "prediction" in tags(cell)]
    if len(tagged) != 1:
        yield sheet.whole(f"{len(tagged)} cells are tagged prediction; expected 1", remedy)
    for index in tagged:
        if not (index in sheet.trees and any(_sets_prediction(node) for node in sheet.trees[index].body)):
            yield sheet.at(index, "tagged prediction, without the line `my_prediction = None`", remedy)
    for index, tree in sheet.trees.items():
        if index not in tagged and "my_prediction" in _assigned(tree):
            yield sheet.at(
                index, "assigns my_prediction", "Only the cell tagged prediction does; the reader types it there"
            )


def exercises(sheet: Sheet) -> Iterator[Finding]:
    """Text tagged ``exercise``, below it a stub with its check; a warm-up and a core one; nothing leans on a stub."""
    found: list[str] = []
    for index, cell in enumerate(sheet.cells):
        level = exercise_level(cell)
        if cell.cell_type == "markdown" and "exercise" in tags(cell):
            following = sheet.cells[index + 1] if index + 1 < len(sheet.cells) else None
            if not _EXERCISE.search(cell.source):
                yield sheet.at(
                    index,
                    "an exercise without its heading",
                    "Write '## Exercise: warm-up (3 minutes)', 'core (10 minutes)' or 'stretch'",
                )
            if following is None or exercise_level(following) is None:
                yield sheet.at(
                    index, "no stub directly below the exercise", "Tag the next cell exercise-core or the like"
                )
        if level is None:
            continue
        found.append(level)
        above = sheet.cells[index - 1] if index else None
        if above is None or "exercise" not in tags(above):
            yield sheet.at(index, "a stub without its text directly above", "Tag the text above it `exercise`")
        elif (stated := _EXERCISE.search(above.source)) and not stated[1].startswith(level):
            yield sheet.at(index, f"tagged exercise-{level}, its heading says {stated[1]!r}", "Make the two agree")
        yield from _stub(sheet, index)
    for level in REQUIRED_LEVELS:
        if level not in found:
            yield sheet.whole(f"no {level} exercise", f"Add one: text tagged exercise, a stub tagged exercise-{level}")


def solution(sheet: Sheet) -> Iterator[Finding]:
    """A solution notebook solves every exercise of its notebook with the same check."""
    if sheet.partner is None:
        yield sheet.whole("there is no notebook of this name", "Give the solution its notebook's file name")
        return
    solved = {
        (exercise_level(cell), check)
        for index, cell in sheet.code
        if "solution" in tags(cell)
        for check in checks(sheet.trees.get(index))
    }
    partner = Sheet(sheet.file, sheet.number, sheet.partner)
    for index, cell in partner.code:
        level = exercise_level(cell)
        for check in checks(partner.trees.get(index)) if level else []:
            if (level, check) not in solved:
                yield sheet.whole(
                    f"the {level} exercise's {check}(...) is not called",
                    f"Add a code cell tagged solution and exercise-{level} that ends in {check}(...)",
                )


def links(sheet: Sheet) -> Iterator[Finding]:
    """A relative link leads to a file that exists beside the notebook: copies in my/ have nothing else."""
    for index, cell in enumerate(sheet.cells):
        if cell.cell_type != "markdown":
            continue
        for target in _LINK.findall(cell.source):
            if re.match(r"[a-z]+:|#", target):
                continue
            if target.split("#")[0] not in sheet.siblings:
                yield sheet.at(index, f"the link {target!r} leads nowhere", "Link to a file beside this notebook")


def exercise_level(cell: NotebookNode) -> str | None:
    """``warm-up``, ``core`` or ``stretch`` for a stub's cell (or its solution's), else None."""
    levels = [level for level in LEVELS if f"exercise-{level}" in tags(cell)]
    return levels[0] if cell.cell_type == "code" and levels else None


def checks(tree: ast.Module | None) -> list[str]:
    """The names of the check functions that a cell calls at its top level, in order."""
    if tree is None:
        return []
    calls = [node for statement in tree.body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [_name(call.func) for call in calls]
    return [name for name in names if name.startswith("check")]


def _stub(sheet: Sheet, index: int) -> Iterator[Finding]:
    tree = sheet.trees.get(index)
    if tree is None:
        return
    stubs = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    last = tree.body[-1]
    if not stubs:
        yield sheet.at(index, "an exercise without a `def` to fill in", "Write the stub as a function")
    call = last.value if isinstance(last, ast.Expr | ast.Assign) else None
    if not (isinstance(call, ast.Call) and _name(call.func).startswith("check")):
        yield sheet.at(index, "an exercise that does not end in its check", "End the cell with check(...)")
    for later, other in sheet.trees.items():
        used = {node.id for node in ast.walk(other) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        defined = {node.name for node in other.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for name in sorted((stubs & used) - defined):
            if later > index:
                yield sheet.at(
                    later, f"uses {name}, an exercise's stub", "Nothing may depend on what the reader writes"
                )


def _headings(cell: NotebookNode) -> list[str]:
    return _HEADING.findall(cell.source) if cell.cell_type == "markdown" else []


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _sets_prediction(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return "my_prediction" in _assigned(node) and isinstance(value, ast.Constant) and value.value is None


def _assigned(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
