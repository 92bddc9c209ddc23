"""Compile a source of ``csrc`` on first use, keep the library in a cache, load it.

A library is named after everything it depends on. The first part of its name digests what must match for it to run
here: its source and the headers, PyTorch's target version, and the processor. The second part digests how it was built:
compiler and flags. The installed PyTorch's own version is in neither, because a library built on the stable ABI for
2.10 runs on every later release. A machine without a compiler takes any library whose first part matches, so a shared
cache serves readers who have none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from pathlib import Path

from mamba_lab.ops import cache
from mamba_lab.ops.compiling import Built, compile_library, title_of
from mamba_lab.ops.native_sources import find_source, sources, texts
from mamba_lab.ops.toolchain import (
    OLDEST_GPU,
    TORCH_TARGET,
    Compiler,
    NativeUnavailable,
    find_cxx,
    find_nvcc,
    fits_gpus,
    gpu_architectures,
    processor,
)

__all__ = ["Built", "NativeUnavailable", "available", "build_library", "find_library", "load_library", "sources"]

log = logging.getLogger("mamba_lab")

SMALLEST_SPACE = 1 << 20
"""Bytes that a library and its note may take."""

_guard = threading.RLock()
_loaded: dict[tuple[str, str], Path] = {}
_failed: dict[str, NativeUnavailable] = {}
_said: set[tuple[str, str]] = set()


def load_library(name: str, device: str = "cpu") -> Path:
    """Load ``csrc/<device>/<name>`` into this process, compiling it when no cache holds it.

    Its functions appear in ``torch.ops.mamba_lab``. A second call returns at once, also after an edit of the source: a
    process cannot unload a library.

    Args:
        name: the source's name without suffix; its parts (``parts``) belong to it.
        device: "cpu" (C++) or "cuda" (CUDA C++; a library of its own, as its symbols are missing from a CPU-only
            PyTorch).

    Returns:
        The library's path in the cache.

    Raises:
        ValueError: ``csrc`` has no such source.
        NativeUnavailable: it cannot be built or loaded here. The message holds the compiler's own and one remedy.
    """
    with _guard:
        if (name, device) in _loaded:
            return _loaded[name, device]
        import torch

        if device == "cuda" and torch.version.cuda is None:
            why = f"PyTorch {torch.__version__} is a build without CUDA"
            raise NativeUnavailable(title_of(name, device), why, "install PyTorch's CUDA build (pip install torch)")
        if device == "cuda" and (old := [gpu for gpu in gpu_architectures() if int(gpu) < OLDEST_GPU]):
            why = f"a GPU has compute capability {old[0][:-1]}.{old[0][-1]}, not 8.0"
            raise NativeUnavailable(title_of(name, device), why, "use backend='reference'")
        built = build_library(name, device)
        try:
            torch.ops.load_library(str(built.path))
        except OSError as error:
            if built.compiled:
                raise _does_not_load(name, device, error) from error
            # Whole, yet not loadable: built where another C++ library was installed. This machine builds its own.
            log.warning(
                "%s in the cache does not load here (%s): building it again",
                title_of(name, device),
                error.__cause__ or error,
            )
            built = build_library(name, device, distrust=built.path)
            try:
                torch.ops.load_library(str(built.path))
            except OSError as second:
                raise _does_not_load(name, device, second) from second
        _loaded[name, device] = built.path
        return built.path


def is_loaded(name: str, device: str = "cpu") -> bool:
    """Whether ``load_library`` has loaded this library into this process."""
    return (name, device) in _loaded


def available(name: str, device: str = "cpu") -> bool:
    """Whether a library can be loaded here; builds it when needed. A False is logged once, with reason and remedy.

    Raises:
        ValueError: ``csrc`` has no such source.
    """
    try:
        load_library(name, device)
    except NativeUnavailable as error:
        if (name, device) not in _said:
            _said.add((name, device))
            log.warning("%s", error)
        return False
    return True


def build_library(
    name: str, device: str = "cpu", *, roots: list[Path] | None = None, distrust: Path | None = None
) -> Built:
    """Make sure that a cache holds a library, without loading it.

    Args:
        name, device: as in ``load_library``.
        roots: cache folders, first to last; ``cache_roots()`` when None. All are read, the first that can be written is
            written.
        distrust: a library to pass over, as if it were damaged.

    Raises:
        ValueError, NativeUnavailable: as in ``load_library``.
    """
    source = find_source(name, device)
    title = title_of(name, device)
    if os.name == "nt":
        raise NativeUnavailable(title, "native code is not built on Windows", "use the Windows Subsystem for Linux")
    roots = cache.cache_roots() if roots is None else roots
    found = find_library(name, device, roots=roots, distrust=distrust)
    if found is not None:
        return Built(found, False, 0.0)
    try:
        compiler = _find_compiler(device)
    except NativeUnavailable as error:
        raise NativeUnavailable(title, error.why, error.remedy) from None
    file_name = _file_name(source, device, compiler)
    if file_name in _failed:
        raise _failed[file_name]
    refusals: list[str] = []
    for root in roots:
        library = root / "native" / device / file_name
        try:
            file = cache.open_lock(library.with_name(f"{name}.lock"))
        except OSError as error:
            refusals.append(f"{root}: {error.strerror or error}")
            continue
        with file:
            try:
                with cache.locked(file, title) as held:
                    # Another process may have built it while this one waited.
                    if library != distrust and cache.is_whole(library):
                        return Built(library, False, 0.0)
                    return compile_library(source, device, compiler, library, clean=held)
            except TimeoutError as error:
                raise NativeUnavailable(title, f"{error}", "end that process, then try again") from None
            except OSError as error:
                raise NativeUnavailable(title, f"the cache {root} failed: {error}", _CACHE_REMEDY) from error
            except NativeUnavailable as error:
                if _full(root):
                    refusals.append(f"{root}: no space left")
                    continue
                _failed[file_name] = error
                raise
    why = "no cache can be written (" + "; ".join(refusals or ["there is no home folder"]) + ")"
    raise NativeUnavailable(title, why, _CACHE_REMEDY)


def _full(root: Path) -> bool:
    """Whether the disk behind a cache is full: then a compiler's failure says nothing about the compiler."""
    try:
        return shutil.disk_usage(root).free < SMALLEST_SPACE
    except OSError:
        return False


