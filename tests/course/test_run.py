from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from nbformat.v4 import new_notebook
from notebook_samples import code, md

from mamba_lab.course.run import Execution, execute


def run(folder: Path, *sources: str, timeout: float = 60.0) -> tuple[Execution, list[str]]:
    """Execute cells; what each printed."""
    notebook = new_notebook(cells=[md("# Title"), *(code(source) for source in sources)])
    result = execute(notebook, folder, timeout=timeout)
    return result, ["".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells[1:]]


def test_the_kernel_is_this_interpreter_in_the_given_folder_with_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kernelspec of the same name that another environment registered must not be used.
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    spec.joinpath("kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert "PYTEST_CURRENT_TEST" in os.environ
    result, out = run(
        tmp_path,
        "import os, sys\nprint(sys.executable, os.getcwd())",
        "print(os.environ.get('PYTEST_CURRENT_TEST'), os.environ['OMP_NUM_THREADS'])",
        # What C code prints: lost when ipykernel sees PYTEST_CURRENT_TEST.
        "import ctypes\n_ = ctypes.CDLL(None).puts(b'from C')\n_ = ctypes.CDLL(None).fflush(None)",
    )
    assert result.ok, result.failure
    assert out == [f"{sys.executable} {tmp_path.resolve()}\n", "None 1\n", "from C\n"]
    assert result.n_cells == len(result.cell_seconds) == 3


def test_a_failing_cell_stops_the_notebook_and_is_shown(tmp_path: Path) -> None:
    result, out = run(tmp_path, "print(1)", "x = 3\nx / 0", "print(2)")
    assert not result.ok
    assert out == ["1\n", "", ""]
    assert len(result.cell_seconds) == 2
    shown = str(result.failure)
    assert shown.startswith("cell 2: ZeroDivisionError: division by zero\n\n    x = 3\n    x / 0\n")
    assert "----> 2 x / 0" in shown
    assert "\x1b" not in shown


def test_a_dead_kernel_is_noticed_within_seconds_and_says_what_it_said(tmp_path: Path) -> None:
    started = time.monotonic()
    result, _ = run(tmp_path, "print(1)", "import os\nos.write(2, b'last words')\nos._exit(1)", timeout=120)
    assert time.monotonic() - started < 20
    assert result.failure is not None
    assert result.failure.cell == 2
    assert "the kernel died" in str(result.failure)
    assert "os._exit(1)" in str(result.failure)


def test_a_crash_in_native_code_is_a_dead_kernel(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "import ctypes\nctypes.string_at(0)")
    assert "the kernel died" in str(result.failure)
    assert "Segmentation fault" in str(result.failure)  # faulthandler's message, from the kernel's own stderr
    assert "in string_at" in str(result.failure)
    assert "IPython" not in str(result.failure)


def test_a_cell_that_never_ends_is_stopped_after_the_time_out(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "while True:\n    pass", timeout=2)
    assert "cell 1: ran longer than 2 s" in str(result.failure)
    assert result.seconds < 15


def test_an_expected_exception_is_no_failure(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[code("1 / 0", tags=("raises-exception",)), code("print(1)")])
    assert execute(notebook, tmp_path).ok
    assert notebook.cells[0].outputs[0].ename == "ZeroDivisionError"
    assert [cell.execution_count for cell in notebook.cells] == [1, 2]
