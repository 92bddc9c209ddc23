"""Plans on disk: one .npz file of plain arrays, readable with NumPy alone."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from ._checks import INT64_MAX, shown

FORMAT = 1
ARRAYS = ("offsets", "sequence", "start", "stop")
NUMBERS = ("format", "capacity", "dropped")


def write_plan(path: str | os.PathLike[str], values: dict[str, Any]) -> None:
    """Write the fields of a plan. A reader never sees half a file; a link stays, and the file it names is replaced.

    Raises:
        OSError: the file cannot be written. The message names ``path``.
        ValueError: ``path`` is no path, or a folder or device.
    """
    target = Path(os.path.realpath(_as_path(path)))
    if target.exists() and not target.is_file():
        raise ValueError(f"path is {shown(os.fspath(path))}, which is no file. Name the file in it: folder/plan.npz.")
    for name in ("capacity", "dropped"):
        if values[name] > INT64_MAX:
            raise ValueError(f"{name} is {values[name]}, above the int64 limit {INT64_MAX} of a plan's file.")
    stored: dict[str, Any] = {name: np.asarray(value) for name, value in values.items()}
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")  # short: the name itself may be as long as names can be
    try:
        with open(temporary, "xb") as file:
            np.savez(file, format=np.int64(FORMAT), **stored)
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_plan(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a plan, with the right names and of the right kind; what they say is not checked.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not what ``write_plan`` wrote, or ``path`` is no path.
    """
    path = _as_path(path)
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as stored:
                missing = [name for name in (*NUMBERS, *ARRAYS) if name not in stored]
                if missing:
                    raise ValueError(f"it has no {', '.join(missing)}")
                values: dict[str, Any] = {name: stored[name] for name in (*NUMBERS, *ARRAYS)}
            for name in NUMBERS:
                if values[name].shape != () or values[name].dtype != np.int64:
                    raise ValueError(f"{name} is {values[name].dtype} {list(values[name].shape)}, not one int64")
                values[name] = int(values[name])
            if (version := values.pop("format")) != FORMAT:
                raise ValueError(f"its format is {version}, and this release reads format {FORMAT}")
        except Exception as error:  # a damaged archive fails in a dozen ways, one for each layer of zip and npy
            raise unreadable(path, error) from error
    return values


def unreadable(path: str | os.PathLike[str], error: Exception) -> ValueError:
    """The error for a file that holds no plan."""
    why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return ValueError(
        f"{os.fspath(path)} is no plan that PackingPlan.save wrote: {why.rstrip('.')}. Make the plan again."
    )


def _as_path(path: object) -> str:
    """A path as text. A number would open whatever has that descriptor."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ValueError(f"path must be the name of a file, a str or a Path, got {shown(path)}.")
    return text
