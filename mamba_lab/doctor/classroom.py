"""Whether a class fits on one host, and what to do when it does not.

The assumptions are the constants below. Measured on Linux: without a GPU on Python 3.11 and PyTorch 2.13, with an H200
on Python 3.12 and PyTorch 2.11 for CUDA 13.0.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mamba_lab import machine
from mamba_lab.doctor.table import Report, Row
from mamba_lab.ops import build, cache
from mamba_lab.paths import checkout_root

# Open notebooks of one student. Each is a kernel, and stays one until it is shut down.
NOTEBOOKS_EACH = 4
# Private memory of a kernel that imported torch and mamba_lab, drew a plot and did a backward pass. Measured: 227.
KERNEL_MIB = 230
# The same with PyTorch's CUDA build after a matrix product on the GPU. Measured: 841, plus 60 for Jupyter and plots.
KERNEL_CUDA_MIB = 900
# The files of libraries that all kernels map, counted once. Measured: 328 resident minus 227 private.
SHARED_MIB = 100
# What a notebook holds at its peak beyond that (corpora, a model, batches, figures), and the share of a student's
# kernels that hold it at one time: one works, the others have finished or wait.
WORK_MIB = 500
WORKING_EACH = 1
# Private memory of one JupyterLab server. Measured: 78.
SERVER_MIB = 80
# GPU memory of one context, with cuBLAS and its workspace after a matrix product. Measured: 617 bare, 815 with them.
CONTEXT_MIB = 820
# GPU memory of a working notebook's tensors.
GPU_WORK_MIB = 1000
# One student's copies with outputs, pages and checkpoints of small models. The environment is shared by all.
STUDENT_DISK_MIB = 100
# What the host keeps for itself.
HOST_MIB = 1024


@dataclass(frozen=True)
class Host:
    """The figures of a host that decide; memory and disk in MiB, None when unknown."""

    cores: int
    memory: int | None
    disk: int | None
    gpu_memory: tuple[int, ...]
    cuda: bool


def this_host() -> Host:
    """This machine, as it is now: what is in use already does not count."""
    memory = machine.memory_mib()
    try:
        import torch

        cuda = torch.cuda.is_available()
    except Exception:  # the doctor's row of PyTorch says why
        cuda = False
    free = tuple(gpu.memory_mib - gpu.used_mib for gpu in machine.gpus()) if cuda else ()
    disk = machine.disk_free_mib(checkout_root() or Path.cwd())
    return Host(machine.n_cores(), memory[1] if memory else None, disk, free, cuda)


def class_report(students: int = 30, host: Host | None = None) -> Report:
    """Whether `students` with NOTEBOOKS_EACH open notebooks fit on a host (this one when None)."""
    host = host or this_host()
    fits: list[tuple[int, str]] = []
    rows = [_memory(students, host, fits)]
    if host.cuda:
        rows.append(_gpu_memory(students, host, fits))
    rows += [_disk(students, host, fits), _cores(students, host), _shared_cache()]
    number, limit = min(fits, default=(students, ""))
    if number >= students:
        verdict = f"A class of {students} fits."
        if limit:
            verdict += f" Up to {number} students would, then {limit} runs out."
    else:
        verdict = f"{number} of {students} students fit: {limit} is the limit."
    return Report(
        f"A class of {students}, {NOTEBOOKS_EACH} open notebooks each, one kernel per notebook", rows, verdict
    )


def _memory(students: int, host: Host, fits: list[tuple[int, str]]) -> Row:
    kernel = KERNEL_CUDA_MIB if host.cuda else KERNEL_MIB
    each = SERVER_MIB + NOTEBOOKS_EACH * kernel + WORKING_EACH * WORK_MIB
    if host.memory is None:
        return Row("memory", "note", f"unknown; {_gib(students * each)} are needed")
    number = max(0, host.memory - HOST_MIB - SHARED_MIB) // each
    fits.append((number, "memory"))
    need = HOST_MIB + SHARED_MIB + students * each
    found = (
        f"{_gib(need)} needed, {_gib(host.memory)} free. A student: {NOTEBOOKS_EACH} kernels of {kernel} MiB, "
        f"{WORK_MIB} MiB for the one that works, {SERVER_MIB} MiB for JupyterLab; {number} students fit"
    )
    if number >= students:
        return Row("memory", "ok", found)
    one = SERVER_MIB + kernel + WORKING_EACH * WORK_MIB
    fewer = max(0, host.memory - HOST_MIB - SHARED_MIB) // one
    remedy = f"shut kernels down after each notebook (Kernel > Shut Down): with one open notebook each {fewer} fit"
    return Row("memory", "broken", found, remedy)


def _gpu_memory(students: int, host: Host, fits: list[tuple[int, str]]) -> Row:
    each = NOTEBOOKS_EACH * CONTEXT_MIB + WORKING_EACH * GPU_WORK_MIB
    number = sum(free // each for free in host.gpu_memory)
    fits.append((number, "GPU memory"))
    found = (
        f"{_gib(students * each)} needed if every kernel touches the GPU, {_gib(sum(host.gpu_memory))} free on "
        f"{len(host.gpu_memory)} GPUs. A student: {NOTEBOOKS_EACH} contexts of {CONTEXT_MIB} MiB, {GPU_WORK_MIB} MiB "
        f"of tensors; {number} students fit"
    )
    if number >= students:
        return Row("GPU memory", "ok", found)
    remedy = "start JupyterLab with CUDA_VISIBLE_DEVICES= (empty) for notebooks that need no GPU, and shut kernels down"
    return Row("GPU memory", "broken", found, remedy)


def _disk(students: int, host: Host, fits: list[tuple[int, str]]) -> Row:
    need = students * STUDENT_DISK_MIB
    if host.disk is None:
        return Row("disk", "note", f"unknown; {_gib(need)} are needed")
    number = host.disk // STUDENT_DISK_MIB
    fits.append((number, "disk"))
    found = f"{_gib(need)} needed for my/ and its outputs, {_gib(host.disk)} free where the course lies"
    if number >= students:
        return Row("disk", "ok", found)
    return Row("disk", "broken", found, "free space, or put the students' folders on another disk")


def _cores(students: int, host: Host) -> Row:
    threads = max(1, host.cores // students)
    found = f"{host.cores} cores for {students} students"
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if host.cores * 4 < students:
        found += f": when all run a cell at once it takes about {students / host.cores:.0f} times as long"
    if asked.isdigit() and int(asked) <= threads:
        return Row("cores", "ok" if host.cores * 4 >= students else "note", f"{found}; OMP_NUM_THREADS={asked}")
    found += "; every kernel takes all cores by default, and timings taken then mean nothing"
    return Row("cores", "note", found, f"export OMP_NUM_THREADS={threads} before starting JupyterLab")


def _shared_cache() -> Row:
    shared = os.environ.get("MAMBA_LAB_CACHE", "").strip()
    remedy = "mamba-lab build --cache DIR, then export MAMBA_LAB_CACHE=DIR for everyone"
    if not shared:
        return Row("shared cache", "note", "none: every student's home compiles for itself", remedy)
    root = cache.cache_roots()[0]
    names = build.sources("cpu")
    missing = [name for name in names if build.find_library(name, "cpu", roots=[root]) is None]
    if missing:
        return Row("shared cache", "note", f"MAMBA_LAB_CACHE lacks {', '.join(missing)}", remedy)
    return Row("shared cache", "ok", f"MAMBA_LAB_CACHE holds all {len(names)} libraries")


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"
