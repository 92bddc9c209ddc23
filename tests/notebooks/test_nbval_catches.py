"""The check of the stored outputs can fail: a changed output, an error, a dead kernel, a cell that never ends."""

from __future__ import annotations

import re
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns
from nbval_run import SANITIZE, nbval


def stored(path: Path, *cells: tuple[str, str]) -> Path:
    """A notebook of cells (source, stored standard output)."""
    notebook = new_notebook()
    for count, (source, printed) in enumerate(cells, start=1):
        outputs = [new_output("stream", name="stdout", text=printed)] if printed else []
        notebook.cells.append(new_code_cell(source, execution_count=count, outputs=outputs))
    nbformat.write(notebook, path)
    return path


def test_a_notebook_that_holds_passes_with_fd_output_seen_and_minus_zero_forgiven(tmp_path: Path) -> None:
    # Fails when the kernel's environment has PYTEST_CURRENT_TEST: what C code prints would then be missing.
    # A thread of the kernel reads it, so the cell must not end before: a cell that does loses it now and then.
    below = (
        "import ctypes, time\n_ = ctypes.CDLL(None).puts(b'from C')\n_ = ctypes.CDLL(None).fflush(None)\ntime.sleep(1)"
    )
    verdict = nbval(stored(tmp_path / "good.ipynb", ("print(-0.0, -0.05)", "0.0 -0.05\n"), (below, "from C\n")))
    assert verdict.ok, verdict.report
    assert "2 passed" in verdict.report


def test_a_changed_output_a_new_one_and_an_error_fail(tmp_path: Path) -> None:
    verdict = nbval(stored(tmp_path / "bad.ipynb", ("print(3)", "4\n"), ("print(3)", ""), ("1 / 0", ""), ("1", "")))
    assert not verdict.ok
    assert "4 failed" in verdict.report
    assert "Cell outputs differ" in verdict.report
    assert "Unexpected output fields" in verdict.report
    assert "ZeroDivisionError" in verdict.report


def test_a_dead_kernel_fails_within_seconds(tmp_path: Path) -> None:
    started = time.monotonic()
    verdict = nbval(stored(tmp_path / "dead.ipynb", ("import os\nos._exit(1)", "")))
    assert not verdict.ok
    assert "the kernel died in this cell" in verdict.report
    assert time.monotonic() - started < 30


def test_an_endless_cell_fails_after_the_time_out(tmp_path: Path) -> None:
    verdict = nbval(stored(tmp_path / "endless.ipynb", ("while True:\n    pass", "")), cell_seconds=2)
    assert not verdict.ok
    assert "Timeout of 2 seconds" in verdict.report


def test_every_pair_of_the_sanitize_file_counts_and_compiles() -> None:
    # A pair with another form, or one whose trailing space an editor removed, would be ignored without a word.
    text = SANITIZE.read_text(encoding="utf-8")
    pairs = dict(get_sanitize_patterns(text))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 2 * len(pairs)
    for regex in pairs:
        re.compile(regex)
