"""Checks of the operators' arguments, in Python, before any kernel starts: no kernel checks anything itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mamba_lab.batching._checks import shown
from mamba_lab.batching.boundaries import Boundaries

from .reference import wide_dtype

ACTIVATIONS = (torch.float32, torch.bfloat16, torch.float64)


class Arguments:
    """Looks at one call's tensors, first the one that all others must fit.

    Attributes:
        sizes: what each dimension's letter stands for, and the argument that said so.
    """

    def __init__(self, operator: str, name: str, first: Tensor) -> None:
        self.operator, self.first_name, self.first = operator, name, first
        self.sizes: dict[str, tuple[int, str]] = {}
        if not isinstance(first, Tensor):
            raise ValueError(f"{operator}: {name} must be a tensor [T, D], got {type(first).__name__}.")
        if first.dim() != 2:
            raise ValueError(
                f"{operator}: {name} must be [T, D], tokens first, got {list(first.shape)}. Flatten a batch [B, L, D] "
                f"with .flatten(0, 1) and pass its boundaries."
            )
        if first.dtype not in ACTIVATIONS:
            raise ValueError(
                f"{operator}: {name} is {first.dtype}, expected float32, bfloat16 or float64. "
                f"Cast it, for instance with .to(torch.bfloat16)."
            )
        self._plain(name, first)
        self._fits(name, first, "TD")

    def activation(self, name: str, value: Tensor, dims: str) -> None:
        """``value`` must have the first tensor's dtype."""
        self._check(name, value, dims, (self.first.dtype,))

    def parameter(self, name: str, value: Tensor, dims: str, *, narrow: bool = False) -> None:
        """``value`` must be in the dtype of the arithmetic; with ``narrow`` float32 or the first tensor's will do."""
        wide = wide_dtype(self.first)
        self._check(name, value, dims, (torch.float32, self.first.dtype) if narrow else (wide,))

    def flag(self, name: str, value: object) -> bool:
        """``value`` must be True or False: a word or a tensor would count as True."""
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{self.operator}: {name} must be True or False, got {shown(value)}.")
        return bool(value)

    def boundaries(self, boundaries: Boundaries | Tensor | None) -> tuple[Tensor, Tensor]:
        """``cu_seqlens`` and ``order`` for a kernel: both int32 [S + 1], contiguous, on the tokens' device."""
        tokens, device = self.first.shape[0], self.first.device
        if boundaries is None:
            # Not torch.tensor: a compiler may not know the number of tokens.
            cu_seqlens = torch.arange(2, dtype=torch.int32, device=device) * tokens
            self.sizes["S"] = (1, "boundaries")
            return cu_seqlens, torch.zeros(2, dtype=torch.int32, device=device)
        if isinstance(boundaries, Tensor):
            boundaries = self._from_cu_seqlens(boundaries)
        if not isinstance(boundaries, Boundaries):
            raise ValueError(
                f"{self.operator}: boundaries must be Boundaries, an int32 cu_seqlens tensor or None, got "
                f"{type(boundaries).__name__}. Use Boundaries.from_lengths or another of its from_ methods."
            )
        if boundaries.n_tokens != tokens:
            raise ValueError(
                f"{self.operator}: boundaries cover {boundaries.n_tokens} tokens, {self.first_name} has {tokens}. "
                f"Use the boundaries of the same batch."
            )
        if boundaries.cu_seqlens.device != device:
            raise ValueError(
                f"{self.operator}: boundaries are on {boundaries.cu_seqlens.device}, {self.first_name} is on {device}. "
                f"Move them with boundaries.to({str(device)!r}), once a batch."
            )
        self.sizes["S"] = (boundaries.cu_seqlens.shape[0] - 1, "boundaries")
        return boundaries.cu_seqlens.contiguous(), boundaries._schedule

    def _from_cu_seqlens(self, cu_seqlens: Tensor) -> Boundaries:
        if torch.compiler.is_compiling():
            raise ValueError(
                f"{self.operator}: a cu_seqlens tensor has to be checked, which torch.compile cannot trace. Build "
                f"Boundaries.from_cu_seqlens outside the compiled function and pass it in."
            )
        try:
            return Boundaries.from_cu_seqlens(cu_seqlens, self.first.shape[0])
        except ValueError as error:
            raise ValueError(f"{self.operator}: boundaries: {error}") from None

    def _check(self, name: str, value: Tensor, dims: str, dtypes: tuple[torch.dtype, ...]) -> None:
        where = f"{self.operator}: {name}"
        if not isinstance(value, Tensor):
            raise ValueError(f"{where} must be a tensor, got {type(value).__name__}.")
        if value.dtype not in dtypes:
            allowed = " or ".join(dict.fromkeys(str(dtype) for dtype in dtypes))
            raise ValueError(
                f"{where} is {value.dtype}, expected {allowed} beside {self.first_name} in {self.first.dtype}. "
                f"Cast it with .to({dtypes[0]})."
            )
        if value.device != self.first.device:
            raise ValueError(
                f"{where} is on {value.device}, {self.first_name} is on {self.first.device}. Move one of them."
            )
        self._plain(name, value)
        self._fits(name, value, dims)

    def _plain(self, name: str, value: Tensor) -> None:
        if value.layout != torch.strided:
            raise ValueError(f"{self.operator}: {name} has layout {value.layout}, expected a dense tensor. Densify it.")
        if value.device.type == "meta":
            raise ValueError(f"{self.operator}: {name} is on meta, which has no values. Pass real tensors.")

    def _fits(self, name: str, value: Tensor, dims: str) -> None:
        form = ", ".join("W - 1" if letter == "V" else letter for letter in dims)
        if value.dim() != len(dims):
            raise ValueError(f"{self.operator}: {name} must be [{form}], got {list(value.shape)}.")
        for letter, size in zip(dims, value.shape, strict=True):
            if letter not in self.sizes:
                self.sizes[letter] = (size, name)
            expected, said_by = self.sizes[letter]
            if size != expected:
                called = "W - 1" if letter == "V" else letter
                raise ValueError(
                    f"{self.operator}: {name} must be [{form}] with {called} = {expected} as {said_by} says, got "
                    f"{list(value.shape)}. {_REMEDIES.get(letter, 'Pass tensors of one batch and one layer.')}"
                )


_REMEDIES = {
    "S": "Give one state for each sequence, padding and empty ones included.",
    "V": "A state holds the W - 1 inputs before the sequence, the oldest first.",
}
