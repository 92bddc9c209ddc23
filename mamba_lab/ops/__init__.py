"""Operators and the native code under them."""

from __future__ import annotations

from mamba_lab.ops.backends import BackendStatus, backends
from mamba_lab.ops.toolchain import NativeUnavailable

__all__ = ["BackendStatus", "NativeUnavailable", "backends"]
