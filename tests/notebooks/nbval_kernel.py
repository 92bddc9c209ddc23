"""A pytest plugin for the nbval runs: kernels start with a clean environment, and a dead one is noticed in seconds.

nbval itself waits for a dead kernel until the cell's time-out, and starts kernels with PYTEST_CURRENT_TEST set, at the
sight of which ipykernel stops capturing what C code prints.
"""

from __future__ import annotations

import time
from queue import Empty
from typing import Any

from mamba_lab.course.quick import import_nbformat

import_nbformat()

import nbval.kernel  # noqa: E402
import nbval.plugin  # noqa: E402
from jupyter_client.manager import KernelManager  # noqa: E402

from mamba_lab.course.run import kernel_environment  # noqa: E402


class CleanKernelManager(KernelManager):
    def start_kernel(self, **kwargs: Any) -> Any:
        return super().start_kernel(**{"env": kernel_environment(), **kwargs})


class WatchedKernel(nbval.kernel.RunningKernel):
    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return super().await_reply(msg_id, timeout=1.0)
            except Empty:  # noqa: PERF203 - the loop is the waiting
                if not self.is_alive():
                    raise RuntimeError("the kernel died in this cell") from None
                if end is not None and time.monotonic() > end:
                    raise


def pytest_configure() -> None:
    nbval.kernel.KernelManager = CleanKernelManager
    nbval.plugin.RunningKernel = WatchedKernel
