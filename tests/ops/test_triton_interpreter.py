"""The Triton kernels without a GPU, in another process: Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
TESTS = Path(__file__).with_name("interpreted_triton.py")


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


@pytest.mark.skipif(
    version(metadata.version("triton")) < (3, 7) and version(np.__version__) >= (2, 4),
    reason="Triton 3.6 does not interpret loops with NumPy 2.4: it takes an array of one number for an index",
)
@pytest.mark.parametrize("name", ["conv1d_pack", "ssm_pack"])
def test_under_the_interpreter(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", name, str(TESTS)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
