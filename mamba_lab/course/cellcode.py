"""Rules about the code in cells: short, plain Python, public names, devices written out, nothing read from beside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .findings import Finding, Sheet, tags

LINES_A_CELL = 16
_MARKER = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", re.MULTILINE)
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:\d+)?")
_BESIDE = re.compile(r"(\.{1,2}/|notebooks/|solutions/|my/).*|.*\.ipynb")


def plain_python(sheet: Sheet) -> Iterator[Finding]:
    """Cells parse as Python: no magics, no shell commands (nbval takes an unknown magic for a success)."""
    for index, _ in sheet.code:
        if index not in sheet.trees:
            yield sheet.at(
                index, "not plain Python", "Write no magic and no shell command; time with time.perf_counter"
            )


def executed(sheet: Sheet) -> Iterator[Finding]:
    """Every code cell was executed, in order, from a fresh kernel; nbval would pass a cleared one."""
    for position, (index, cell) in enumerate(sheet.code, start=1):
        if cell.execution_count != position:
            yield sheet.at(
                index,
                f"execution count {cell.execution_count}, expected {position}",
                f'Run make notebooks ARGS="--only {sheet.number}"',
            )
            return
    for index, cell in enumerate(sheet.cells):
        if cell.cell_type == "code" and not cell.source.strip():
            yield sheet.at(index, "an empty code cell", "Delete it")


def cell_length(sheet: Sheet) -> Iterator[Finding]:
    """A code cell is read in one look."""
    for index, cell in sheet.code:
        lines = sum(1 for line in cell.source.splitlines() if line.strip())
        if lines > LINES_A_CELL:
            yield sheet.at(index, f"{lines} lines of code, at most {LINES_A_CELL}", "Split it, with a sentence between")


def public_names(sheet: Sheet) -> Iterator[Finding]:
    """Notebooks import only public names of mamba_lab."""
    for index, tree in sheet.trees.items():
        for node in ast.walk(tree):
            paths: list[str] = []
            if isinstance(node, ast.Import):
                paths = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                paths = [f"{node.module}.{alias.name}" for alias in node.names]
            for path in paths:
                parts = path.split(".")
                if parts[0] == "mamba_lab" and any(part.startswith("_") for part in parts):
                    yield sheet.at(index, f"imports {path}, which is private", "Import public names only")


def environment_line(sheet: Sheet) -> Iterator[Finding]:
    """The doctor's table is in 00 only; elsewhere one line."""
    if sheet.number == "00" and not sheet.is_solution:
        return
    for index, tree in sheet.trees.items():
        for node in ast.walk(tree):
            used: list[str] = []
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "doctor":
                used = [node.attr]
            elif isinstance(node, ast.ImportFrom) and node.module == "mamba_lab.doctor":
                used = [alias.name for alias in node.names]
            for name in used:
                if name != "one_line":
                    yield sheet.at(index, f"uses doctor.{name}", "Outside 00 write print(doctor.one_line())")


def devices(sheet: Sheet) -> Iterator[Finding]:
    """A cell whose output is compared runs on the CPU on every machine, and says so."""
    for index, tree in sheet.trees.items():
        if {"nbval-ignore-output", "gpu"} & set(tags(sheet.cells[index])):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (where := _place(node)):
                yield sheet.at(
                    index,
                    f"{where}, and its output is compared",
                    'Write device="cpu", or tag the cell nbval-ignore-output',
                )


def no_markers(sheet: Sheet) -> Iterator[Finding]:
    """nbval is steered by tags alone: a marker in a comment would stand in the reader's way."""
    for index, cell in sheet.code:
        for marker in _MARKER.findall(cell.source):
            yield sheet.at(index, f"the comment {marker}", "Use the tag nbval-ignore-output")


def stands_alone(sheet: Sheet) -> Iterator[Finding]:
    """No cell reads a file beside the notebook: the reader's copy lies in my/, alone."""
    for index, tree in sheet.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _BESIDE.fullmatch(node.value):
                yield sheet.at(index, f"the path {node.value!r}", "Read through the package (load_corpus, read_record)")


def _place(call: ast.Call) -> str | None:
    """What a call says about a device other than the literal CPU, or None."""
    for keyword in call.keywords:
        if keyword.arg == "device" and not _is_cpu(keyword.value):
            return f"device={ast.unparse(keyword.value)}"
    if not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr in ("cuda", "mps"):
        return f".{call.func.attr}()"
    if call.func.attr == "to":
        for argument in call.args:
            named = isinstance(argument, ast.Name | ast.Attribute) and "device" in ast.unparse(argument)
            literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            made = isinstance(argument, ast.Call) and ast.unparse(argument.func).endswith("device")
            if (named or literal or made) and not _is_cpu(argument):
                return f".to({ast.unparse(argument)})"
    return None


def _is_cpu(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("torch.device", "device") and value.args:
        value = value.args[0]
    if not isinstance(value, ast.Constant):
        return False
    return value.value == "cpu" or not (isinstance(value.value, str) and _DEVICE.fullmatch(value.value))
