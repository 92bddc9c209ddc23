"""Find the compilers of this machine and say exactly what they are: every part of it belongs to a build's cache key."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# PyTorch 2.10, the oldest supported release. Code built for it runs on every later one, whichever release's headers it
# was built with.
TORCH_TARGET = "0x020a000000000000"
DEFINES = (f"-DTORCH_TARGET_VERSION={TORCH_TARGET}", "-DTORCH_STABLE_ONLY")
CXX_CANDIDATES = ("g++", "clang++", "c++")
CXX_REMEDY = "install a C++20 compiler (Debian, Ubuntu: apt-get install g++), or set CXX to one"
OLDEST_GPU = 80
"""Compute capability 8.0, the oldest that the CUDA kernels are written for."""
GPU_REMEDY = "needs an NVIDIA GPU; the cpu backend does the same work here"
NVCC_REMEDY = "install the CUDA toolkit, or set CUDA_HOME to its folder"


class NativeUnavailable(RuntimeError):
    """A native library cannot be built or loaded here.

    Attributes:
        why: what is missing or failed, with the compiler's own output when there is one.
        remedy: the one thing that mends it.
    """

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what} is not available: {why}\nRemedy: {remedy}")
        self.what, self.why, self.remedy = what, why, remedy

    def __reduce__(self) -> tuple[type[NativeUnavailable], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.remedy)  # crosses process boundaries (data loader workers)


@dataclass(frozen=True)
class Compiler:
    """A compiler found on this machine.

    Attributes:
        command: the program and any fixed arguments (``CXX="ccache g++"`` gives two words).
        version: what ``--version`` says, all of it.
        flags: the flags it takes here, without include and library paths.
    """

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]

    @property
    def program(self) -> str:
        """The compiler's name without its path."""
        return Path(self.command[0]).name

    @property
    def label(self) -> str:
        """Program name and first line of its version, without any path."""
        lines = [line.strip() for line in self.version.splitlines() if line.strip()]
        line = next((line for line in lines if "release" in line), lines[0] if lines else "unknown version")
        return line if line.startswith(self.program) else f"{self.program}: {line}"


def torch_folder() -> Path:
    """The folder of the installed torch package, found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NativeUnavailable("native code", "PyTorch is not installed", "pip install 'torch>=2.10,<2.14'")
    return Path(spec.origin).parent


def find_cxx() -> Compiler:
    """The C++ compiler: ``CXX`` when it is set, otherwise the first of g++, clang++, c++.

    Raises:
        NativeUnavailable: none is there, or the one that ``CXX`` names is not.
    """
    return _cxx(os.environ.get("CXX", "").strip(), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _cxx(asked: str, path: str) -> Compiler:
    command = _resolve(asked, path) if asked else None
    if asked and command is None:
        raise NativeUnavailable("C++", f"CXX is {asked!r}, and there is no such program", f"unset CXX, or {CXX_REMEDY}")
    if command is None:
        found = (shutil.which(name, path=path) for name in CXX_CANDIDATES)
        first = next((name for name in found if name), None)
        if first is None:
            raise NativeUnavailable(
                "C++", f"no C++ compiler found (looked for {', '.join(CXX_CANDIDATES)})", CXX_REMEDY
            )
        command = (first,)
    flags = ["-std=c++20", "-O3", "-fPIC", "-shared", "-ffp-contract=off", *DEFINES]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    if _accepts(command, "-march=native"):
        flags.append("-march=native")
    return Compiler(command, _version(command, CXX_REMEDY), tuple(flags))


def find_nvcc() -> Compiler:
    """The CUDA compiler: ``CUDA_HOME``'s, the one on the path, or the one in /usr/local/cuda.

    The code is for the GPUs that ``TORCH_CUDA_ARCH_LIST`` names, otherwise for those of this machine, otherwise for
    sm_90.

    Raises:
        NativeUnavailable: there is none.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""
    return _nvcc(home, os.environ.get("PATH", ""), os.environ.get("TORCH_CUDA_ARCH_LIST", ""))


@functools.lru_cache(maxsize=8)
def _nvcc(home: str, path: str, architectures: str) -> Compiler:
    folders = [str(Path(home) / "bin")] if home else [path, "/usr/local/cuda/bin"]
    program = next((found for folder in folders if (found := shutil.which("nvcc", path=folder))), None)
    if program is None:
        where = f"CUDA_HOME ({home})" if home else "the path and /usr/local/cuda"
        raise NativeUnavailable("CUDA", f"no nvcc in {where}", NVCC_REMEDY)
    flags = ["-std=c++20", "-O3", "--threads=0", "-Xcompiler=-fPIC", "-shared", "-DUSE_CUDA", *DEFINES]
    flags += [f"-gencode=arch=compute_{number},code=sm_{number}" for number in _architectures(architectures)]
    return Compiler((program,), _version((program,), NVCC_REMEDY), tuple(flags))


def _architectures(asked: str) -> list[str]:
    """Compute capabilities as nvcc writes them: "9.0;8.6+PTX" gives 90 and 86. This machine's GPUs are always there."""
    words = asked.replace(";", " ").replace(",", " ").split()
    numbers = {word.removesuffix("+PTX").replace(".", "") for word in words} | set(gpu_architectures())
    return sorted(numbers) or ["90"]


def gpu_architectures() -> list[str]:
    """The compute capabilities of this machine's GPUs, "90" for 9.0."""
    with contextlib.suppress(ImportError, OSError):  # the doctor asks for nvcc also where PyTorch is missing
        import torch

        found = (torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count()))
        return sorted({f"{major}{minor}" for major, minor in found})
    return []


def fits_gpus(flags: Iterable[str]) -> bool:
    """Whether what nvcc made with these flags runs on every GPU of this machine."""
    built = [found for flag in flags for found in re.findall(r"code=sm_(\d+)", flag)]
    return all(any(code[:-1] == gpu[:-1] and code <= gpu for code in built) for gpu in gpu_architectures())


def _resolve(asked: str, path: str) -> tuple[str, ...] | None:
    try:
        words = shlex.split(asked)
    except ValueError as error:
        raise NativeUnavailable("C++", f"CXX is {asked!r}, which cannot be read ({error})", "unset CXX") from None
    found = [shutil.which(words[0], path=path), *words[1:]] if words else []
    return tuple(word for word in found if word) if found and found[0] else None


def _accepts(command: tuple[str, ...], flag: str) -> bool:
    # Preprocessing nothing takes milliseconds. Some compilers for ARM and POWER refuse -march=native.
    try:
        done = subprocess.run([*command, flag, "-E", "-x", "c++", os.devnull], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _version(command: tuple[str, ...], remedy: str) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable("a compiler", f"{command[0]} does not run: {error}", remedy) from None
    # A broken compiler may fail here already. Its real message comes when it compiles, so this is no place to give up.
    return done.stdout.strip() or done.stderr.strip()


@functools.lru_cache(maxsize=1)
def processor() -> str:
    """What a build with ``-march=native`` depends on: system, C library, processor model and its features."""
    parts = [platform.system(), platform.machine(), _libc()]
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return "\n".join([*parts, platform.processor()])
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")
    seen: dict[str, str] = {}
    for line in text.splitlines():
        field, _, value = line.partition(":")
        if field.strip() in wanted:
            seen.setdefault(field.strip(), " ".join(sorted(value.split())))
    return "\n".join([*parts, *(f"{field}={seen[field]}" for field in wanted if field in seen)])


def _libc() -> str:
    # A library linked against a newer C library does not load on an older one: two containers of one host may differ.
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""
