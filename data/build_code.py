"""The `code` corpus: the modules of Python's standard library, with the place of every function in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from clean import People, neutralise

# Tests, other projects' code, generated files, and programs that are no library.
_SKIPPED_FOLDERS = frozenset(
    [
        "test",
        "tests",
        "site-packages",
        "idlelib",
        "lib2to3",
        "__pycache__",
        "pydoc_data",
        "turtledemo",
        "lib-dynload",
        "ensurepip",
        "__phello__",
    ]
)
_SKIPPED_FILES = re.compile(r"_sysconfigdata|^config-|^this\.py$|^antigravity\.py$|^__hello__\.py$")
_NOTICE = re.compile(
    r"(?i)copyright\s*(?:\(c\)|©|:)?[^\n]{0,40}\b(?:19|20)\d\d|\(c\)\s*(?:19|20)\d\d|\(c\) copyright|\bcopyright by\b"
    r"|\bcopyright\b[^\n]*\b(?:inc|enterprises|cnri|applies)\b|permission (?:to use|is (?:hereby )?granted)"
    r"|licen[sc]ed (?:under|to)|spdx|:license:|#\s*license:|redistribution|all rights reserved"
    r"|\b(?:MIT|apache) licen[sc]e|same terms as python|python [\d.]+ license"
)
# A table that a script wrote: numbers, no prose and no code.
_GENERATED = re.compile(
    r"(?i)generated from '|do not edit|this file is (?:auto-?)?generated|automatically generated|gencodec\.py"
)
_AUTHOR_FIELDS = frozenset({"__author__", "__credits__", "__maintainer__", "__contact__", "__cvsid__"})


def code_records(library: Path, people: People, corpus: Path) -> list[dict[str, Any]]:
    """One record a module: id, text, and ``functions`` as [qualified name, first line, line after the last]."""
    (corpus / "LICENSE.code.txt").write_bytes((library / "LICENSE.txt").read_bytes())
    records, skipped = [], {"other notice": 0, "generated": 0, "empty": 0}
    for path in sorted(library.rglob("*.py"), key=lambda p: p.relative_to(library).as_posix()):
        place = path.relative_to(library)
        if _SKIPPED_FOLDERS.intersection(place.parts) or any(_SKIPPED_FILES.search(part) for part in place.parts):
            continue
        text = path.read_text("utf-8")
        lines = text.split("\n")
        notices = [i for i, line in enumerate(lines) if _NOTICE.search(line)]
        if any("Python Software Foundation" not in _around(lines, i) for i in notices):
            skipped["other notice"] += 1
            continue
        if _GENERATED.search(text[:2000]) or place.as_posix() == "html/entities.py":
            skipped["generated"] += 1
            continue
        text = neutralise(_without_author_fields(text), people, code=True)
        functions = [list(entry) for entry in _functions(ast.parse(text))]
        if not text.strip():
            skipped["empty"] += 1
            continue
        records.append({"id": f"code/{place.as_posix()}", "text": text, "functions": functions})
    print(f"code: skipped {skipped}, {sum(len(r['functions']) for r in records)} functions")
    return records


def _around(lines: list[str], i: int) -> str:
    return "\n".join(lines[max(0, i - 1) : i + 1])


def _without_author_fields(text: str) -> str:
    """Drops assignments to ``__author__`` and its like, whole statements."""
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id in _AUTHOR_FIELDS for target in node.targets
        ):
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines)


def _functions(tree: ast.AST, prefix: str = "") -> list[tuple[str, int, int]]:
    """Functions at the top of a module or class, decorators included; those inside a function belong to it."""
    found: list[tuple[str, int, int]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            assert node.end_lineno is not None
            found.append((prefix + node.name, first - 1, node.end_lineno))
        elif isinstance(node, ast.ClassDef):
            found.extend(_functions(node, f"{prefix}{node.name}."))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            found.extend(_functions(node, prefix))
    return found
