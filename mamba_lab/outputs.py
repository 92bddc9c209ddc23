"""Can a result be written? Asked before an hour of work, not after it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["require_writable_file", "require_writable_folder"]


def require_writable_file(path: Path, name: str) -> None:
    """Check that ``path`` can be written, now. Nothing is left there.

    Args:
        path: the file, which need not exist.
        name: the argument or option, for the message.

    Raises:
        ValueError: its folder does not exist or takes no files; it is a folder, a device, or may not be written.
    """
    if not path.parent.is_dir():
        raise ValueError(f"{name} is {path}: there is no folder {path.parent}. Make it first.")
    try:
        there = path.exists()
        if there and not path.is_file():
            raise ValueError(f"{name} is {path}, which is no file. Name a file in it.")
        if there and not os.access(path, os.W_OK):
            raise PermissionError(13, "the file may not be written")
        _try_folder(Path(os.path.realpath(path)).parent)
    except OSError as error:
        raise ValueError(f"{name} is {path}, which cannot be written: {error.strerror}. Name another place.") from error


def require_writable_folder(folder: Path, name: str) -> None:
    """Make ``folder`` where it does not exist, and check that it takes files.

    Raises:
        ValueError: it cannot be made, or takes none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _try_folder(folder)
    except OSError as error:
        raise ValueError(f"{name} is {folder}, which takes no files: {error.strerror}. Name another folder.") from error


def _try_folder(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp"):
        pass
