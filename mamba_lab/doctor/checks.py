"""The checks of one machine. No row names a folder of this machine: notebook 00 stores the table."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from mamba_lab import machine
from mamba_lab.doctor.table import Report, Row
from mamba_lab.machine import version_of
from mamba_lab.ops import backends
from mamba_lab.ops.backends import BackendStatus
from mamba_lab.ops.cache import cache_roots, is_writable, private_root
from mamba_lab.ops.toolchain import NativeUnavailable, find_cxx, find_nvcc
from mamba_lab.paths import checkout_root, data_dir

# The same bounds as in pyproject.toml; a test compares them.
PYTHON_FROM, PYTHON_BELOW = (3, 10), (3, 14)
TORCH_FROM, TORCH_BELOW = (2, 10), (2, 14)
TORCH_REMEDY = "pip install 'torch>=2.10,<2.14'"
PEERS = {
    "mamba-ssm": "conda env create -f environment-peers.yml (needs a GPU)",
    "causal-conv1d": "conda env create -f environment-peers.yml (needs a GPU)",
    "mambapy": "pip install 'mamba-lab[peers]'",
    "trl": "pip install 'mamba-lab[peers]'",
    "numba": "pip install 'mamba-lab[peers]'",
    "transformers": "pip install transformers",
}


def report() -> Report:
    """Everything about this machine that the course depends on.

    Native libraries are built and loaded to find out, so a first call may take seconds.
    """
    states = backends()
    rows = [_python(), _torch(), *_packages(), _data(), _cpu(), _gpu(), _compiler(), _nvcc(), _triton()]
    rows += [_backend(state) for state in states]
    rows += [_cache(), *(_peer(name, remedy) for name, remedy in PEERS.items())]
    broken = [row.part for row in rows if row.state == "broken"]
    if broken:
        verdict = f"The course cannot run here yet. Mend first: {', '.join(broken)}."
    else:
        notes = sum(row.state == "note" for row in rows)
        verdict = "The course can run here." + (f" {notes} notes: it runs without these." if notes else "")
    return Report("mamba-lab doctor", [_hide_folders(row) for row in rows], verdict)


def one_line() -> str:
    """The environment in one line, for the first cell of a notebook."""
    states = {state.name: state for state in backends()}
    python = ".".join(map(str, sys.version_info[:2]))
    version = version_of("torch")
    parts = [f"Python {python}", f"torch {'.'.join(map(str, _numbers(version)))}" if version else "no torch"]
    cores = machine.n_cores()
    gpus = machine.gpus() if states["cuda"].available or states["triton"].available else []
    parts.append(f"{gpus[0].name}" if gpus else f"CPU, {cores} core{'s' if cores != 1 else ''}")
    if states["cpu"].available:
        parts.append("C++ kernels ready")
    else:
        parts.append("no C++ kernels, Python instead (run: mamba-lab doctor)")
    return " · ".join(parts)


def _python() -> Row:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if PYTHON_FROM <= sys.version_info[:2] < PYTHON_BELOW:
        return Row("Python", "ok", found)
    return Row("Python", "broken", f"{found}; the course needs 3.10 to 3.13", "make lab PYTHON=python3.12")


def _torch() -> Row:
    version = version_of("torch")
    if version is None:
        return Row("PyTorch", "broken", "not installed", TORCH_REMEDY)
    try:
        import torch
    except Exception as error:  # a damaged installation raises OSError, ImportError, or worse from its libraries
        return Row("PyTorch", "broken", f"{version} does not import: {error}", f"{TORCH_REMEDY} --force-reinstall")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    found = f"{torch.__version__} ({build})"
    if not TORCH_FROM <= _numbers(version) < TORCH_BELOW:
        return Row("PyTorch", "broken", f"{found}; the course needs 2.10 to 2.13", TORCH_REMEDY)
    return Row("PyTorch", "ok", found)


def _packages() -> list[Row]:
    """Whether the extras `train` and `course` are installed, read from this package's own metadata."""
    try:
        wanted = metadata.requires("mamba-lab") or []
    except metadata.PackageNotFoundError:
        return [Row("packages", "note", "mamba-lab runs from a folder, not installed", "pip install -e '.[course]'")]
    rows = []
    for extra in ("train", "course"):
        names = [_name(line) for line in wanted if _belongs(line, extra)]
        missing = [name for name in names if name != "mamba-lab" and version_of(name) is None]
        if missing:
            remedy = (
                f"pip install {'-e ' if checkout_root() else ''}'{'.' if checkout_root() else 'mamba-lab'}[course]'"
            )
            rows.append(Row(f"extra {extra}", "broken", f"missing: {', '.join(missing)}", remedy))
        else:
            rows.append(Row(f"extra {extra}", "ok", f"{len(names)} packages"))
    return rows


