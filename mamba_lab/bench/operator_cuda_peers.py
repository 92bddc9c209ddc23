"""Other packages' operators on a GPU: as functions of our inputs, which are laid out as each of them likes before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from mamba_lab.batching import Boundaries
from mamba_lab.bench.operator_cases import Case, Function, channel_first

Make: TypeAlias = "Callable[[Case, Sequence[int]], tuple[Function, Case]]"
"""From a case and its sequences' lengths to a function and the same case as it likes it."""


@dataclass(frozen=True)
class Peer:
    """``load`` gives functions by name, and raises ImportError without the package; ``install`` says how to add it."""

    load: Callable[[], Mapping[str, Make]]
    install: str


def mamba_ssm() -> dict[str, Make]:
    """mamba-ssm's scan. It takes no boundaries: all tokens are one sequence."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    def scan(inputs: Any) -> torch.Tensor:
        u, delta, B, C, z = (inputs[name].t()[None] for name in ("u", "delta", "B", "C", "z"))
        bias = inputs["delta_bias"]
        y = selective_scan_fn(u, delta, inputs["A"], B, C, inputs["D"], z, bias, delta_softplus=True)
        return _as_rows(y)

    return {"selective_scan_fn": lambda case, lengths: (scan, channel_first(case))}


def causal_conv1d() -> dict[str, Make]:
    """causal-conv1d's two forms: channels first without boundaries, and tokens first with ``seq_idx``."""
    from causal_conv1d import causal_conv1d_fn

    def convolve(inputs: Any, seq_idx: torch.Tensor | None = None) -> torch.Tensor:
        x = inputs["x"].t()[None]
        y = causal_conv1d_fn(x, inputs["weight"], inputs["bias"], seq_idx=seq_idx, activation="silu")
        return _as_rows(y)

    def with_boundaries(case: Case, lengths: Sequence[int]) -> tuple[Function, Case]:
        seq_idx = Boundaries.from_lengths(lengths, device=case.dy.device).seq_idx.to(torch.int32).reshape(1, -1)
        return lambda inputs: convolve(inputs, seq_idx), case

    return {
        "causal_conv1d_fn": lambda case, lengths: (convolve, channel_first(case)),
        "causal_conv1d_fn_seq_idx": with_boundaries,
    }


def _as_rows(y: torch.Tensor) -> torch.Tensor:
    """A peer's result [1, D, T] as [T, D], so that its backward gets dy as it lies in memory.

    Not ``y[0].t()``: the gradient of an index is a new tensor of zeros with dy copied into it, channels first. That was
    timed as the peers' work once, and tripled the backward pass of the convolution with ``seq_idx``.
    """
    return y.squeeze(0).t()


BUILD = "MAMBA_KEEP_CUDA_BUILD=TRUE pip install --no-build-isolation"
PEERS = {
    "mamba-ssm": Peer(mamba_ssm, f"{BUILD} mamba-ssm==2.3.2.post1 compiles it for minutes, with nvcc"),
    "causal-conv1d": Peer(causal_conv1d, "pip install --no-build-isolation causal-conv1d compiles it, with nvcc"),
}
