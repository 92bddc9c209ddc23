"""Is a checkpoint whole? A list of its files with sizes and SHA-256, written last, says so."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_CHUNK = 1 << 20


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, found or used here. The message names file, reason and remedy."""


class NewerFormatError(CheckpointError):
    """A whole checkpoint that a later version wrote: nothing is broken, and nothing may be passed over."""


def folder_name(step: int) -> str:
    """The name of a step's folder. Eight digits: names in their order are steps in their order."""
    return f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """The step in a folder's name, or None for another name."""
    found = _NAME.fullmatch(folder.name)
    return None if found is None else int(found[1])


def write_manifest(folder: Path, step: int, files: Iterable[str], made_by: dict[str, Any]) -> None:
    """List ``files``, each on the disk by then, and bring the list itself to the disk.

    Args:
        step: optimiser steps that were done.
        files: their names in ``folder``.
        made_by: versions and machine, for the reader and for a warning on another machine.
    """
    listed = {}
    for name in files:
        with open(folder / name, "rb") as file:
            listed[name] = {"bytes": os.fstat(file.fileno()).st_size, "sha256": _digest(file)}
            os.fsync(file.fileno())
    body = {"format": FORMAT, "step": step, "made_by": made_by, "files": listed}
    write_text(folder / MANIFEST, json.dumps(body | {"check": _check(body)}, indent=1))


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are, byte for byte, those that were written. Reads every byte once.

    Raises:
        NewerFormatError: whole, but of a later format.
        CheckpointError: no folder; a file that is missing, cut, changed or not readable; another step's folder.
    """
    body = read_manifest(folder)
    for name, entry in body["files"].items():
        size = _size(folder / name)
        if size != entry["bytes"]:
            raise CheckpointError(f"{folder}: {name} has {size} bytes, expected {entry['bytes']}: it was cut.")
    for name, entry in body["files"].items():
        try:
            with open(folder / name, "rb") as file:
                same = _digest(file) == entry["sha256"]
        except OSError as error:
            raise CheckpointError(f"{folder}: {name} cannot be read ({error.strerror}).") from error
        if not same:
            raise CheckpointError(f"{folder}: {name} is not what was written: its SHA-256 differs.")
    return body


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest alone, checked against itself; the files that it lists are not looked at.

    Raises:
        NewerFormatError, CheckpointError: as ``verify``.
    """
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint {folder}. Give the folder of one, or of a run.")
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {MANIFEST}: it is no checkpoint, or was not written to its end."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{folder}: {MANIFEST} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError:
        raise CheckpointError(f"{folder}: {MANIFEST} is damaged.") from None
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    # Every format has "check" and "format", so that a later one is told apart from a damaged one.
    if not isinstance(body, dict) or body.pop("check", None) != _check(body):
        raise CheckpointError(f"{folder}: {MANIFEST} is damaged.")
    if body["format"] != FORMAT:
        raise NewerFormatError(
            f"{folder} has format {body['format']}, and this version of mamba-lab reads format {FORMAT}. "
            f"Use the version that wrote it ({body.get('made_by')})."
        )
    if step_of(folder) not in (None, body["step"]):
        raise CheckpointError(f"{folder} holds step {body['step']}: was it renamed?")
    return body


def write_text(path: Path, text: str) -> None:
    """Write a file and bring it to the disk."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in ``folder`` to the disk: without it a power cut can take back a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems sync files only
        pass
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path.parent}: {path.name} is not there ({error.strerror}).") from error


def _digest(file: Any) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


def _check(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
