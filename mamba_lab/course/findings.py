"""What the rules take and give: a sheet (one notebook with its name) and findings."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from .notebooks import Notebook


@dataclass(frozen=True)
class Finding:
    """One broken rule: ``file``, ``cell`` (from 1, counting every cell; None: the file), what is wrong, the remedy."""

    file: str
    cell: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        place = self.file if self.cell is None else f"{self.file}: cell {self.cell}"
        return f"{place}: {self.message}. {self.remedy}."


@dataclass(frozen=True)
class Sheet:
    """A notebook under the rules. ``partner`` is the notebook that a solution belongs to, where it exists."""

    file: str
    number: str
    content: NotebookNode
    is_solution: bool = False
    partner: NotebookNode | None = None
    siblings: frozenset[str] = frozenset()

    @classmethod
    def load(cls, notebook: Notebook) -> Sheet:
        """Read a notebook, the names of the files it may link to and, for a solution, the notebook it solves."""
        from .notebooks import read

        folder = notebook.path.parent
        beside = folder.parent / notebook.path.name
        partner = read(beside) if notebook.is_solution and beside.exists() else None
        beside_it = [*folder.glob("*.*"), *folder.glob("solutions/*.ipynb")]
        names = {path.relative_to(folder).as_posix() for path in beside_it if path.is_file()}
        if notebook.is_solution:
            names |= {f"../{path.name}" for path in folder.parent.glob("*.ipynb")}
        return cls(str(notebook), notebook.number, read(notebook.path), notebook.is_solution, partner, frozenset(names))

    @property
    def cells(self) -> list[NotebookNode]:
        return list(self.content.cells)

    @cached_property
    def code(self) -> list[tuple[int, NotebookNode]]:
        """The code cells that hold something, each with its index."""
        return [(i, c) for i, c in enumerate(self.content.cells) if c.cell_type == "code" and c.source.strip()]

    @cached_property
    def trees(self) -> dict[int, ast.Module]:
        """The parsed code cells by index; a cell that is not plain Python is missing here (and is a finding)."""
        parsed = {i: _parse(cell.source) for i, cell in self.code}
        return {i: tree for i, tree in parsed.items() if tree is not None}

    def at(self, index: int, message: str, remedy: str) -> Finding:
        """A finding in the cell with this index (from 0)."""
        return Finding(self.file, index + 1, message, remedy)

    def whole(self, message: str, remedy: str) -> Finding:
        """A finding about the file."""
        return Finding(self.file, None, message, remedy)


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


def tags(cell: NotebookNode) -> list[str]:
    """The cell's tags."""
    return list(cell.metadata.get("tags", []))


def text(value: str | list[str]) -> str:
    """An output's text: nbformat allows a list of lines."""
    return value if isinstance(value, str) else "".join(value)
