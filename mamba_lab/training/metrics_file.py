"""metrics.jsonl: one JSON object a line, whole lines only, and none that a resumed run takes back."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mamba_lab.log import logger

__all__ = ["FORMAT", "METRICS", "MetricsFile", "read_metrics"]

METRICS = "metrics.jsonl"
FORMAT = 1


class MetricsFile:
    """Appends lines. Each is on disk, as far as the system knows, when ``write`` returns: a kill loses none.

    A disk that is full does not end a run: lines that could not be written are counted, and their number is said.

    Args:
        path: the file, which need not exist.
        after_step: lines beyond this step are removed first, and so is a last line that a kill has cut.

    Attributes:
        lost: lines that could not be written.
    """

    def __init__(self, path: Path, after_step: int = 0) -> None:
        self.path, self.lost = path, 0
        try:
            _keep(path, after_step)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115
            self._end = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}.") from error

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append a line with ``kind``, ``step`` and ``values``; numbers that are not finite become null."""
        line = {"kind": kind, "format": FORMAT, "step": step, **_finite(dict(values))}
        data = memoryview(json.dumps(line, allow_nan=False).encode() + b"\n")
        try:
            self._file.truncate(self._end)  # what a full disk left of an earlier line
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
            self._end += len(data)
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                logger.warning(
                    "%s cannot be written (%s): training goes on without its lines", self.path, error.strerror
                )

    def close(self) -> None:
        """Close the file, without what is left of a line. May be called twice."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):  # the reader passes over a line that is no JSON
            self._file.truncate(self._end)
        self._file.close()
        if self.lost:
            logger.warning("%s lacks %d lines that could not be written", self.path, self.lost)


def read_metrics(path: str | os.PathLike[str], kind: str | None = "step") -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl as dictionaries, in order.

    Args:
        path: the file, or the run's folder.
        kind: only these lines: "step", "validation", "warning", "gradients" or "start"; None is all.

    Raises:
        ValueError: there is no such file, or it was written in another format.
    """
    file = Path(path)
    file = file / METRICS if file.is_dir() else file
    if not file.is_file():
        raise ValueError(f"{os.fspath(path)}: there is no {METRICS}. Give the folder that a run has written.")
    lines = [line for line, _ in _lines(file)]
    if other := [line["format"] for line in lines if line.get("format") != FORMAT]:
        raise ValueError(f"{file} is of format {other[0]}, and this version of mamba-lab reads {FORMAT}.")
    return [line for line in lines if kind is None or line["kind"] == kind]


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each whole line, read and as it stands. Passed over is what a kill or a full disk has cut."""
    for raw in path.read_bytes().splitlines(keepends=True):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if raw.endswith(b"\n") and isinstance(line, dict) and {"kind", "step"} <= line.keys():
            yield line, raw


def _keep(path: Path, after_step: int) -> None:
    """Leave the lines up to ``after_step`` in the file: written beside it and renamed."""
    if not path.exists():
        return
    kept = b"".join(raw for line, raw in _lines(path) if line["step"] <= after_step and after_step > 0)
    if len(kept) == path.stat().st_size:
        return
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
