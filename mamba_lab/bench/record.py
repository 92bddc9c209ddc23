"""Records of measurements: every speed figure of the course comes from one of these files, and names its machine."""

from __future__ import annotations

import datetime
import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mamba_lab import machine
from mamba_lab.ops.toolchain import NativeUnavailable, find_cxx
from mamba_lab.paths import checkout_root, data_dir

PACKAGES = (
    *("mamba-lab", "torch", "numpy", "tokenizers", "triton", "mamba-ssm", "causal-conv1d", "mambapy", "numba"),
    *("trl", "datasets", "pyarrow", "transformers"),
)
_TOLD = "MAMBA_LAB_COMMIT"


def write_record(
    name: str,
    payload: Mapping[str, Any],
    *,
    folder: Path | None = None,
    command: list[str] | None = None,
    circumstances: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``data/results/<name>.json`` and return its path.

    Beside the payload (under "results") a record holds the machine, the versions, the command, the date and the commit.

    Args:
        name: the file's name without suffix; letters, digits, ``-`` and ``_``.
        payload: what was measured, with every sample and its unit. Numpy arrays and numbers are turned into lists and
            numbers.
        folder: where to write instead of ``data/results``.
        command: what was run; ``sys.argv`` when None.
        circumstances: commit, machine and versions, found before; None looks for them, a second where GPUs are.

    Raises:
        ValueError: a name that is no file name; a value that JSON has no word for (NaN, an object), with its place; a
            text that gives away a folder, a user or the host's name.
    """
    record = {
        "name": name,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": _command(sys.argv if command is None else command),
        **(_circumstances() if circumstances is None else circumstances),
        "results": _plain(payload, "payload"),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _refuse_private(text)
    path = _path(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)  # a reader never sees half a record
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _circumstances() -> dict[str, Any]:
    """What a record says of where it was made: the commit, the machine and the versions."""
    return {**_commit(), "machine": machine_record(), "versions": _versions()}


Keep: TypeAlias = "Callable[[Mapping[str, Any]], object]"
"""What a measurement calls with all that it has by now: ``RecordInProgress.keep``."""


class RecordInProgress:
    """A long measurement's record, written again after each part: what stops the process then stops no more than it.

    Until ``finish`` it is called ``<name>-unfinished``.
    """

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name, self.folder, self.around = name, folder, _circumstances()

    def keep(self, payload: Mapping[str, Any]) -> None:
        """Write what there is by now."""
        write_record(f"{self.name}-unfinished", payload, folder=self.folder, circumstances=self.around)

    def finish(self, payload: Mapping[str, Any]) -> Path:
        """Write the record under its name, and return its path."""
        path = write_record(self.name, payload, folder=self.folder, circumstances=self.around)
        _path(f"{self.name}-unfinished", self.folder).unlink(missing_ok=True)
        return path


def read_record(name: str, *, folder: Path | None = None) -> dict[str, Any]:
    """Read a record.

    Raises:
        ValueError: there is no such record (the message lists those there are), or it is damaged.
    """
    path = _path(name, folder)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.json"))) or "none"
        raise ValueError(f"name is {name!r}, and there is no such record; records: {known}") from None
    except ValueError as error:
        raise ValueError(f"the record {name!r} is damaged ({error}); measure again: mamba-lab bench {name}") from None
    if not isinstance(record, dict) or "results" not in record:
        raise ValueError(f"the record {name!r} is damaged (no results); measure again: mamba-lab bench {name}")
    return record


def machine_record() -> dict[str, Any]:
    """The machine in words and numbers, without its name: processor, cores, threads, memory, system, GPUs."""
    import torch

    memory = machine.memory_mib()
    return {
        "cpu": machine.cpu_model(),
        "architecture": platform.machine(),
        "cores": machine.n_cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory[0] / 1024, 1) if memory else None,
        "system": platform.system(),
        "gpus": [
            {"name": gpu.name, "driver": gpu.driver, "memory_gib": round(gpu.memory_mib / 1024, 1)}
            for gpu in machine.gpus()
        ],
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    versions |= {name: version for name in PACKAGES if (version := machine.version_of(name))}
    try:
        versions["c++"] = find_cxx().label
    except NativeUnavailable:
        versions["c++"] = "none"
    return versions


def told_commit(commit: str) -> None:
    """Say which commit is measured, for a copy of the files that has no history.

    Raises:
        ValueError: what is no full commit.
    """
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise ValueError(f"commit is {commit!r}, expected the 40 hexadecimal digits of git rev-parse HEAD")
    os.environ[_TOLD] = commit


def _commit() -> dict[str, Any]:
    """The commit, and whether the files differ from it. Empty where neither history nor the environment tells."""
    told = os.environ.get(_TOLD)
    found = _commit_of_history()
    if told is None or found.get("commit") == told:
        return found
    if found:
        raise ValueError(f"the commit was given as {told}, and this checkout is at {found['commit']}")
    return {"commit": told, "commit_from": "the caller: these files have no history"}


def _commit_of_history() -> dict[str, Any]:
    root = checkout_root()
    if root is None or not (root / ".git").exists():  # or git would find a history further up, of something else
        return {}

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    # Earlier records in data/results may differ without changing what was measured.
    return {"commit": commit, "changed": bool(git("status", "--porcelain", "--", "mamba_lab", "csrc", "data/corpus"))}


def _command(words: list[str]) -> str:
    return " ".join(Path(word).name if os.sep in word else word for word in words)


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{place} is {value}; a record holds finite numbers, or None for what was not measured")
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise ValueError(f"{place} is a {type(value).__name__}; a record holds numbers, texts, lists and dictionaries")


def _refuse_private(text: str) -> None:
    home = str(Path.home())
    root = checkout_root()
    for private in (home, str(root) if root else "", sys.prefix, socket.gethostname()):
        # A host called "docs", or root's "/", would refuse honest words.
        if len(private) > 5 and private in text:
            raise ValueError(f"the record names {private!r}; leave folders and host names out of records")
    user = _user()
    if user and f"/{user}/" in text:
        raise ValueError(f"the record holds a folder of {user!r}; leave folders out of records")


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        return None


def _path(name: str, folder: Path | None) -> Path:
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise ValueError(f"name is {name!r}; use letters, digits, - and _")
    return (data_dir() / "results" if folder is None else folder) / f"{name}.json"
