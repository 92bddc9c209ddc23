"""Find the notebooks, read their first cell, choose some by number or name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..paths import checkout_root

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FILE = re.compile(r"(?P<number>\d{2})_(?P<stem>[a-z0-9_]+)\.ipynb")
_TITLE = re.compile(r"# (?P<number>\d{2}) (?P<title>\S.*)")
_FACTS = re.compile(r"(?P<minutes>\d+) minutes · needs: (?P<needs>[^·]+) · next: (?P<next>[^·]+)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Notebook:
    """One file ``NN_stem.ipynb``; ``is_solution`` for those in ``solutions/``."""

    path: Path
    number: str
    stem: str
    is_solution: bool = False

    @property
    def name(self) -> str:
        return f"{self.number}_{self.stem}"

    def __str__(self) -> str:
        return f"solutions/{self.path.name}" if self.is_solution else self.path.name


@dataclass(frozen=True)
class Header:
    """What the first cell says: see ``parse_header``."""

    number: str
    title: str
    question: str
    minutes: int
    needs: tuple[str, ...]
    next: str | None


def notebooks_dir() -> Path:
    """The checkout's ``notebooks/``. Raises FileNotFoundError, with the remedy, when there is no checkout."""
    root = checkout_root()
    if root is None:
        raise FileNotFoundError(
            "The notebooks lie in the checkout's notebooks/ folder; mamba_lab was imported from an installed wheel. "
            "Clone the repository and run the command from there (make course, make lab)."
        )
    return root / "notebooks"


def find_notebooks(folder: Path, *, solutions: bool = False) -> list[Notebook]:
    """The notebooks of ``folder`` in course order, followed by those of ``folder/solutions`` when asked for.

    Raises ValueError for an ``.ipynb`` whose name is not ``NN_lower_case.ipynb``, and for two with one number.
    """
    found = [_notebook(path, False) for path in sorted(folder.glob("*.ipynb"))]
    _check_unique(found)
    if solutions:
        found += [_notebook(path, True) for path in sorted((folder / "solutions").glob("*.ipynb"))]
    return found


def select(notebooks: Sequence[Notebook], wanted: Iterable[str]) -> list[Notebook]:
    """Those that ``wanted`` names: a number (``5``, ``05``), a name (``05_sequential_packing``), a stem or a file.

    The course's order is kept. Raises ValueError listing what exists when one name matches nothing.
    """
    chosen: set[Path] = set()
    for name in wanted:
        key = Path(name).name.removesuffix(".ipynb")
        number = f"{int(key):02d}" if key.isascii() and key.isdigit() else None
        hits = [n for n in notebooks if key in (n.name, n.stem) or (number is not None and n.number == number)]
        if not hits:
            exists = ", ".join(n.name for n in notebooks if not n.is_solution) or "none yet"
            raise ValueError(f"no notebook {name!r}; there are: {exists}")
        chosen.update(hit.path for hit in hits)
    return [n for n in notebooks if n.path in chosen]


def read(path: Path) -> NotebookNode:
    """The notebook as nbformat 4. Raises ValueError naming the file when it is not one."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:
        raise ValueError(f"{path.name}: not a readable notebook ({error})") from error


def parse_header(source: str) -> Header:
    """Read the fixed form of a notebook's first cell.

    ``# NN Title`` / ``> question`` / ``NN minutes · needs: NN, NN · next: NN``, one blank line between them; links
    around the numbers are allowed. Raises ValueError naming the line that differs and what was expected.
    """
    lines = [_LINK.sub(r"\1", line).strip() for line in source.splitlines() if line.strip()]
    if len(lines) != 3:
        raise ValueError(f"the first cell has {len(lines)} lines of text; expected 3: title, question, facts")
    title, facts = _TITLE.fullmatch(lines[0]), _FACTS.fullmatch(lines[2])
    if not title:
        raise ValueError(f"the title is {lines[0]!r}; expected '# NN Title'")
    if not lines[1].startswith("> ") or not lines[1].endswith("?"):
        raise ValueError(f"the second line is {lines[1]!r}; expected '> a question?'")
    if not facts:
        raise ValueError(f"the third line is {lines[2]!r}; expected 'NN minutes · needs: NN, NN · next: NN'")
    needs = _numbers("needs", facts["needs"])
    following = _numbers("next", facts["next"])
    if len(following) > 1:
        raise ValueError(f"next: {facts['next']!r}; expected one number or 'nothing'")
    return Header(
        title["number"],
        title["title"],
        lines[1].removeprefix("> "),
        int(facts["minutes"]),
        needs,
        following[0] if following else None,
    )


def _numbers(field: str, text: str) -> tuple[str, ...]:
    text = text.strip()
    if text == "nothing":
        return ()
    numbers = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"\d{2}", number) for number in numbers):
        raise ValueError(f"{field}: {text!r}; expected two-digit numbers separated by commas, or 'nothing'")
    return numbers


def _notebook(path: Path, is_solution: bool) -> Notebook:
    match = _FILE.fullmatch(path.name)
    if not match:
        raise ValueError(f"{path.name}: a notebook is called NN_lower_case_name.ipynb")
    return Notebook(path, match["number"], match["stem"], is_solution)


def _check_unique(notebooks: Sequence[Notebook]) -> None:
    seen: dict[str, Notebook] = {}
    for notebook in notebooks:
        if notebook.number in seen:
            raise ValueError(f"{seen[notebook.number]} and {notebook} have the same number; rename one")
        seen[notebook.number] = notebook
