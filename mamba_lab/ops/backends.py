"""What each backend of the operators needs, and whether this machine has it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import metadata

from mamba_lab.ops import build
from mamba_lab.ops.toolchain import GPU_REMEDY, NativeUnavailable, find_cxx, find_nvcc

NAMES = ("reference", "cpu", "triton", "cuda")
OPERATORS = ("conv1d_pack", "ssm_pack")


@dataclass(frozen=True)
class BackendStatus:
    """One backend's state.

    Attributes:
        name: "reference", "cpu", "triton" or "cuda".
        available: whether this machine can build and run its code.
        why: what it found, or what is missing.
        remedy: how to add it; empty when there is nothing to do.
        operators: those of ``conv1d_pack`` and ``ssm_pack`` that it runs here.
    """

    name: str
    available: bool
    why: str
    remedy: str = ""
    operators: tuple[str, ...] = ()


def backends() -> list[BackendStatus]:
    """The state of every backend, slowest first. Native libraries are built and loaded to find out: seconds, once."""
    try:
        import torch
    except (ImportError, OSError) as error:
        remedy = "pip install 'torch>=2.10,<2.14'"
        return [BackendStatus(n, False, f"PyTorch does not import: {error}", remedy) for n in NAMES]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return [
        BackendStatus("reference", True, f"plain PyTorch {torch.__version__}", operators=OPERATORS),
        _native("cpu"),
        _triton(gpu),
        _cuda(gpu, torch.version.cuda),
    ]


def _native(device: str) -> BackendStatus:
    names = build.sources(device)
    try:
        for name in names:
            build.load_library(name, device)
        if not names:  # nothing to try it on: the compiler is all there is to see
            label = (find_cxx() if device == "cpu" else find_nvcc()).label
            return BackendStatus(device, True, f"{label}; no kernels yet")
    except NativeUnavailable as error:
        return BackendStatus(device, False, error.why, error.remedy)
    count = f"{len(names)} librar{'y' if len(names) == 1 else 'ies'} ready"
    operators = tuple(name for name in OPERATORS if name in names)
    return BackendStatus(device, True, f"{count}: {', '.join(names)}", operators=operators)


def _triton(gpu: str | None) -> BackendStatus:
    from . import _triton_ops

    missing = _triton_ops.missing("the Triton backend")
    if missing is not None:
        installed = "" if importlib.util.find_spec("triton") is None else f"Triton {metadata.version('triton')}: "
        return BackendStatus("triton", False, installed + missing.why, missing.remedy)
    where = "its interpreter, on CPU tensors" if _triton_ops.INTERPRETED else gpu
    return BackendStatus("triton", True, f"Triton {metadata.version('triton')} on {where}", operators=OPERATORS)


def _cuda(gpu: str | None, torch_cuda: str | None) -> BackendStatus:
    if torch_cuda is None:
        try:
            found = f"; {find_nvcc().label}, for compiling only"
        except NativeUnavailable:
            found = ""
        return BackendStatus("cuda", False, f"PyTorch is a build without CUDA{found}", GPU_REMEDY)
    if gpu is None:
        remedy = f"update the NVIDIA driver to one for CUDA {torch_cuda}, or use the cpu backend"
        return BackendStatus("cuda", False, f"PyTorch is built for CUDA {torch_cuda} and sees no GPU", remedy)
    return _native("cuda")
