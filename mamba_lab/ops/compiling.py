"""One run of a compiler: its command line, what it says when it fails, the library it leaves in the cache."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from mamba_lab.ops import cache
from mamba_lab.ops.native_sources import parts
from mamba_lab.ops.toolchain import (
    CXX_REMEDY,
    NVCC_REMEDY,
    TORCH_TARGET,
    Compiler,
    NativeUnavailable,
    torch_folder,
)

log = logging.getLogger("mamba_lab")

COMPILE_SECONDS = 600
SHOWN_LINES = 40


@dataclass(frozen=True)
class Built:
    """A library in the cache: where it lies, whether this call compiled it, and the seconds that took."""

    path: Path
    compiled: bool
    seconds: float


def title_of(name: str, device: str) -> str:
    """How a message calls a library."""
    return f"the {'CUDA' if device == 'cuda' else 'C++'} library {name!r}"


def compile_command(compiler: Compiler, source: Path, output: Path, device: str) -> list[str]:
    """The full command line.

    Include and library paths are here and not in the cache key: they differ between environments that may share. The
        library names libtorch_cpu without a path: PyTorch is in the process before any of our libraries is.
    """
    torch = torch_folder()
    through = "-Xcompiler=" if device == "cuda" else ""
    libraries = ["torch_cpu", *(["torch_cuda"] if device == "cuda" and any(torch.glob("lib/libtorch_cuda.*")) else [])]
    return [
        *compiler.command,
        *compiler.flags,
        f"-I{torch / 'include'}",
        f"-I{source.parent.parent}",
        # __FILE__ would carry this machine's paths into the library and into its error messages.
        *(f"{through}-ffile-prefix-map={folder}/=" for folder in (torch / "include", source.parent.parent)),
        *map(str, parts(source)),
        "-o",
        str(output),
        f"-L{torch / 'lib'}",
        *(f"-l{library}" for library in libraries),
    ]


def compile_library(source: Path, device: str, compiler: Compiler, library: Path, *, clean: bool) -> Built:
    """Compile ``source`` and its parts, and publish the result as ``library``.

    Args:
        clean: remove what killed builders of the same source left beside it; only while nobody else can be building.

    Raises:
        NativeUnavailable: the compiler failed, has gone, or ran longer than ``COMPILE_SECONDS``.
        OSError: the cache cannot be written.
    """
    title = title_of(source.stem, device)
    if library.exists():
        log.warning("%s in the cache is damaged or does not load: building it again", title)
    if clean:
        for path in library.parent.glob(f".{source.stem}-*.tmp*"):
            path.unlink(missing_ok=True)
    temporary = library.with_name(f".{source.stem}-{os.getpid()}-{os.urandom(4).hex()}.tmp.so")
    command = compile_command(compiler, source, temporary, device)
    log.info("compiling %s (once for this machine)", title)
    started = time.monotonic()
    remedy = CXX_REMEDY if device == "cpu" else NVCC_REMEDY
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
        )
        seconds = time.monotonic() - started
        if done.returncode != 0 or not temporary.exists():
            why = f"{compiler.program} failed with exit code {done.returncode}:\n{_shown(done.stdout)}"
            raise NativeUnavailable(title, why, remedy)
        note = {"compiler": compiler.label, "flags": list(compiler.flags), "target": TORCH_TARGET, "seconds": seconds}
        cache.publish(temporary, library, note)
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(title, f"{compiler.program} ran longer than {COMPILE_SECONDS} s", remedy) from None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == compiler.command[0]:
            raise NativeUnavailable(title, f"{compiler.program} has gone", remedy) from None
        raise
    finally:
        for path in (temporary, temporary.with_suffix(".note")):
            path.unlink(missing_ok=True)
    return Built(library, True, seconds)


def _shown(output: str) -> str:
    lines = output.strip().splitlines() or ["(it said nothing)"]
    rest = len(lines) - SHOWN_LINES
    return "\n".join(lines[:SHOWN_LINES] + ([f"... and {rest} more lines"] if rest > 0 else []))
