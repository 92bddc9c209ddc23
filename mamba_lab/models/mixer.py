"""The mixer of a Mamba-1 block: two projections around a short convolution and a selective scan, closed by a gate."""

from __future__ import annotations

import logging
import math
from typing import Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mamba_lab.batching import Boundaries
from mamba_lab.log import log_once
from mamba_lab.ops import conv1d_pack, ssm_pack
from mamba_lab.ops.mamba_inner import fused_backends, linear_dtype, mamba_inner
from mamba_lab.ops.reference import wide_dtype

from .config import MambaConfig
from .plain import why_not_plain


class MixerState(NamedTuple):
    """What a block remembers of each sequence: all that it needs to go on.

    Attributes:
        conv: [S, d_inner, W - 1], the last inputs of the convolution, oldest first.
        ssm: [S, d_inner, N], the state of the scan.
    """

    conv: Tensor
    ssm: Tensor


class Convolution(nn.Module):
    """The weights of ``conv1d_pack`` in the shape of mamba-ssm's ``nn.Conv1d``: [d_inner, 1, W]."""

    def __init__(self, channels: int, width: int, bias: bool, backend: str) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)  # as nn.Conv1d starts
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None
        self.backend = backend

    def forward(
        self, x: Tensor, boundaries: Boundaries, state: Tensor | None, return_state: bool
    ) -> tuple[Tensor, ...]:
        found = conv1d_pack(
            x,
            self.weight[:, 0],
            self.bias,
            boundaries=boundaries,
            activation="silu",
            initial_state=state,
            return_final_state=return_state,
            backend=self.backend,
        )
        return (found,) if isinstance(found, Tensor) else found


class MambaMixer(nn.Module):
    """Mamba-1's mixer (Gu and Dao, arXiv 2312.00752, sections 3.2 to 3.4), token-major throughout.

    ``in_proj`` to ``out_proj`` runs as one step that keeps less for its backward pass. Where a layer in between is not
    plain (an adapter, a hook), every layer is called in turn instead; which of the two is logged once.

    Args:
        config: the model's sizes.
        backend: which kernels run the two operators.
    """

    def __init__(self, config: MambaConfig, backend: str = "auto") -> None:
        super().__init__()
        channels, self.rank, self.states, self.backend = config.d_inner, config.rank, config.d_state, backend
        self.in_proj = nn.Linear(config.d_model, 2 * channels, bias=config.bias)
        self.conv1d = Convolution(channels, config.d_conv, config.conv_bias, backend)
        self.x_proj = nn.Linear(channels, self.rank + 2 * self.states, bias=False)
        self.dt_proj = nn.Linear(self.rank, channels)
        self.A_log = nn.Parameter(torch.empty(channels, self.states))
        self.D = nn.Parameter(torch.ones(channels))
        self.out_proj = nn.Linear(channels, config.d_model, bias=config.bias)
        # Decay would pull every channel's memory towards one length.
        self.A_log._no_weight_decay = self.D._no_weight_decay = True  # type: ignore[attr-defined]

    @overload
    def forward(
        self,
        hidden: Tensor,
        boundaries: Boundaries,
        state: MixerState | None = None,
        return_state: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def forward(
        self, hidden: Tensor, boundaries: Boundaries, state: MixerState | None = None, *, return_state: Literal[True]
    ) -> tuple[Tensor, MixerState]: ...

    def forward(
        self, hidden: Tensor, boundaries: Boundaries, state: MixerState | None = None, return_state: bool = False
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Map ``hidden`` [T, d_model] to [T, d_model].

        Args:
            boundaries: over the T tokens.
            state: each sequence's state before its first token; None: nothing came before.
            return_state: give back each sequence's state after its last token too.
        """
        xz: Tensor | None = None
        if state is None and not return_state and self._layers_are_plain():
            conv, x_proj, dt_proj, out = self.conv1d, self.x_proj, self.dt_proj, self.out_proj
            # An adapter on the first projection is called before the step, and the rest stays one.
            first = self.in_proj if why_not_plain(self.in_proj, nn.Linear) is None else None
            if first is None:
                xz = self.in_proj(hidden)
            dtype = linear_dtype(self.in_proj.weight) if xz is None else xz.dtype
            backends = fused_backends(self.backend, hidden.device.type, dtype, conv.weight.shape[2], self.states)
            if backends is not None:
                log_once(logging.INFO, "Mamba blocks run from in_proj to out_proj in one step.")
                return mamba_inner(
                    hidden if xz is None else xz,
                    None if first is None else first.weight,
                    None if first is None else first.bias,
                    conv.weight,
                    conv.bias,
                    x_proj.weight,
                    dt_proj.weight,
                    dt_proj.bias,
                    self.A_log,
                    self.D,
                    out.weight,
                    out.bias,
                    boundaries=boundaries,
                    backends=backends,
                )
        if xz is None:
            xz = self.in_proj(hidden)
        wide = wide_dtype(xz)
        A, D = -torch.exp(self.A_log.to(wide)), self.D.to(wide)
        x, z = xz.chunk(2, 1)
        u, *conv_state = self.conv1d(x, boundaries, None if state is None else state.conv, return_state)
        step, B, C = self.x_proj(u).to(u.dtype).split([self.rank, self.states, self.states], 1)
        # A bias apart is added in float32. An adapter's layer is called as it is.
        apart = why_not_plain(self.dt_proj, nn.Linear) is None
        delta = (F.linear(step, self.dt_proj.weight) if apart else self.dt_proj(step)).to(u.dtype)
        found = ssm_pack(
            u,
            delta,
            A,
            B,
            C,
            D,
            z,
            self.dt_proj.bias.to(wide) if apart else None,
            delta_softplus=True,
            boundaries=boundaries,
            initial_state=None if state is None else state.ssm,
            return_final_state=return_state,
            backend=self.backend,
        )
        if isinstance(found, Tensor):
            return self.out_proj(found)
        return self.out_proj(found[0]), MixerState(conv_state[0], found[1])

    def _layers_are_plain(self) -> bool:
        if torch.compiler.is_compiling():  # a compiler decides for itself what to keep
            return False
        for name, kind in _LAYERS.items():
            why = why_not_plain(getattr(self, name), kind)
            if why is not None:
                log_once(
                    logging.INFO, f"Mamba blocks call their layers in turn, which takes more memory: {name} {why}."
                )
                return False
        return True


_LAYERS: dict[str, type[nn.Module]] = {
    "conv1d": Convolution,
    "x_proj": nn.Linear,
    "dt_proj": nn.Linear,
    "out_proj": nn.Linear,
}
"""Whose weights the step takes in the place of a call."""
