"""What the C++ loops of this package share: is the library there, and what may be handed to it."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

import numpy as np
import torch

from mamba_lab.log import log_once

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


def library_available(name: str, what: str, slower: str) -> bool:
    """Whether the C++ library can be used here; says once whether ``what`` is done in C++ or in Python, and why."""
    # Imported here: short lists need no compiler and no cache.
    from mamba_lab.ops.build import load_library
    from mamba_lab.ops.toolchain import NativeUnavailable

    try:
        load_library(name)
    except NativeUnavailable as error:
        log_once(logging.WARNING, f"{what} in Python, {slower} times slower than in C++. {error}")
        return False
    log_once(logging.INFO, f"{what} in C++ ({name}).")
    return True


def lengths_as_tensor(lengths: Int64Array) -> torch.Tensor:
    """``lengths`` for a C++ function that only reads them.

    Raises:
        ValueError: ``lengths`` is no contiguous int64 array of one dimension.
    """
    # Checked here, because the C++ side checks nothing: STD_TORCH_CHECK ends the process on torch 2.11. It reads the
    # memory as int64, so nothing else may get there.
    if not isinstance(lengths, np.ndarray) or lengths.dtype != np.int64 or lengths.ndim != 1:
        got = f"{lengths.dtype} {list(lengths.shape)}" if hasattr(lengths, "dtype") else type(lengths).__name__
        raise ValueError(f"lengths must be a NumPy int64 array of one dimension, got {got}.")
    if not lengths.flags.c_contiguous:
        raise ValueError("lengths must be contiguous. Use np.ascontiguousarray.")
    # PyTorch warns of arrays that it may not write to (a memory map), though nobody writes here.
    return torch.from_numpy(lengths if lengths.flags.writeable else lengths.copy())