def _belongs(requirement: str, extra: str) -> bool:
    """Whether ``extra`` asks for this here: a requirement may be for older Pythons, or for one system, only."""
    if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", requirement) is None:
        return False
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:  # the extra brings it, so without it the extra is not there whatever this says
        return True
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": extra})


def _data() -> Row:
    folder = data_dir()
    corpora = len(list((folder / "corpus").glob("*.xz")))
    there = {"tokenizer.json": (folder / "tokenizer.json").is_file(), "corpus/": corpora > 0}
    missing = [name for name, found in there.items() if not found]
    if missing:
        remedy = "git checkout -- data" if checkout_root() else "pip install --force-reinstall mamba-lab"
        return Row("data", "broken", f"data/ lacks {' and '.join(missing)}", remedy)
    return Row("data", "ok", f"tokenizer and {corpora} corpora")


def _cpu() -> Row:
    memory = machine.memory_mib()
    parts = [machine.cpu_model(), f"{machine.n_cores()} cores for this process"]
    if memory:
        parts.append(f"{memory[0] / 1024:.1f} GiB memory, {memory[1] / 1024:.1f} free")
    if memory and memory[1] < 2048:
        return Row("processor", "note", ", ".join(parts), "close other programs: a notebook needs up to 2 GiB")
    return Row("processor", "ok", ", ".join(parts))


def _gpu() -> Row:
    gpus = machine.gpus()
    try:
        import torch

        cuda, usable = torch.version.cuda, torch.cuda.is_available()
    except Exception:  # the row of PyTorch says why
        cuda, usable = None, False
    shown = "; ".join(f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, driver {gpu.driver}" for gpu in gpus)
    if usable:
        return Row("GPU", "ok", shown or torch.cuda.get_device_name())
    if not gpus:
        return Row("GPU", "note", "none: everything runs on the processor")
    if cuda is None:
        remedy = f"pip install --force-reinstall {TORCH_REMEDY.removeprefix('pip install ')}"
        return Row("GPU", "note", f"{shown}; PyTorch is a build without CUDA and does not see it", remedy)
    remedy = f"install a driver for CUDA {cuda}"
    return Row("GPU", "note", f"{shown}; PyTorch for CUDA {cuda} cannot use it", remedy)


def _compiler() -> Row:
    try:
        return Row("C++ compiler", "ok", find_cxx().label)
    except NativeUnavailable as error:
        return Row("C++ compiler", "note", error.why, error.remedy)


def _nvcc() -> Row:
    try:
        return Row("nvcc", "ok", find_nvcc().label)
    except NativeUnavailable as error:
        return Row("nvcc", "note", error.why, error.remedy if machine.gpus() else "not needed without a GPU")


def _triton() -> Row:
    version = version_of("triton")
    if version is None or importlib.util.find_spec("triton") is None:
        return Row("Triton", "note", "not installed", "comes with PyTorch's CUDA build; not needed without a GPU")
    return Row("Triton", "ok", version)


def _backend(state: BackendStatus) -> Row:
    found = _shortened(state.why)
    return Row(f"backend {state.name}", "ok" if state.available else "note", found, state.remedy)


def _cache() -> Row:
    roots = cache_roots()
    shown, writable = [], False
    for root in roots:
        if is_writable(root):
            can, writable = "writable", True
        else:
            can = "read only" if root.is_dir() else "cannot be made"
        count = len(list((root / "native").glob("*/*.so")))
        shown.append(f"{_cache_name(root)} ({can}, {count} librar{'y' if count == 1 else 'ies'})")
    found = "; ".join(shown) or "no home folder"
    if writable:
        return Row("cache", "ok", found)
    return Row("cache", "note", found, "set MAMBA_LAB_CACHE to a folder that you may write")


def _cache_name(root: Path) -> str:
    if root != private_root():
        return "MAMBA_LAB_CACHE"
    return "XDG_CACHE_HOME/mamba_lab" if os.environ.get("XDG_CACHE_HOME") else "~/.cache/mamba_lab"


def _peer(name: str, remedy: str) -> Row:
    version = version_of(name)
    if version is None:
        return Row(f"peer {name}", "note", "absent; only comparisons need it", remedy)
    return Row(f"peer {name}", "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return found.group().lower() if found else requirement


def _shortened(text: str) -> str:
    lines = text.strip().splitlines()
    error = next((line for line in lines[1:] if "error" in line.lower()), "")
    return " ".join(part for part in (lines[0], error) if part) if lines else ""


def _hide_folders(row: Row) -> Row:
    return Row(row.part, row.state, _without_folders(row.found), _without_folders(row.remedy))


def _without_folders(text: str) -> str:
    """Replace the folders of an absolute path by an ellipsis: the file's name says enough in a table."""
    return re.sub(r"(?<![\w.~/-])/(?:[^\s/:;,()'\"]+/)+", "…/", text)
