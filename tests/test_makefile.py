"""The commands of the README as make would run them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def dry_run(target: str, tmp_path: Path, **variables: str) -> str:
    """What `make target` would run for a set-up that is still to be made."""
    settings = {"VENV": str(tmp_path / "venv"), "WHEELHOUSE": str(tmp_path / "wheels"), **variables}
    command = ["make", "--no-print-directory", "-n", target, *(f"{name}={value}" for name, value in settings.items())]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_set_up_is_one_venv_and_one_install_without_an_index(tmp_path: Path) -> None:
    text = dry_run("setup", tmp_path)
    assert text.count("-m venv") == 1
    (install,) = [line for line in text.splitlines() if "pip install" in line]
    assert "-e '.[course,dev]'" in install
    assert "index" not in install


def test_pip_args_are_passed_on(tmp_path: Path) -> None:
    assert "--extra-index-url somewhere" in dry_run("setup", tmp_path, PIP_ARGS="--extra-index-url somewhere")


def test_a_wheelhouse_is_used_and_nothing_else_asked(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    assert "--no-index" not in dry_run("setup", tmp_path), "an empty folder is no wheelhouse"
    (tmp_path / "wheels" / "a-1-py3-none-any.whl").touch()
    assert f"--no-index --find-links {tmp_path / 'wheels'}" in dry_run("setup", tmp_path)


def test_a_finished_set_up_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".ready").touch()
    assert "pip" not in dry_run("test", tmp_path)


def test_each_command_sets_up_first(tmp_path: Path) -> None:
    for target, runs in (
        ("lab", "bin/jupyter"),
        ("course", "bin/mamba-lab"),
        ("test", "-m pytest"),
        ("lint", "bin/ruff"),
    ):
        text = dry_run(target, tmp_path)
        assert 0 < text.find("pip install") < text.find(runs), target


def test_another_python_is_refused_with_the_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("""#!/bin/sh
exec python3 -c "import sys; sys.version_info = (3, 9, 0); exec(sys.argv[1])" "$2"
""")
    old.chmod(0o755)
    command = ["make", "setup", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "needs Python 3.10 to 3.13" in result.stderr
    assert "make setup PYTHON=python3.12" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_runs_the_tests_and_then_the_linters() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == ["make test", "make lint"]
    assert "set -euo pipefail" in lines
