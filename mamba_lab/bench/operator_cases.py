"""What the operators are measured on: inputs like a Mamba block's, and how far off a result is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.lengths import published_lengths
from mamba_lab.ops import conv1d_pack, ssm_pack

PARAMETERS = ("A", "D", "delta_bias", "weight", "bias")
"""The inputs that all tokens share."""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""How far a result may be from the float64 reference, in parts of the reference's largest value."""

Function: TypeAlias = "Callable[[Mapping[str, Tensor]], Tensor]"
"""An operator, its boundaries and options inside: from a case's inputs to y [T, D]."""


@dataclass(frozen=True)
class Case:
    """One call's inputs, and the gradient that reaches its output.

    Attributes:
        operator: "ssm_pack" or "conv1d_pack".
        inputs: by argument name; all ask for gradients.
        dy: [T, D].
    """

    operator: str
    inputs: dict[str, Tensor]
    dy: Tensor

    @property
    def tokens(self) -> int:
        return int(self.dy.shape[0])

    @property
    def n_bytes(self) -> int:
        """Bytes of all inputs and of dy."""
        return sum(value.numel() * value.element_size() for value in (*self.inputs.values(), self.dy))

    def changed(self, change: Callable[[str, Tensor], Tensor]) -> Case:
        """The case with other values, which ask for gradients of their own."""
        inputs = {name: change(name, value.detach()).requires_grad_() for name, value in self.inputs.items()}
        return Case(self.operator, inputs, change("dy", self.dy))

    def first(self, tokens: int) -> Case:
        """Its first tokens alone."""
        return self.changed(lambda name, value: value if name in PARAMETERS else value[:tokens].clone())

    def pieces(self, lengths: Sequence[int]) -> list[Case]:
        """A case for each sequence."""
        ends = np.cumsum(lengths).tolist()

        def piece(start: int, stop: int) -> Case:
            return self.changed(lambda name, value: value if name in PARAMETERS else value[start:stop].clone())

        return [piece(stop - length, stop) for length, stop in zip(lengths, ends, strict=True)]


def scan_case(tokens: int, channels: int, states: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Case:
    """A scan's inputs: steps, decays and biases as a Mamba block starts with, the rest from a normal distribution."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, device=device).to(dtype)

    steps = torch.exp(
        torch.rand(channels, generator=draw, device=device) * np.log(100.0) + np.log(1e-3)
    )  # 0.001 to 0.1
    inputs = {
        "u": normal(tokens, channels),
        "delta": normal(tokens, channels),
        "A": -torch.arange(1, states + 1, device=device).repeat(channels, 1).to(real),
        "B": normal(tokens, states),
        "C": normal(tokens, states),
        "D": torch.randn(channels, generator=draw, device=device).to(real),
        "z": normal(tokens, channels),
        "delta_bias": (steps + torch.log(-torch.expm1(-steps))).to(real),  # the inverse of softplus
    }
    return Case("ssm_pack", {k: v.requires_grad_() for k, v in inputs.items()}, normal(tokens, channels))


def convolution_case(
    tokens: int, channels: int, width: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu"
) -> Case:
    """A convolution's inputs from a normal distribution; weight and bias in x's dtype."""
    draw = torch.Generator(device).manual_seed(seed)
    shapes = {"x": (tokens, channels), "weight": (channels, width), "bias": (channels,)}
    inputs = {
        k: torch.randn(*shape, generator=draw, device=device).to(dtype).requires_grad_() for k, shape in shapes.items()
    }
    return Case("conv1d_pack", inputs, torch.randn(tokens, channels, generator=draw, device=device).to(dtype))


def published_pack(tokens: int, scale: float = 1.0, seed: int = 0) -> list[int]:
    """Published lengths, each times ``scale``, until ``tokens`` are full; the last one is cut to fit."""
    drawn = np.maximum(1, np.rint(published_lengths(tokens, seed) * scale)).astype(np.int64)
    return [int(length) for length in np.diff(np.minimum(np.cumsum(drawn), tokens), prepend=0) if length]


def ours(operator: str, lengths: Sequence[int] | None = None, device: str = "cpu", backend: str = "auto") -> Function:
    """Our operator, with softplus (the scan) or SiLU (the convolution), over sequences or over all tokens as one."""
    boundaries = None if lengths is None else Boundaries.from_lengths(lengths, device=device)
    options: dict[str, Any] = {"boundaries": boundaries, "backend": backend}
    if operator == "ssm_pack":
        options["delta_softplus"] = True
    else:
        options["activation"] = "silu"
    run: Callable[..., Tensor] = ssm_pack if operator == "ssm_pack" else conv1d_pack
    return lambda inputs: run(**inputs, **options)


def torch_convolution(inputs: Mapping[str, Tensor]) -> Tensor:
    """PyTorch's own convolution and SiLU, for x as it lies in memory; it knows no boundaries."""
    weight = inputs["weight"][:, None]
    back = weight.shape[2] - 1
    y = F.conv1d(inputs["x"].t()[None], weight, inputs["bias"], padding=back, groups=weight.shape[0])
    return F.silu(y[0, :, : inputs["x"].shape[0]]).t()


def channel_first(case: Case) -> Case:
    """The same case with every channel's tokens side by side in memory, as PyTorch's convolution likes them best."""
    return case.changed(lambda name, value: value if name in PARAMETERS else value.t().contiguous().t())


def forward(function: Function, case: Case) -> Tensor:
    """y alone: nothing is kept for a backward pass."""
    with torch.no_grad():
        return function(case.inputs)


def forward_backward(function: Function, case: Case) -> tuple[Tensor, ...]:
    """y and the gradient of every input, in the order of ``case.inputs``."""
    y = function(case.inputs)
    return (y.detach(), *torch.autograd.grad(y, [*case.inputs.values()], case.dy))


DIRECTIONS: dict[str, Callable[[Function, Case], object]] = {"forward": forward, "forward_backward": forward_backward}


def expected(case: Case, lengths: Sequence[int] | None) -> tuple[Tensor, ...]:
    """``forward_backward`` of the reference in float64, on the inputs as they are after rounding to their dtype."""
    wide = case.changed(lambda _, value: value.double())
    return forward_backward(ours(case.operator, lengths, str(case.dy.device), backend="reference"), wide)


def errors(what: str, function: Function, case: Case, wanted: tuple[Tensor, ...]) -> dict[str, float]:
    """How far y and each gradient are from ``wanted``, in parts of its largest value.

    Raises:
        RuntimeError: further than ``TOLERANCES``: times of different things mean nothing.
    """
    return errors_of(what, case, forward_backward(function, case), wanted)


def errors_of(what: str, case: Case, got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> dict[str, float]:
    """The same of results that are there already."""
    found = {}
    for name, value, want in zip(("y", *case.inputs), got, wanted, strict=True):
        off = float((value.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-300))
        if not off <= TOLERANCES[case.dy.dtype]:
            label = name if name == "y" else f"the gradient of {name}"
            raise RuntimeError(
                f"{what}: {label} is off by {off:.1e} of its largest value, more than {TOLERANCES[case.dy.dtype]:.0e}; "
                f"times of different things mean nothing"
            )
        found[name] = off
    return found


def relative_l2(case: Case, got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> dict[str, float]:
    """The L2 norm of y's and each gradient's distance from ``wanted``, in parts of the norm of that."""
    return {
        name: float((value.double() - want.double()).norm() / want.double().norm().clamp(min=1e-300))
        for name, value, want in zip(("y", *case.inputs), got, wanted, strict=True)
    }
