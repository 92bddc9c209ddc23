"""`mamba-lab build`: compile all native code at once, for oneself or for a class."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path

from mamba_lab.ops.build import build_library, sources
from mamba_lab.ops.toolchain import NativeUnavailable


def run(cache: Path | None = None, device: str | None = None) -> int:
    """Compile every source of ``csrc`` and print one line for each.

    Args:
        cache: a cache to fill for others to read; the usual ones when None. It is made readable for everyone.
        device: "cpu" or "cuda"; None is cpu, and cuda where PyTorch is a CUDA build.

    Returns:
        0, or 1 when a library could not be built.
    """
    roots = None if cache is None else [cache.expanduser().absolute()]
    failed = 0
    for kind in [device] if device else ["cpu", *(["cuda"] if _torch_has_cuda() else [])]:
        names = sources(kind)
        if not names:
            print(f"{kind}: no sources")
        for name in names:
            try:
                built = build_library(name, kind, roots=roots)
            except NativeUnavailable as error:
                print(f"{kind}/{name}: {error}", file=sys.stderr)
                failed += 1
                continue
            print(
                f"{kind}/{name}: " + (f"compiled in {built.seconds:.1f} s" if built.compiled else "was there already")
            )
    if roots is not None and not failed:
        _open_for_reading(roots[0])
        print(f"Readers set: export MAMBA_LAB_CACHE={roots[0]}")
    return 1 if failed else 0


def _open_for_reading(root: Path) -> None:
    # A host with a strict umask would otherwise share a cache that nobody can read.
    for path in (root, *root.rglob("*")):
        mode = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
        if path.is_dir():
            mode |= stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
        try:
            path.chmod(path.stat().st_mode | mode)
        except OSError as error:
            print(f"{path.name} cannot be opened for other readers: {error.strerror}", file=sys.stderr)


def _torch_has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.version.cuda is not None
