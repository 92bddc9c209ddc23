"""`mamba-lab course`: every notebook in order on this machine, pages and a contents page, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from . import normalise
from .curriculum import CURRICULUM
from .html import PageError, PageLink, index_page, page
from .notebooks import Header, Notebook, parse_header, read
from .run import CellFailure, Execution, code_cells, execute

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from tqdm import tqdm

# The ledger, in seconds: what a cell and a notebook may take on two cores.
CELL_SECONDS = 20.0
NOTEBOOK_SECONDS = 40.0
LONGER = {"11": 120.0}


@dataclass
class Outcome:
    """One notebook of a run: ``execution`` is None when it was not reached."""

    notebook: Notebook
    header: Header | None
    execution: Execution | None = None
    page: Path | None = None

    @property
    def title(self) -> str:
        name = f"{self.header.number} {self.header.title}" if self.header else self.notebook.name
        return f"{name} (solutions)" if self.notebook.is_solution else name

    @property
    def ok(self) -> bool:
        return self.execution is not None and self.execution.ok

    @property
    def label(self) -> str:
        if self.execution is None:
            return "earlier run" if self.page else "not run"
        return f"ok, {self.execution.seconds:.0f} s" if self.ok else "failed"

    def warnings(self) -> list[str]:
        """What went over the ledger."""
        if self.execution is None:
            return []
        limit = LONGER.get(self.notebook.number, NOTEBOOK_SECONDS)
        cell_limit = LONGER.get(self.notebook.number, CELL_SECONDS)
        found = [
            f"cell {i} took {seconds:.0f} s, over {cell_limit:.0f} s"
            for i, seconds in enumerate(self.execution.cell_seconds, start=1)
            if seconds > cell_limit
        ]
        if self.execution.seconds > limit:
            found.append(f"the notebook took {self.execution.seconds:.0f} s, over {limit:.0f} s")
        return found


def prepare(notebooks: Sequence[Notebook]) -> list[Outcome]:
    """An outcome for each of ``notebooks``, none of them run yet."""
    return [Outcome(notebook, _header(notebook)) for notebook in notebooks]


def run_course(
    outcomes: Sequence[Outcome],
    output: Path,
    *,
    timeout: float = 120.0,
    in_place: bool = False,
    beside: Sequence[Notebook] = (),
    stream: TextIO | None = None,
) -> None:
    """Execute the notebooks of ``outcomes`` in order, fill the outcomes in, and stop after the first that fails.

    Each executed copy and its page go to ``output`` (solutions to ``output/solutions``) as soon as it has run, the
    contents page at the end, also after a failure or Ctrl-C. With ``in_place`` the stored outputs in the sources are
    replaced too, only when the notebook ran through; cells tagged ``gpu`` keep theirs on a machine without CUDA.
    ``beside`` are the course's other notebooks: not executed, but the contents page keeps their earlier pages.
    """
    others = prepare(beside)
    for outcome in others:
        outcome.page = _existing_page(outcome.notebook, output)
    everything = [*outcomes, *others]
    everything.sort(key=lambda outcome: (outcome.notebook.is_solution, outcome.notebook.number))
    output.mkdir(parents=True, exist_ok=True)
    try:
        _run_all(outcomes, everything, output, timeout, in_place, stream or sys.stderr)
    finally:
        rows = [_row(outcome, output) for outcome in everything]
        (output / "index.html").write_text(index_page(rows), encoding="utf-8")


def table(outcomes: Sequence[Outcome], *, ledger: bool = False) -> str:
    """The table at the end: notebook, cells run of cells, seconds, slowest cell, ok.

    With ``ledger`` also what went over the times that an author must keep; a reader's machine may be slower.
    """
    width = max([len(str(o.notebook)) for o in outcomes] + [8])
    lines = [f"{'notebook':<{width}}  {'cells':>7}  {'seconds':>7}  {'slowest':>7}  ok"]
    for outcome in outcomes:
        run = outcome.execution
        if run is None:
            lines.append(f"{outcome.notebook!s:<{width}}  {'':>7}  {'':>7}  {'':>7}  not run")
            continue
        cells = f"{len(run.cell_seconds)}/{run.n_cells}"
        verdict = "ok" if run.ok else "FAILED"
        lines.append(f"{outcome.notebook!s:<{width}}  {cells:>7}  {run.seconds:>7.1f}  {run.slowest:>7.1f}  {verdict}")
    done = [o.execution for o in outcomes if o.execution is not None]
    total = sum(run.seconds for run in done)
    cells = f"{sum(len(run.cell_seconds) for run in done)}/{sum(run.n_cells for run in done)}"
    lines.append(f"{'total':<{width}}  {cells:>7}  {total:>7.1f}  {max((r.slowest for r in done), default=0.0):>7.1f}")
    if ledger:
        lines += [f"warning: {outcome.notebook}: {warning}" for outcome in outcomes for warning in outcome.warnings()]
    return "\n".join(lines)


def _run_all(
    outcomes: Sequence[Outcome],
    everything: Sequence[Outcome],
    output: Path,
    timeout: float,
    in_place: bool,
    stream: TextIO,
) -> None:
    from tqdm import tqdm

    # A log file gets a line every ten seconds, a terminal a bar that moves.
    common = {"file": stream, "mininterval": 0.1 if stream.isatty() else 10.0, "dynamic_ncols": True}
    with tqdm(outcomes, desc="notebooks", unit="notebook", **common) as bar:
        for outcome in bar:
            name = outcome.notebook.name
            bar.set_postfix_str(name)
            notebook = read(outcome.notebook.path)
            stored = read(outcome.notebook.path)
            n_cells = len(code_cells(notebook))
            with tqdm(total=n_cells, desc=name, unit="cell", leave=False, position=1, **common) as cells:
                outcome.execution = execute(
                    notebook, outcome.notebook.path.parent, timeout=timeout, on_cell=partial(_advance, cells)
                )
            _write(outcome, notebook, output, _reachable(outcomes, everything))
            if not outcome.ok:
                return
            if in_place:
                store(notebook, stored, outcome.notebook.path)


def _advance(bar: tqdm[object], cell: int) -> None:
    bar.update(cell - bar.n)


def store(executed: NotebookNode, stored: NotebookNode, path: Path) -> None:
    """Replace the outputs in ``path`` by those of ``executed``, normalised.

    On a machine without CUDA a cell tagged ``gpu`` keeps the outputs it had in ``stored``: they come from a GPU.
    """
    if not _has_cuda():
        for new, old in zip(executed.cells, stored.cells, strict=True):
            if "gpu" in new.metadata.get("tags", []) and old.get("outputs"):
                new.outputs = old.outputs
    normalise.write(normalise.normalise(executed), path)


def _reachable(outcomes: Sequence[Outcome], everything: Sequence[Outcome]) -> list[Outcome]:
    """Those whose page exists or is about to: a link to any other would be broken."""
    running = {id(outcome) for outcome in outcomes}
    return [outcome for outcome in everything if id(outcome) in running or outcome.page is not None]


def _write(outcome: Outcome, notebook: NotebookNode, output: Path, reachable: Sequence[Outcome]) -> None:
    assert outcome.execution is not None
    folder = _folder(outcome.notebook, output)
    folder.mkdir(parents=True, exist_ok=True)
    normalise.write(notebook, folder / outcome.notebook.path.name)
    siblings = [o for o in reachable if o.notebook.is_solution == outcome.notebook.is_solution]
    place = siblings.index(outcome)
    try:
        html = page(
            notebook,
            outcome.title,
            previous=_link(siblings[place - 1]) if place else None,
            following=_link(siblings[place + 1]) if place + 1 < len(siblings) else None,
            index="../index.html" if outcome.notebook.is_solution else "index.html",
            known={o.notebook.number: _page_name(o.notebook) for o in siblings},
        )
    except PageError as error:
        outcome.execution.failure = outcome.execution.failure or CellFailure(0, "", f"its page: {error}")
        return
    outcome.page = folder / _page_name(outcome.notebook)
    outcome.page.write_text(html, encoding="utf-8")


def _folder(notebook: Notebook, output: Path) -> Path:
    return output / "solutions" if notebook.is_solution else output


def _existing_page(notebook: Notebook, output: Path) -> Path | None:
    page = _folder(notebook, output) / _page_name(notebook)
    return page if page.is_file() else None


def _page_name(notebook: Notebook) -> str:
    return f"{notebook.name}.html"


def _link(outcome: Outcome) -> PageLink:
    return PageLink(_page_name(outcome.notebook), outcome.title)


def _row(outcome: Outcome, output: Path) -> dict[str, object]:
    entry = next((e for e in CURRICULUM if e.number == outcome.notebook.number), None)
    header = outcome.header
    shown = None if outcome.notebook.is_solution else (header or entry)
    return {
        "number": outcome.notebook.number,
        "title": f"{outcome.notebook.stem.replace('_', ' ')} (solutions)" if shown is None else shown.title,
        "question": "" if shown is None else shown.question,
        "minutes": None if shown is None else shown.minutes,
        "href": outcome.page.relative_to(output).as_posix() if outcome.page else None,
        "state": "not-run" if outcome.execution is None else "ok" if outcome.ok else "failed",
        "label": outcome.label,
    }


def _header(notebook: Notebook) -> Header | None:
    """The first cell's facts; None when it has another form (the rules' business, not a reason not to run)."""
    cells = read(notebook.path).cells
    try:
        return parse_header(cells[0].source) if cells else None
    except ValueError:
        return None


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
