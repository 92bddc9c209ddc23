"""Which backend runs a call: decided once, before it, so that its backward cannot run elsewhere."""

from __future__ import annotations

import logging

import torch

from mamba_lab.log import log_once

from . import _triton_ops, build
from .backends import NAMES
from .toolchain import NativeUnavailable

MOST = {"conv1d_pack": (8, "taps"), "ssm_pack": (256, "states")}
"""How far the CUDA kernels go: taps of a window, states of a channel."""
_no_cuda: dict[str, NativeUnavailable] = {}


def lacks(operator: str, dtype: torch.dtype, size: int) -> str:
    """What the CUDA kernels cannot do of a call, in words; empty when they can do all of it.

    Args:
        dtype: of x or u. size: W or N.
    """
    if dtype == torch.float64:
        return "float64"
    most, what = MOST[operator]
    return f"more than {most} {what}" if size > most else ""


def problem(operator: str, backend: str) -> NativeUnavailable | None:
    """Why ``operator`` cannot run on ``backend`` here, or None. A native library is built and loaded to find out."""
    if backend == "reference" or (backend != "triton" and build.is_loaded(operator, backend)):
        return None
    title = f"{operator} on backend {backend!r}"
    if backend == "triton":
        return _triton_ops.missing(title)
    if operator not in build.sources(backend):
        return NativeUnavailable(title, "there is no such kernel", "use backend='auto'")
    try:
        build.load_library(operator, backend)
    except NativeUnavailable as error:
        return error
    return None


def resolve(operator: str, backend: str, device: str, without_cuda: str = "") -> str:
    """The backend that runs ``operator`` on tensors of a device type; never one that ignores boundaries.

    Args:
        backend: "auto", or one of ``NAMES``.
        device: "cpu", "cuda", ...
        without_cuda: what ``lacks`` says of the call.

    Raises:
        ValueError: an unknown backend, or one that does not work on this device or on this call.
        NativeUnavailable: the backend asked for is not available; the message says how to add it.
    """
    if backend == "auto":
        return _fastest(operator, device, without_cuda)
    if backend not in NAMES:
        raise ValueError(f"{operator}: backend must be 'auto' or one of {', '.join(NAMES)}, got {backend!r}.")
    wanted = "cpu" if backend == "cpu" else "cuda"
    interpreted = backend == "triton" and device == "cpu" and _triton_ops.INTERPRETED
    if backend != "reference" and device != wanted and not interpreted:
        raise ValueError(
            f"{operator}: backend {backend!r} works on {wanted} tensors, these are on {device}. "
            f"Move them, or use backend='auto'."
        )
    if backend == "cuda" and without_cuda:
        raise ValueError(
            f"{operator}: backend 'cuda' does not do {without_cuda}. Use backend='auto' or 'triton' for that."
        )
    missing = problem(operator, backend)
    if missing is not None:
        raise missing
    return backend


# A compiler that traces the caller takes the answer as it is: looking for a library is nothing it could trace. This is
# the mark that torch.compiler.assume_constant_result sets; calling that would import the compiler, and Triton with it.
resolve._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _fastest(operator: str, device: str, without_cuda: str) -> str:
    if device == "cuda":
        if (no_cuda := _why_not_cuda(operator, without_cuda)) is None:
            log_once(logging.INFO, f"{operator} on the GPU runs in CUDA C++ (backend 'cuda').")
            return "cuda"
        missing = problem(operator, "triton")
        if missing is None:
            log_once(logging.INFO, f"{operator} on the GPU runs in Triton (backend 'triton'). {no_cuda}")
            return "triton"
        log_once(logging.WARNING, f"{operator} on the GPU runs on the slow reference. {no_cuda}\n{missing}")
        return "reference"
    if device != "cpu":
        log_once(logging.WARNING, f"{operator} on {device} runs on the slow reference: there is no other kernel.")
        return "reference"
    missing = problem(operator, "cpu")
    if missing is None:
        log_once(logging.INFO, f"{operator} on the CPU runs in C++ (backend 'cpu').")
        return "cpu"
    log_once(logging.WARNING, f"{operator} runs on the reference, hundreds of times slower than in C++. {missing}")
    return "reference"


def _why_not_cuda(operator: str, without_cuda: str) -> str | None:
    if without_cuda:
        return f"Backend 'cuda' does not do {without_cuda}."
    if operator not in _no_cuda:  # a search that failed is not repeated at every call
        missing = problem(operator, "cuda")
        if missing is None:
            return None
        _no_cuda[operator] = missing
    return str(_no_cuda[operator])
