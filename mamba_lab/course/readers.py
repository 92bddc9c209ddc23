"""The reader's own copies: `mamba-lab my` makes them and never overwrites, `mamba-lab reset 05` restores one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .normalise import source_hash, without_outputs, write
from .notebooks import Notebook, read, select

if TYPE_CHECKING:
    from nbformat import NotebookNode

# Per copy, the hash of the notebook it was made from: tells an update of the course from the reader's own work.
RECORD = ".copied.json"


@dataclass
class CopyReport:
    """What ``copy_notebooks`` did, by the copies' names inside ``my/``."""

    copied: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    updated_upstream: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        if self.copied:
            lines.append(f"copied: {', '.join(self.copied)}")
        if self.kept:
            lines.append(f"kept yours: {', '.join(self.kept)}")
        lines += [
            f"{name} has changed in the course since your copy. `mamba-lab reset {_argument(name)}` takes the new "
            "one and keeps yours beside it."
            for name in self.updated_upstream
        ]
        return "\n".join(lines) or "no notebooks yet"


def copy_notebooks(notebooks: Sequence[Notebook], my: Path) -> CopyReport:
    """Copy each of ``notebooks`` that ``my`` lacks, without stored outputs; leave every existing file as it is.

    Raises NotADirectoryError when ``my`` is a file, ValueError naming the record when it cannot be read.
    """
    record = _read_record(my)
    report = CopyReport()
    for notebook in notebooks:
        name = str(notebook)
        source = read(notebook.path)
        current = source_hash(source)
        target = my / name
        if target.exists() or target.is_symlink():
            report.kept.append(name)
            if record.get(name, current) != current:
                report.updated_upstream.append(name)
            record.setdefault(name, current)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write(without_outputs(source), target)
        record[name] = current
        report.copied.append(name)
    if notebooks:
        _write_record(my, record)
    return report


def reset(notebooks: Sequence[Notebook], wanted: str, my: Path) -> list[tuple[str, str | None]]:
    """Restore the copies that ``wanted`` names (a number or a name) and keep the old ones beside them.

    Returns pairs (restored name, name under which the old one was kept or None when there was none to keep). Of a
    number with a solution only the notebook is restored, unless the solution was copied too. An untouched copy needs no
    keeping; any other is renamed to ``NN_name.kept-1.ipynb``, or the first free number after it. Raises ValueError
    listing what exists when ``wanted`` matches nothing.
    """
    chosen = [n for n in select(notebooks, [wanted]) if not n.is_solution or (my / str(n)).exists()]
    record = _read_record(my)
    done: list[tuple[str, str | None]] = []
    for notebook in chosen:
        name = str(notebook)
        target = my / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = read(notebook.path)
        kept = _keep(target) if target.exists() and not _is_untouched(target, source) else None
        record[name] = source_hash(source)
        write(without_outputs(source), target)
        done.append((name, None if kept is None else kept.relative_to(my).as_posix()))
    _write_record(my, record)
    return done


def _is_untouched(target: Path, source: NotebookNode) -> bool:
    """Whether a copy holds nothing of its reader: the course's cells, and no output."""
    try:
        copy = read(target)
    except (OSError, ValueError):
        return False
    return source_hash(copy) == source_hash(source) and not any(cell.get("outputs") for cell in copy.cells)


def _keep(target: Path) -> Path:
    number = 1
    while True:
        kept = target.with_name(f"{target.stem}.kept-{number}.ipynb")
        try:
            # A hard link fails when the name is taken: two resets at once cannot overwrite each other's copy.
            kept.hardlink_to(target)
        except FileExistsError:
            number += 1
            continue
        except OSError:  # a file system without hard links
            if kept.exists():
                number += 1
                continue
            target.rename(kept)
        return kept


def _argument(name: str) -> str:
    return Path(name).name[:2]


def _read_record(my: Path) -> dict[str, str]:
    if my.exists() and not my.is_dir():
        raise NotADirectoryError(f"{my} is a file; expected a folder for your copies (choose another with --dir)")
    path = my / RECORD
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}")
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read ({error}); delete it: your notebooks stay, only the notice of updates is lost once"
        ) from error
    return {str(key): str(value) for key, value in record.items()}


def _write_record(my: Path, record: dict[str, str]) -> None:
    my.mkdir(parents=True, exist_ok=True)
    temporary = my / f"{RECORD}.new"
    temporary.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n", encoding="utf-8")
    temporary.replace(my / RECORD)