def find_library(
    name: str, device: str = "cpu", *, roots: list[Path] | None = None, distrust: Path | None = None
) -> Path | None:
    """A whole library that fits this machine and its compiler, or None. Without a compiler any compiler's will do.

    Args and errors as in ``build_library``; a missing compiler is no error here.
    """
    source = find_source(name, device)
    try:
        pattern = _file_name(source, device, _find_compiler(device))
    except NativeUnavailable:
        pattern = f"{name}-{_digest_what_must_match(source, device)}-*.so"
    for root in cache.cache_roots() if roots is None else roots:
        for library in sorted((root / "native" / device).glob(pattern)):
            if library != distrust and cache.is_whole(library) and _has_code_for_gpus(library, device):
                return library
    return None


def _has_code_for_gpus(library: Path, device: str) -> bool:
    return device == "cpu" or fits_gpus((cache.read_note(library) or {}).get("flags", ()))


def _find_compiler(device: str) -> Compiler:
    return find_cxx() if device == "cpu" else find_nvcc()


def _file_name(source: Path, device: str, compiler: Compiler) -> str:
    how = _digest(*compiler.command, compiler.version, *compiler.flags)
    return f"{source.stem}-{_digest_what_must_match(source, device)}-{how}.so"


_CACHE_REMEDY = "free space there, or set MAMBA_LAB_CACHE to a folder that you may write"


def _digest_what_must_match(source: Path, device: str) -> str:
    return _digest(*texts(source, device), device, TORCH_TARGET, processor())


def _digest(*parts: str) -> str:
    # Lengths go in too: otherwise ("ab", "c") and ("a", "bc") would share a digest.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _does_not_load(name: str, device: str, error: OSError) -> NativeUnavailable:
    remedy = "use a compiler of this system (unset CXX), or a PyTorch of 2.10 or later"
    return NativeUnavailable(
        title_of(name, device), f"it was built, and does not load: {error.__cause__ or error}", remedy
    )
