"""What this machine is and has, in words and numbers that name no path and no host."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver sees it; memory in MiB."""

    name: str
    driver: str
    memory_mib: int
    used_mib: int


@functools.lru_cache(maxsize=1)
def cpu_model() -> str:
    """The processor's name, for example "AMD EPYC 9655"."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            field, _, value = line.partition(":")
            if field.strip() in ("model name", "Model", "cpu model") and value.strip():
                return " ".join(value.split())
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
            if done.stdout.strip():
                return done.stdout.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def n_cores() -> int:
    """Cores that this process may use: its affinity and its container's quota, whichever is smaller."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_mib() -> tuple[int, int] | None:
    """Memory in MiB, (total, available), of the machine or of the container where that is less. None when unknown."""
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) // 1024
    if "MemTotal" in fields:
        total, available = fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0))
    else:
        try:
            total = available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
        except (AttributeError, ValueError, OSError):
            return None
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text()) // MIB
        used = int(Path("/sys/fs/cgroup/memory.current").read_text()) // MIB
        # Files that the container has read count as used, and the kernel gives them up when asked for memory.
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1]) // MIB
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def disk_free_mib(folder: Path) -> int | None:
    """Free space in MiB where a folder lies or will lie. None when unknown."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free // MIB
    return None


def version_of(distribution: str) -> str | None:
    """The installed version of a package, or None when it is absent. Nothing is imported."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def gpus() -> list[Gpu]:
    """The GPUs that the NVIDIA driver shows; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        with contextlib.suppress(ValueError):
            name, driver, total, used = (word.strip() for word in line.split(","))
            found.append(Gpu(name, driver, int(total), int(used)))
    return found
