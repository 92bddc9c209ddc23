"""The form in which notebooks are stored: what differs between two runs on two machines is not in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

_KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
_LANGUAGE = {"name": "python"}
_KEPT_CELL_METADATA = ("tags",)


def normalise(notebook: NotebookNode) -> NotebookNode:
    """``notebook`` with plain metadata, one lasting id a cell, and execution counts 1, 2, 3 ...; changed in place.

    Dropped: the machine's kernel and Python version, execution times, widget states, empty code cells' counts.
    Texts of one stream that arrived in pieces become one output, since the pieces differ from run to run.
    """
    from nbformat import NotebookNode

    notebook.metadata = NotebookNode(kernelspec=NotebookNode(_KERNELSPEC), language_info=NotebookNode(_LANGUAGE))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    count = 0
    taken: set[str] = set()
    for cell in notebook.cells:
        cell.id = _lasting_id(cell, taken)
        cell.metadata = NotebookNode({key: cell.metadata[key] for key in _KEPT_CELL_METADATA if cell.metadata.get(key)})
        if cell.cell_type != "code":
            continue
        if cell.source.strip() and (cell.execution_count is not None or cell.outputs):
            count += 1
            cell.execution_count = count
        else:
            cell.execution_count = None
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            output.pop("transient", None)
    return notebook


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """``notebook`` with neither outputs nor counts, otherwise as ``normalise`` leaves it; changed in place."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return normalise(notebook)


def source_hash(notebook: NotebookNode) -> str:
    """A hash of what an author writes: cell kinds, sources and tags. Outputs and metadata do not enter."""
    content = [[cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


def write(notebook: NotebookNode, path: Path) -> None:
    """Write ``notebook`` to ``path`` in one step: a reader never sees half a file, a full disk leaves the old one."""
    import os

    import nbformat

    text = nbformat.writes(notebook, version=4)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _lasting_id(cell: NotebookNode, taken: set[str]) -> str:
    """The cell's own id; where it has none or a copied one, an id made from its source, so that no run differs."""
    own = cell.get("id")
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
    candidates = [own] if own else []
    candidates += [digest] + [f"{digest}-{n}" for n in range(2, len(taken) + 3)]
    chosen = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(chosen)
    return chosen


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last is not None and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined
