"""The sources of the native code: what ``csrc`` has for each device, and all that one library is made of."""

from __future__ import annotations

from pathlib import Path

from mamba_lab.paths import csrc_dir

SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}
HEADERS = {".h", ".hpp", ".cuh", ".inc"}


def sources(device: str = "cpu") -> list[str]:
    """The names of all sources in ``csrc/<device>`` that are a library each, parts of another left out."""
    names = sorted(path.stem for path in (csrc_dir() / device).glob(f"*{_suffix(device)}"))
    return [name for name in names if not any(name.startswith(f"{other}_") for other in names)]


def parts(source: Path) -> list[Path]:
    """The files that make up the library of a source: itself and, beside it, those named after it and an underscore.

    ``ssm_pack.cu`` is the part that PyTorch calls; ``ssm_pack_forward.cu`` is one pass. They compile side by side.
    """
    return [source, *sorted(source.parent.glob(f"{source.stem}_*{source.suffix}"))]


def find_source(name: str, device: str) -> Path:
    """``csrc/<device>/<name>`` with its suffix.

    Raises:
        ValueError: it is not there.
    """
    path = csrc_dir() / device / f"{name}{_suffix(device)}"
    if not path.is_file():
        known = ", ".join(sources(device)) or "none"
        raise ValueError(f"name is {name!r}, and csrc/{device} has no {path.name}; its sources are: {known}")
    return path


def texts(source: Path, device: str) -> list[str]:
    """Names and contents of all files that a library depends on: its parts and the headers that they may include."""
    root = source.parent.parent
    others = {root / kind for kind in SUFFIXES if kind != device}  # a C++ library includes no header of a CUDA one
    headers = sorted(path for path in root.rglob("*") if path.suffix in HEADERS and path.is_file())
    found = []
    for path in [*parts(source), *(header for header in headers if not others & set(header.parents))]:
        found += [path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")]
    return found


def _suffix(device: str) -> str:
    if device not in SUFFIXES:
        raise ValueError(f"device is {device!r}; native code exists for {' and '.join(map(repr, SUFFIXES))}")
    return SUFFIXES[device]
