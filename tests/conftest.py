"""Fixtures for tests of more than one folder."""

from __future__ import annotations

import signal

import pytest

# A shell starts background jobs with Ctrl-C ignored, for their children too: the tests that send it would fail.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["triton", "cuda"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that has kernels on a GPU, where this machine has what it needs."""
    from mamba_lab.ops import _resolve  # not for every test of the project

    missing = _resolve.problem("ssm_pack", request.param) or _resolve.problem("conv1d_pack", request.param)
    if missing is not None:
        pytest.skip(str(missing))
    return str(request.param)
