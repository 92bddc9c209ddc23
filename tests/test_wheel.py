"""The wheel carries the C++ sources and the data, and works where no checkout is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CHILD = """
import sys
from pathlib import Path
target, checkout = Path(sys.argv[1]), Path(sys.argv[2])
# An editable installation lies in this environment too. Neither its path entry nor its import hook may help.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != checkout]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import mamba_lab, torch
assert target in Path(mamba_lab.__file__).parents, mamba_lab.__file__
from mamba_lab import paths
assert paths.checkout_root() is None
assert target in paths.data_dir().parents and target in paths.csrc_dir().parents
from mamba_lab.ops.build import load_library
library = load_library("token_budget")
order, offsets = torch.ops.mamba_lab.cut_token_budget(torch.tensor([3, 3, 3]), 6, 1.0, 8)
assert offsets.tolist() == [0, 2, 3]
from mamba_lab.tokenizer import load_tokenizer
tokenizer = load_tokenizer()
assert tokenizer.decode(tokenizer.encode("Wörter, words, 言葉")) == "Wörter, words, 言葉"
from mamba_lab.corpus import load_corpus
assert len(load_corpus("chat")) > 100
from mamba_lab.training import TrainConfig
assert TrainConfig.from_toml("tune-chat").data.teach == "assistant"
print("works elsewhere")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it: what is missing in one is missing in both."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_the_wheel_holds_all_that_is_read_at_run_time(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    package = {f"mamba_lab/{path.relative_to(ROOT / 'mamba_lab').as_posix()}" for path in _files(ROOT / "mamba_lab")}
    sources = {f"mamba_lab/_csrc/{path.relative_to(ROOT / 'csrc').as_posix()}" for path in _files(ROOT / "csrc")}
    data = {f"mamba_lab/_data/{path.relative_to(ROOT / 'data').as_posix()}" for path in _files(ROOT / "data")}
    configs = {f"mamba_lab/_configs/{path.name}" for path in _files(ROOT / "configs")}
    assert "mamba_lab/_configs/pretrain-docs.toml" in configs
    assert "mamba_lab/_csrc/cpu/token_budget.cpp" in sources
    assert "mamba_lab/_data/tokenizer.json" in data
    for expected in (package, sources, data, configs):
        assert expected <= names, sorted(expected - names)
    foreign = {name for name in names if not name.startswith(("mamba_lab/", "mamba_lab-"))}
    assert foreign == set()
    assert not [name for name in names if "__pycache__" in name or name.endswith((".so", ".pyc"))]


def test_the_wheel_is_for_any_python_and_small(built: tuple[Path, Path]) -> None:
    assert built[1].name.endswith("-py3-none-any.whl")
    assert built[1].stat().st_size < 20 * 2**20


def test_the_wheel_brings_the_licences_and_the_command(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
        entry = next(name for name in names if name.endswith("entry_points.txt"))
        assert "mamba-lab = mamba_lab.cli:main" in wheel.read(entry).decode()
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert len([name for name in names if "_data/corpus/LICENSE" in name]) == 3


def test_the_sdist_has_no_strays(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        tops = {Path(name).parts[1] for name in sdist.getnames() if len(Path(name).parts) > 1}
    assert tops <= {
        "mamba_lab",
        "configs",
        "csrc",
        "data",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }


def test_the_wheel_works_in_another_place(built: tuple[Path, Path], tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(target), str(built[1])], check=True, timeout=120)
    env = {**os.environ, "PYTHONPATH": str(target), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("MAMBA_LAB_CACHE", None)
    command = [sys.executable, "-c", CHILD, str(target), str(ROOT)]
    done = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "works elsewhere"
    assert list((tmp_path / "cache").rglob("token_budget-*.so"))
    assert list(elsewhere.iterdir()) == []


def _files(folder: Path) -> list[Path]:
    ignored = {".so", ".pyc"}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in ignored
    ]
