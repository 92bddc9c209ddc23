"""Checkpoints in their folder: put in place with one rename, found, cleaned up after a kill, removed when old.

Beside ``step-00000100`` there may be, for a moment or after a kill, hidden folders of one step:
``.step-00000100.<random>.tmp``, being written; ``.step-00000100.old``, to be replaced by a new one; and
``....gone``, being removed.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from .manifest import CheckpointError, NewerFormatError, folder_name, step_of, sync_folder, verify

__all__ = ["clean_up", "discard", "folder_name", "publish", "remove_old", "scan", "set_aside", "set_up", "sync_folder"]

log = logging.getLogger("mamba_lab")


def steps_in(root: Path) -> list[Path]:
    """The folders of steps, oldest first, whole or broken."""
    if not root.is_dir():
        return []
    return sorted((each for each in root.iterdir() if step_of(each) is not None), key=lambda each: step_of(each) or 0)


def scan(root: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that is whole, and each newer one that is not, with the reason.

    Raises:
        NewerFormatError: the newest one that is whole has a later format.
    """
    broken: list[tuple[Path, str]] = []
    for folder in reversed(steps_in(root)):
        if (reason := _why_broken(folder)) is None:
            return folder, broken
        broken.append((folder, reason))
    return None, broken


def set_up(root: Path, final: Path) -> Path:
    """A new hidden folder in which ``final`` is written."""
    root.mkdir(parents=True, exist_ok=True)
    # Not from Python's random module, whose numbers belong to the run; not tempfile, whose folders are their owner's.
    work = root / f".{final.name}.{os.urandom(4).hex()}.tmp"
    work.mkdir()
    return work


def publish(work: Path, final: Path) -> None:
    """Give a finished folder its name. An older one of that name is moved aside first, and removed afterwards."""
    old = final.with_name(f".{final.name}.old")
    if os.path.lexists(final):
        discard(old)
        os.rename(final, old)
    try:
        os.rename(work, final)
    except BaseException:
        if os.path.lexists(old):
            os.rename(old, final)
        raise
    sync_folder(final.parent)
    discard(old)


def clean_up(root: Path) -> None:
    """Remove what a killed process left; a folder that was about to be replaced gets its place back."""
    if not root.is_dir():
        return
    for hidden in sorted(root.glob(".step-*")):
        final = root / hidden.name.split(".")[1]
        if hidden.suffix == ".old" and step_of(final) is not None and not os.path.lexists(final):
            os.rename(hidden, final)
        elif hidden.suffix in (".tmp", ".old", ".gone"):
            discard(hidden)


def remove_old(root: Path, keep: int | None, newest: Path) -> None:
    """Remove the oldest checkpoints before ``newest``, so that ``keep`` are left with it.

    What cannot be removed stays, with a warning: it costs room and no result.
    """
    before = [each for each in steps_in(root) if (step_of(each) or 0) < (step_of(newest) or 0)]
    for folder in before[: 0 if keep is None else max(0, len(before) - (keep - 1))]:
        # First out of sight: removing a folder takes a while, and half a checkpoint is no checkpoint.
        gone = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.gone")
        try:
            os.rename(folder, gone)
        except OSError as error:
            log.warning("%s cannot be removed (%s): it stays", folder, error.strerror)
        else:
            discard(gone)


def set_aside(folder: Path) -> Path:
    """Rename a broken checkpoint, so that it neither counts nor stands in the way; nothing in it is touched."""
    number, place = 1, folder.with_name(f"broken-{folder.name}")
    while os.path.lexists(place):
        number += 1
        place = folder.with_name(f"broken-{folder.name}-{number}")
    os.rename(folder, place)
    return place


def _why_broken(folder: Path) -> str | None:
    try:
        verify(folder)
    except NewerFormatError:
        raise
    except CheckpointError as error:
        return str(error)
    return None


def discard(path: Path) -> None:
    """Remove a folder, a file or a link, if it is there; what cannot be removed stays, with a warning."""
    try:
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    except OSError as error:
        log.warning("%s cannot be removed (%s): it stays", path, error.strerror)
