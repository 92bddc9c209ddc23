"""The command line: fast help, exit codes, and never a traceback for a user's mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mamba_lab import __version__, cli
from mamba_lab.ops.toolchain import NativeUnavailable

COMMANDS = ("doctor", "build", "my", "reset", "course", "pack", "bench")


def cli_process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mamba_lab.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_help_names_every_command_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"    {command} " in text
        assert f"mamba-lab {command}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    assert f"usage: mamba-lab {command}" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom mamba_lab import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'nbclient', 'nbformat', 'matplotlib', 'IPython'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"mamba-lab {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["doctor", "--class", "many"], "--class 30"),
        (["doctor", "--class", "0"], "--class 30"),
        (["doctor", "--class", "²"], "--class 30"),
        (["build", "--device", "tpu"], "tpu"),
        (["bench"], "name"),
        (["bench", "batching", "--repeats", "0"], "positive number"),
        (["bench", "nothing"], "nothing"),
    ],
)
def test_wrong_usage_is_answered_with_two_and_no_traceback(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ValueError("lengths[3] is -1"), 1, "mamba-lab: lengths[3] is -1"),
        (PermissionError(13, "Permission denied", "file"), 1, "Permission denied"),
        (NativeUnavailable("x", "no compiler", "get one"), 1, "Remedy: get one"),
        (ModuleNotFoundError("No module named 'nbclient'", name="nbclient"), 1, "pip install 'mamba-lab[course]'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, says: str
) -> None:
    def fails(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_doctor", fails)
    assert cli.main(["doctor"]) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), ModuleNotFoundError("No module named 'mamba_lab.x'", name="mamba_lab.x")]
)
def test_our_own_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_doctor", fails)
    with pytest.raises(type(error)):
        cli.main(["doctor"])


def test_doctor_runs_as_a_program() -> None:
    done = cli_process("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The course can run here." in done.stdout


def test_the_doctor_sees_a_machine_without_torch() -> None:
    """Where nothing is installed yet, the doctor must still answer: it is what says how to install."""
    script = (
        "import sys, runpy\nsys.modules['torch'] = sys.modules['numpy'] = None\n"
        "sys.argv = ['mamba-lab', 'doctor', '--class', '3']\nrunpy.run_module('mamba_lab.cli', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "Mend first: PyTorch" in done.stdout
    assert "A class of 3" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_listening_is_no_error(unbuffered: str) -> None:
    """`mamba-lab doctor | head`: here the reader is gone before the first word."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mamba_lab.cli", "build", "--device", "cpu"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, env=env)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_build_fills_a_cache_that_all_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mamba_lab.ops import native_sources

    csrc = tmp_path / "csrc"
    (csrc / "cpu").mkdir(parents=True)
    (csrc / "cpu" / "plain.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(native_sources, "csrc_dir", lambda: csrc)
    shared = tmp_path / "shared"
    mask = os.umask(0o077)  # a host that keeps its files to itself
    try:
        assert cli.main(["build", "--cache", str(shared), "--device", "cpu"]) == 0
    finally:
        os.umask(mask)
    out = capsys.readouterr().out
    assert "cpu/plain: compiled in" in out
    assert f"export MAMBA_LAB_CACHE={shared}" in out
    for path in (shared, *shared.rglob("*")):
        assert path.stat().st_mode & 0o044 == 0o044, path
        assert path.is_file() or path.stat().st_mode & 0o011 == 0o011, path
    assert cli.main(["build", "--cache", str(shared), "--device", "cpu"]) == 0
    assert "cpu/plain: was there already" in capsys.readouterr().out
    (csrc / "cpu" / "broken.cpp").write_text("int a = b;\n")
    assert cli.main(["build", "--cache", str(shared), "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert "cpu/plain: was there already" in captured.out  # one failure does not stop the others
    assert "cpu/broken: the C++ library 'broken' is not available" in captured.err


def test_closed_output_and_a_plain_terminal_are_no_error() -> None:
    closed = subprocess.run(
        f"{sys.executable} -m mamba_lab.cli my --help >&-", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in closed.stderr
    plain = subprocess.run(
        [sys.executable, "-m", "mamba_lab.cli", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert plain.returncode == 0, plain.stderr
    assert "PyTorch" in plain.stdout
