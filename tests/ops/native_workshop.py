"""A csrc of the tests' own, a private cache, and a compiler that counts how often it compiles."""

from __future__ import annotations

import shutil
import stat
import textwrap
from pathlib import Path

PLAIN = 'extern "C" int answer() { return 42; }\n'
# Puts half a library where the compiler was told to, then sleeps: what a kill or a time-out finds.
STALL = 'for a in "$@"; do case "$a" in *.tmp.so) echo half > "$a" ;; esac; done; exec sleep 300'
BROKEN = 'extern "C" int answer() { return fortytwo; }\n'


class Workshop:
    """One folder with sources, a private cache and a counting compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.csrc = folder / "csrc"
        self.home = folder / "home"
        self.private = self.home / "mamba_lab"
        self.counter = folder / "compilations"
        (self.csrc / "cpu").mkdir(parents=True)
        (self.csrc / "cuda").mkdir()
        self.write("plain", PLAIN)

    def write(self, name: str, text: str) -> Path:
        path = self.csrc / "cpu" / f"{name}.cpp"
        path.write_text(text)
        return path

    def compiler(self, before: str = "", program: str | None = None) -> str:
        """A CXX that notes each compilation (not the questions for version and flags), then runs the real one."""
        real = program or next(p for p in map(shutil.which, ("g++", "clang++", "c++")) if p)
        script = self.folder / "counting-cxx"
        script.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            case "$*" in *-shared*) echo compiled >> '{self.counter}'; {before or ":"} ;; esac
            exec '{real}' "$@"
            """)
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return str(script)

    @property
    def compilations(self) -> int:
        return len(self.counter.read_text().splitlines()) if self.counter.exists() else 0

    def libraries(self, root: Path) -> list[Path]:
        return sorted((root / "native" / "cpu").glob("*.so"))
