"""A run's folder: what lies where in it, one run at a time, and from which checkpoint it goes on."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mamba_lab.models.weight_files import as_path
from mamba_lab.outputs import require_writable_folder

from .checkpoint import find_checkpoint
from .checkpoint_folders import clean_up, scan, set_aside, steps_in
from .manifest import CheckpointError, step_of

log = logging.getLogger("mamba_lab")

_LOCK = ".lock"


@dataclass(frozen=True)
class RunFolder:
    """Where a run writes, and from where it goes on.

    Attributes:
        path: the folder, absolute; None for a run that writes nothing.
        checkpoint: the checkpoint to go on from, every byte of it read; None: from the beginning.
    """

    path: Path | None
    checkpoint: Path | None

    @property
    def config(self) -> Path | None:
        """The file of the run's settings."""
        return None if self.path is None else self.path / "config.toml"


@contextmanager
def open_run(
    folder: str | os.PathLike[str] | None, *, resume: bool | str | os.PathLike[str] = False
) -> Iterator[RunFolder]:
    """A run's folder: made, found writable, cleaned of what a killed run left, and nobody else's until the block ends.

    Args:
        folder: ``training.output_dir``; None: nothing is written.
        resume: False starts a run, in a folder that has no checkpoint. True goes on from the newest checkpoint that is
            whole; one that is broken is renamed to ``broken-step-...``, with a warning. Without any checkpoint the run
            starts from the beginning: it was stopped before its first. A path goes on from that checkpoint, or from
            the newest of that run, which may be in another folder: then this one is a run of its own.

    Raises:
        CheckpointError: nothing to go on from, or a checkpoint in the way; the message says what to do.
        ValueError: a folder that takes no files, or in which another run is at work.
    """
    if folder is None:
        if resume is True:
            raise ValueError("resume needs training.output_dir, where the checkpoints are. Set it, or give a path.")
        yield RunFolder(None, None if resume is False else find_checkpoint(as_path(resume, "resume")))
        return
    path = as_path(folder, "training.output_dir").expanduser().absolute()
    require_writable_folder(path, "training.output_dir")
    with _alone(path):
        root = path / "checkpoints"
        require_writable_folder(root, "training.output_dir's folder of checkpoints")
        try:
            clean_up(root)
            checkpoint = _start(path, root, resume)
        except OSError as error:
            raise CheckpointError(
                f"{root} cannot be set in order ({error}). Name another training.output_dir."
            ) from error
        yield RunFolder(path, checkpoint)


def _start(path: Path, root: Path, resume: bool | str | os.PathLike[str]) -> Path | None:
    there = steps_in(root)
    if resume is False:
        if there:
            raise CheckpointError(
                f"training.output_dir {path} has a run already, up to {there[-1].name}. Go on with it (--resume), or "
                f"name another folder."
            )
        return None
    if resume is not True:
        return _given(path, root, as_path(resume, "resume"), there)
    whole, broken = scan(root)
    if whole is None and broken:
        reasons = "; ".join(reason for _, reason in broken)
        raise CheckpointError(
            f"no checkpoint in {root} is whole: {reasons} Remove that folder to start from the beginning."
        )
    _set_aside(broken)
    if whole is None:
        log.warning("%s has no checkpoint yet: the run starts from the beginning", path)
    return whole


def _given(path: Path, root: Path, resume: Path, there: list[Path]) -> Path:
    checkpoint = find_checkpoint(resume.expanduser()).resolve()
    if checkpoint.parent != root.resolve():
        if there:
            raise CheckpointError(
                f"training.output_dir {path} has a run already, up to {there[-1].name}. Go on with that one (--resume "
                f"without a path), or name another folder for what follows {checkpoint}."
            )
        return checkpoint
    newer = [each for each in there if (step_of(each) or 0) > (step_of(checkpoint) or 0)]
    if newer:
        raise CheckpointError(
            f"{path} has gone on after {checkpoint.name}, up to {newer[-1].name}. Name another training.output_dir, "
            f"to go another way from there, or move the newer checkpoints elsewhere."
        )
    return root / checkpoint.name


def _set_aside(broken: list[tuple[Path, str]]) -> None:
    for folder, reason in broken:
        log.warning("passed over: %s It is now called %s", reason, set_aside(folder).name)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the folder's lock. The system gives it up when this process ends, however it ends."""
    import fcntl

    # Not removed at the end: a second process may hold the file open and wait for a name that is gone.
    try:
        file = open(path / _LOCK, "ab+", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise ValueError(
            f"training.output_dir {path}: {_LOCK} cannot be opened ({error.strerror}). Is it another user's? Name "
            f"another folder."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                file.seek(0)
                holder = file.read().decode(errors="replace") or "unknown"
                raise ValueError(
                    f"another run is at work in training.output_dir {path} ({holder}). Wait for its end, stop it, or "
                    f"name another folder."
                ) from None
            log.warning("%s: the file system has no locks (%s); start no second run there", path, error.strerror)
        with contextlib.suppress(OSError):  # a full disk: the lock holds, whoever reads its name
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
