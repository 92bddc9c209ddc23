"""The cache of compiled libraries: where it lies, who may write, one builder at a time, nothing half-written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from mamba_lab.log import log_once

log = logging.getLogger("mamba_lab")

SAY_AFTER_SECONDS = 5.0
GIVE_UP_AFTER_SECONDS = 900.0


def cache_roots() -> list[Path]:
    """Folders to look in, first to last: the shared cache that ``MAMBA_LAB_CACHE`` names, then the private one.

    The private one is ``$XDG_CACHE_HOME/mamba_lab`` or ``~/.cache/mamba_lab``. Libraries are executed when they are
    loaded, so a shared cache should be writable only by people whom its readers trust.
    """
    shared = os.environ.get("MAMBA_LAB_CACHE", "").strip()
    private = private_root()
    roots = []
    if shared:
        try:
            roots.append(Path(shared).expanduser().absolute())
        except RuntimeError:
            log_once(
                logging.WARNING,
                f"MAMBA_LAB_CACHE names the home folder of a user that does not exist ({shared}): it is left out",
            )
        else:
            if (trouble := _unusable(roots[0])) is not None:
                log_once(
                    logging.WARNING,
                    f"MAMBA_LAB_CACHE cannot be used ({trouble}): libraries come from the private cache",
                )
                roots.clear()
    return roots + ([private] if private is not None and private not in roots else [])


def _unusable(root: Path) -> str | None:
    """Why a cache can be neither read nor made, or None. A folder that can only be read is usable."""
    try:
        if root.exists() and not root.is_dir():
            return "it is no folder"
        if root.is_dir():
            next(root.iterdir(), None)
    except OSError as error:
        return error.strerror or str(error)
    return None


def private_root() -> Path | None:
    """This user's own cache, or None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    if base and Path(base).is_absolute():  # the XDG specification: relative paths are to be ignored
        return Path(base) / "mamba_lab"
    try:
        return Path.home() / ".cache" / "mamba_lab"
    except RuntimeError:
        return None


def is_whole(library: Path) -> bool:
    """Whether a library is there and is, byte for byte, what its builder wrote (its note holds the SHA-256)."""
    note = read_note(library)
    try:
        return note is not None and digest(library) == note.get("sha256")
    except OSError:
        return False


def read_note(library: Path) -> dict[str, Any] | None:
    """What the builder wrote down beside a library, or None."""
    try:
        note = json.loads(_note_path(library).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def publish(temporary: Path, library: Path, note: dict[str, Any]) -> None:
    """Put a finished library in its place. A reader sees the old state or the new one, never half of one.

    The note goes first: a crash between the two leaves a library that does not match its note, which counts as damaged
        and is rebuilt.
    """
    note = {**note, "sha256": digest(temporary)}
    with temporary.open("rb") as file:
        os.fsync(file.fileno())  # without it, a power cut can leave the new name with old or empty contents
    scratch = temporary.with_suffix(".note")
    scratch.write_text(json.dumps(note, indent=1), encoding="utf-8")
    os.replace(scratch, _note_path(library))
    os.replace(temporary, library)


def _note_path(library: Path) -> Path:
    return library.with_name(library.name + ".json")


def open_lock(path: Path) -> TextIO:
    """Open a lock file for writing, with its folders. OSError means that this cache cannot be written.

    Trying is the only honest test: permission bits say nothing to root, on a read-only mount or on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")
    try:
        # An old lock file may be open for writing in a folder that takes no new file.
        probe = path.with_name(f".{path.stem}.{os.getpid()}.probe")
        probe.touch()
        probe.unlink()
    except OSError:
        file.close()
        raise
    return file


def is_writable(root: Path) -> bool:
    """Whether a library could be written into this cache."""
    path = root / "native" / "probe.lock"
    try:
        open_lock(path).close()
        path.unlink()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def locked(file: TextIO, what: str) -> Iterator[bool]:
    """Hold an exclusive lock on an open file. The system releases it when the holder dies, however it dies.

    Yields True when the lock is held, False on a file system without locks. There several processes may build the same
    library; each publishes it whole, so this costs time and nothing else.

    Raises:
        TimeoutError: another process held it for GIVE_UP_AFTER_SECONDS.
    """
    import fcntl

    started, said, held = time.monotonic(), False, True
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                log.warning("the cache's file system has no locks: %s may be built more than once", what)
                held = False
                break
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        waited = time.monotonic() - started
        if waited > GIVE_UP_AFTER_SECONDS:
            raise TimeoutError(f"another process has held the lock for {waited:.0f} s")
        if waited > SAY_AFTER_SECONDS and not said:
            log.warning("waiting for another process that is building %s", what)
            said = True
        time.sleep(0.05)
    try:
        yield held
    finally:
        if held:
            fcntl.flock(file, fcntl.LOCK_UN)
