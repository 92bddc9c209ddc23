"""Operators and the native code under them."""

from __future__ import annotations

from mamba_lab.ops.backends import BackendStatus, backends
from mamba_lab.ops.toolchain import NativeUnavailable

try:
    import torch
except (ImportError, OSError):  # backends() says what is wrong with it
    pass
else:
    del torch
    # Imported here and not on first use: the modules have the functions' names, and the later import wins.
    from mamba_lab.ops.conv1d_pack import conv1d_pack
    from mamba_lab.ops.ssm_pack import ssm_pack

__all__ = ["BackendStatus", "NativeUnavailable", "backends", "conv1d_pack", "ssm_pack"]
