"""Whether the Triton kernels can run here, and where the operators find them. Imports no Triton until a call."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from .toolchain import GPU_REMEDY, NativeUnavailable

COMPUTE_CAPABILITY = (8, 0)
"""The oldest GPUs that the kernels are compiled for in tests."""
C_REMEDY = "install a C compiler and Python's headers (Debian, Ubuntu: apt-get install gcc python3-dev)"

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether the kernels run in Triton's interpreter, on CPU tensors. Triton looks at the variable when it is imported."""

_ready = False


def missing(title: str) -> NativeUnavailable | None:
    """Why the kernels cannot run on this machine, or None. ``title`` names what is missing then."""
    global _ready
    if _ready:
        return None
    if importlib.util.find_spec("triton") is None:
        remedy = "pip install torch (its CUDA build brings Triton)" if torch.cuda.is_available() else GPU_REMEDY
        return NativeUnavailable(title, "Triton is not installed", remedy)
    if not INTERPRETED:
        if not torch.cuda.is_available():
            return NativeUnavailable(title, "there is no GPU", GPU_REMEDY)
        try:
            # Triton compiles a few lines of C when it first meets a GPU.
            importlib.import_module("triton.runtime").driver.active.get_current_device()
            capability = torch.cuda.get_device_capability()
        except Exception as error:
            why = f"Triton does not start: {(str(error).strip() or type(error).__name__).splitlines()[-1]}"
            return NativeUnavailable(title, why, C_REMEDY)
        if capability < COMPUTE_CAPABILITY:
            why = f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}, not 8.0"
            return NativeUnavailable(title, why, "use backend='reference'")
    _ready = True
    return None


def implement(operator: str) -> None:
    """Put the kernels under ``operator`` and its backward: for CUDA tensors, in the interpreter for CPU tensors too."""
    devices = ("cuda", "cpu") if INTERPRETED else ("cuda",)
    for name in (operator, f"{operator}_backward"):
        torch.library.impl(f"mamba_lab::{operator}_triton{name.removeprefix(operator)}", devices, _late(name))


def _late(name: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return getattr(importlib.import_module("mamba_lab.ops.triton"), name)(*args)

    return run
