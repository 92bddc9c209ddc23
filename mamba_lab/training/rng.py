"""The random numbers that are still to come: Python's, NumPy's, PyTorch's on the CPU and on every GPU."""

from __future__ import annotations

import base64
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger("mamba_lab")


def rng_state() -> dict[str, Any]:
    """The state of every global generator, as JSON holds it. CUDA's only where CUDA is in use: asking starts it."""
    version, words, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "python": [version, list(words), gauss],
        "numpy": numpy | {"state": {"key": numpy["state"]["key"].tolist(), "pos": int(numpy["state"]["pos"])}},
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(each) for each in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else [],
    }


def read_rng_state(state: dict[str, Any]) -> Callable[[], None]:
    """A function that sets every generator to what ``rng_state`` gave; a state of another form fails here, not there.

    GPUs that are not here any more, or were not there then, are passed over with a warning.

    Raises:
        KeyError, TypeError, ValueError: it does not come from ``rng_state``.
    """
    version, words, gauss = state["python"]
    python = (int(version), tuple(int(each) for each in words), gauss)
    numpy = state["numpy"] | {
        "state": {"key": np.array(state["numpy"]["state"]["key"], np.uint32), "pos": state["numpy"]["state"]["pos"]}
    }
    cpu, cuda = _tensor(state["torch"]), [_tensor(each) for each in state["cuda"]]
    # Tried on generators of their own, so that a state that one of them refuses changes none.
    random.Random().setstate(python)
    np.random.RandomState().set_state(numpy)
    if cpu.shape != torch.get_rng_state().shape:
        raise ValueError(f"PyTorch's random state has {len(cpu)} bytes, expected {len(torch.get_rng_state())}")

    def apply() -> None:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if len(cuda) != here and (cuda or torch.cuda.is_initialized()):
            log.warning(
                "the checkpoint has the random numbers of %d GPUs, here are %d: they differ from now on",
                len(cuda),
                here,
            )
        for number, each in enumerate(cuda[:here]):
            torch.cuda.set_rng_state(each, number)

    return apply


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
