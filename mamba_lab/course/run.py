"""Execute one notebook on this interpreter's kernel, cell by cell, with seconds and the first failure kept."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

if TYPE_CHECKING:
    from nbformat import NotebookNode

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass
class CellFailure:
    """The cell that stopped a notebook. ``cell`` counts code cells from 1, as the execution counts do."""

    cell: int
    source: str
    reason: str
    traceback: str = ""

    def __str__(self) -> str:
        code = "\n".join(f"    {line}" for line in self.source.splitlines())
        parts = [f"cell {self.cell}: {self.reason}", code]
        if self.traceback:
            parts.append(self.traceback)
        return "\n\n".join(parts)


@dataclass
class Execution:
    """What came of one notebook: code cells in it and run, seconds of each cell that ran, the failure or None."""

    n_cells: int
    seconds: float = 0.0
    cell_seconds: list[float] = field(default_factory=list)
    failure: CellFailure | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def slowest(self) -> float:
        return max(self.cell_seconds, default=0.0)


class _ThisInterpreter(AsyncKernelManager):
    """A kernel of ``sys.executable``: a kernelspec that some other environment registered cannot take its place."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "mamba_lab.course.kernel", "-f", "{connection_file}"],
            display_name="Python 3 (ipykernel)",
            language="python",
        )


class _QuietClient(NotebookClient):
    """nbclient logs a dead kernel and a time-out as well as raising; the caller shows them once, with the cell."""

    def __init__(self, nb: NotebookNode, **kwargs: Any) -> None:
        super().__init__(nb, **kwargs)
        self.log = logging.getLogger("mamba_lab.course.nbclient")
        self.log.addHandler(logging.NullHandler())
        self.log.propagate = False


def kernel_environment() -> dict[str, str]:
    """This process's environment for a kernel.

    Without ``PYTEST_CURRENT_TEST``: ipykernel turns its capture of file-descriptor output off when it sees that name,
    and what C code prints would vanish. Thread settings stay as the user has them.
    """
    return {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that run: code cells with a source."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def execute(
    notebook: NotebookNode,
    folder: Path,
    *,
    timeout: float = 120.0,
    on_cell: Callable[[int], None] = lambda cell: None,
) -> Execution:
    """Run every code cell of ``notebook`` in place, in order, in ``folder``, and stop at the first that fails.

    ``timeout`` is in seconds and for each cell; ``on_cell(i)`` is called after the i-th code cell (from 1). Nothing
    of a cell's doing is raised: an error, a time-out and a dead kernel (noticed within about a second) come back as
    ``Execution.failure``. Cells after a failure keep no output.
    """
    cells = code_cells(notebook)
    place = {id(cell): i for i, cell in enumerate(notebook.cells)}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    result = Execution(n_cells=len(cells))
    client = _QuietClient(
        notebook,
        kernel_manager_class=_ThisInterpreter,
        timeout=timeout,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    started = time.perf_counter()
    index = 0
    # The kernel process's own messages go to a file: on the terminal they would tear the progress bar, and after a
    # death they are the explanation.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as messages:
        try:
            with client.setup_kernel(env=kernel_environment(), stderr=messages):
                for index, cell in enumerate(cells, start=1):
                    before = time.perf_counter()
                    try:
                        client.execute_cell(cell, place[id(cell)], execution_count=index)
                    finally:
                        result.cell_seconds.append(time.perf_counter() - before)
                    on_cell(index)
        except CellExecutionError as error:
            cell = cells[index - 1]
            result.failure = CellFailure(index, cell.source, f"{error.ename}: {error.evalue}", _traceback(cell))
        except CellTimeoutError:
            result.failure = CellFailure(index, cells[index - 1].source, f"ran longer than {timeout:g} s (--timeout)")
        except DeadKernelError:
            reason = "the kernel died (os._exit, a crash in native code, or no memory left)"
            result.failure = CellFailure(index, cells[index - 1].source, reason, _tail(messages))
        except RuntimeError as error:
            if index:
                raise
            result.failure = CellFailure(0, "", f"the kernel did not start: {error}", _tail(messages))
    result.seconds = time.perf_counter() - started
    return result


def _traceback(cell: NotebookNode) -> str:
    lines = [line for output in cell.outputs if output.output_type == "error" for line in output.traceback]
    return _ANSI.sub("", "\n".join(lines)).strip()


def _tail(messages: TextIO, n_lines: int = 20) -> str:
    """The last lines that the kernel process wrote about itself, without ipykernel's warnings and IPython's frames."""
    messages.seek(0)
    hidden = ("[IPKernelApp] WARNING", "Extension modules:")
    lines = [line for line in messages.read().splitlines() if not any(word in line for word in hidden)]
    lines = list(takewhile(lambda line: "IPython/core/" not in line, lines))
    return "\n".join(lines[-n_lines:]).strip()
