"""Memory as PyTorch's allocator counts it, and as the system does."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch


def peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes that PyTorch's CPU allocator handed out and had not got back during ``step``."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _without_profiler_notes(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    results = profile.profiler.kineto_results
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = np.cumsum([change for _, change in changes], dtype=np.int64)
    return int(held.max(initial=0))


def process_peak_bytes(step: Callable[[], object]) -> int | None:
    """How far the process grew at most during ``step``; None where the system does not tell (it is Linux that does).

    It means something in a process's first large step only: later ones reuse what the first one left.
    """
    before = process_bytes("VmRSS") if reset_peak() else None
    step()
    peak = process_bytes("VmHWM")
    return None if before is None or peak is None else peak - before


def process_bytes(what: str) -> int | None:
    """Bytes of this process, now (VmRSS) or at most since the last reset (VmHWM); None where Linux does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), None)


def reset_peak() -> bool:
    """Count VmHWM from here on. False where the system cannot."""
    # Without this, what importing PyTorch took for a moment would hide what a million lengths take.
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _without_profiler_notes() -> Iterator[None]:
    """Hold back what PyTorch 2.13's profiler writes at every start and stop; all other lines come afterwards."""
    try:
        saved = os.dup(2)
    except OSError:  # closed by the caller (2>&-)
        yield
        return
    with tempfile.TemporaryFile() as held:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not line.startswith(b"USDT:"):
                    os.write(2, line)
