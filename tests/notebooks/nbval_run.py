"""Run nbval over one notebook, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SANITIZE = HERE / "sanitize.cfg"
CELL_SECONDS = 120
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("*.ipynb"))


@dataclass(frozen=True)
class Verdict:
    ok: bool
    report: str


def nbval(notebook: Path, *, cell_seconds: float = CELL_SECONDS) -> Verdict:
    """Execute ``notebook`` anew and compare with what is stored in it. ``report`` is nbval's own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), environment.get("PYTHONPATH")]))
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "nbval_kernel", "-p", "nbval.plugin", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(notebook.parent), "-q", "--color=no", "--tb=short", "--maxfail=5"]
    command += ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={cell_seconds:g}"]
    command += ["--nbval-sanitize-with", str(SANITIZE), str(notebook)]
    done = subprocess.run(command, env=environment, cwd=notebook.parent, capture_output=True, text=True)
    return Verdict(done.returncode == 0, done.stdout + done.stderr)
