"""Choosing the next token from its scores."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from mamba_lab.batching._checks import as_int, shown


class Sampler:
    """Draws one id a row from logits, the same ones from the same seed.

    Args:
        temperature: 0 takes the likeliest id; above, logits are divided by it.
        top_k: only the k likeliest ids.
        top_p: only the fewest likeliest ids whose probabilities (after temperature and ``top_k``) reach this sum.
        seed: of a generator made here; None with ``generator`` None draws from PyTorch's own.
        generator: a generator on the CPU, which goes on from call to call.

    Raises:
        ValueError: a value out of range, or seed and generator both.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.temperature = _number("temperature", temperature)
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or above, got {temperature}.")
        self.top_k = None if top_k is None else as_int(top_k, "top_k", minimum=1)
        self.top_p = None if top_p is None else _number("top_p", top_p)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}.")
        if seed is not None and generator is not None:
            raise ValueError("seed and generator were both given. Pass one of them.")
        if generator is not None and generator.device.type != "cpu":
            raise ValueError(f"generator must be on the CPU, got one on {generator.device}.")
        if seed is not None:
            number = as_int(seed, "seed", minimum=0)
            if number >= 2**64:
                raise ValueError(f"seed must be below 2**64, got {number}.")
            generator = torch.Generator().manual_seed(number)
        self.generator = generator

    def draw(self, rows: int) -> Tensor | None:
        """A number in [0, 1) for each row, float64 on the CPU; None where nothing is left to chance."""
        if self.temperature == 0:
            return None
        return torch.rand(rows, generator=self.generator, dtype=torch.float64)

    def choose(self, logits: Tensor, chance: Tensor | None) -> Tensor:
        """The ids [R] for ``logits`` [R, V]: each row's cumulative probability cut at its ``chance`` [R].

        Raises:
            ValueError: NaN among the logits.
        """
        wide = logits.double()
        if bool(wide.isnan().any()):
            raise ValueError("the logits hold NaN: the model's weights or states are broken.")
        if chance is None:
            return wide.argmax(1)
        # Likeliest first, ties by id: the order may not depend on the sort.
        scores, ids = torch.sort(wide / self.temperature, dim=1, descending=True, stable=True)
        if self.top_k is not None:
            scores, ids = scores[:, : self.top_k], ids[:, : self.top_k]
        sums = torch.softmax(scores, 1).cumsum(1)
        if self.top_p is not None:
            # An id stays while the sum before it has not reached top_p.
            kept = torch.nn.functional.pad(sums[:, :-1], (1, 0)) < self.top_p
            sums = torch.where(kept, sums, 0).cummax(1).values
        reach = chance.to(sums.device)[:, None] * sums[:, -1:]
        place = torch.searchsorted(sums, reach, right=True)
        # Where rounding lifts a chance just below 1 to the whole sum, still no id of probability 0.
        last = (sums < sums[:, -1:]).sum(1, keepdim=True)
        return ids.gather(1, torch.minimum(place, last))[:, 0]


def _number(name: str, value: object) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {shown(value)}.")
    return float(value)
