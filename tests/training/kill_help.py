"""Processes to kill. Run as a program: each line of JSON on its input is work for a new process, a copy of this one.

A copy has PyTorch imported and warm, so that it costs milliseconds. One thread only: others would not be copied.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
from run_help import Run, config, documents, run

from mamba_lab.training import checkpoint, manifest
from mamba_lab.training.loop import train


class Forks:
    """The program, from outside."""

    def __enter__(self) -> Forks:
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def start(self, work: str, *arguments: Any) -> int:
        """The id of a new process that is at this work."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps([work, *arguments]) + "\n")
        return self._line()

    def join(self) -> int:
        """How the process that was started last has ended: 0, 1 or minus a signal's number."""
        return self._line()

    def _line(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


class KillAt:
    """Kills this process at the n-th moment: before, half-way in or after a call of what is watched."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def watch(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self()
            found = real(*args, **kwargs)
            self()
            return found

        setattr(owner, name, watched)

    def halve(self, owner: Any, name: str, place: int) -> None:
        """``name`` writes a file whose path is its argument number ``place``: half of the file is a moment too."""
        real = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            if self.left == 0:
                path = Path(args[place])
                os.truncate(path, path.stat().st_size // 2)
            self()

        setattr(owner, name, watched)


def save_and_die(folder: str, moment: int) -> None:
    """Step 2 once more, in the place of what is there, and step 3, which removes step 1."""
    kill = KillAt(moment)
    for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
        kill.watch(os, name)
    kill.halve(checkpoint, "save_file", 1)
    kill.halve(checkpoint, "write_text", 0)
    kill.halve(manifest, "write_text", 0)
    for step in (2, 3):
        READY[0].save(Path(folder), step, keep=2, counters={"attempt": 2})


def train_on(folder: str, settings: dict[str, Any]) -> None:
    """Train, or go on training, in ``folder/part``."""
    there = Path(folder)
    train(config(there, there / "part", **settings), documents=documents(), resume=True)


READY: list[Run] = []
WORK = {each.__name__: each for each in (save_and_die, train_on)}


def serve() -> None:
    torch.set_num_threads(1)
    READY.append(Run())
    with tempfile.TemporaryDirectory() as warm:
        run(config(Path(warm), Path(warm) / "run", training={"max_steps": 2}))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            try:
                WORK[name](*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)  # PyTorch takes its time to say goodbye


if __name__ == "__main__":
    serve()
