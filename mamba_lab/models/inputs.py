"""Checks of what a model is called with, in Python and before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.batching._checks import INT32_MAX
from mamba_lab.batching.batch import IGNORE


def check(
    input_ids: Tensor,
    boundaries: Boundaries | Tensor | None,
    targets: Tensor | None,
    weights: Tensor | None,
    vocab_size: int,
) -> Boundaries:
    """The boundaries of ``input_ids`` [B, L], made where there are none. Values are looked at on the CPU only.

    Raises:
        ValueError: a shape, dtype, device or id that does not fit.
    """
    if not isinstance(input_ids, Tensor) or input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"input_ids must be an int64 tensor [B, L], got {_kind(input_ids)}. Write torch.tensor([ids])."
        )
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must be [B, L], got {list(input_ids.shape)}. Add a row with ids[None].")
    if weights is not None and targets is None:
        raise ValueError("weights were given without targets. Pass both for a loss, neither for logits.")
    for name, value, dtype in (("targets", targets, torch.int64), ("weights", weights, torch.float32)):
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.dtype != dtype or value.shape != input_ids.shape:
            raise ValueError(f"{name} must be {dtype} {list(input_ids.shape)} as input_ids, got {_kind(value)}.")
        if value.device != input_ids.device:
            raise ValueError(f"{name} is on {value.device}, input_ids on {input_ids.device}. Move the whole batch.")
    if weights is not None and weights.requires_grad:
        raise ValueError("weights must not require a gradient: they get none. Pass weights.detach().")
    if input_ids.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_ids("input_ids", input_ids, vocab_size)
        if targets is not None:
            _check_ids("targets", targets[targets != IGNORE], vocab_size)
    found = _boundaries(input_ids, boundaries)
    if input_ids.device.type == "meta":
        raise ValueError("input_ids is on meta, which has no values. Move model and batch to a real device.")
    return found


def check_states(states: Sequence[object] | None, return_states: bool, targets: Tensor | None, n_layer: int) -> None:
    """What goes together in a call that reads on from states.

    Raises:
        ValueError: states of another number of blocks, states that nobody would hand on, or targets beside them.
    """
    if return_states and targets is not None:
        raise ValueError("targets and return_states were both given. States are for generation: leave the targets out.")
    if states is None:
        return
    if not return_states:
        raise ValueError("states were given without return_states=True. Pass both to read on.")
    if len(states) != n_layer:
        raise ValueError(f"states has {len(states)} entries, expected one for each of the {n_layer} blocks.")


def _boundaries(input_ids: Tensor, boundaries: Boundaries | Tensor | None) -> Boundaries:
    if boundaries is None:
        rows, width = input_ids.shape
        # As from_lengths would make them, in steps that torch.compile can trace; S + 1 entries as in every schedule.
        if rows * width > INT32_MAX:
            raise ValueError(f"input_ids has {rows * width} tokens, above the int32 limit {INT32_MAX}. Use fewer rows.")
        starts = torch.arange(rows + 1, dtype=torch.int32, device=input_ids.device)
        return Boundaries._trusted(starts * width, starts, rows * width, rows, width if rows else 0)
    if isinstance(boundaries, Tensor):
        if torch.compiler.is_compiling():
            raise ValueError(
                "boundaries: a cu_seqlens tensor has to be checked, which torch.compile cannot trace. Build "
                "Boundaries.from_cu_seqlens outside the compiled model and pass it in."
            )
        try:
            boundaries = Boundaries.from_cu_seqlens(boundaries, input_ids.numel())
        except ValueError as error:
            raise ValueError(f"boundaries: {error}") from None
    if not isinstance(boundaries, Boundaries):
        raise ValueError(
            f"boundaries must be Boundaries, an int32 cu_seqlens tensor or None, got {_kind(boundaries)}. "
            f"Use Boundaries.from_lengths or another of its from_ methods."
        )
    if boundaries.n_tokens != input_ids.numel():
        raise ValueError(
            f"boundaries cover {boundaries.n_tokens} tokens, input_ids has {input_ids.numel()} "
            f"({list(input_ids.shape)}). Use the boundaries of the same batch."
        )
    if boundaries.cu_seqlens.device != input_ids.device:
        raise ValueError(
            f"boundaries are on {boundaries.cu_seqlens.device}, input_ids on {input_ids.device}. "
            f"Move the whole batch with batch.to({str(input_ids.device)!r})."
        )
    return boundaries


def _check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    if ids.numel() == 0:
        return
    low, high = (int(end) for end in torch.aminmax(ids))
    if not 0 <= low <= high < vocab_size:
        also = " (and -100 for none)" if name == "targets" else ""
        raise ValueError(
            f"{name}: ids run from {low} to {high}, the vocabulary from 0 to {vocab_size - 1}{also}. "
            f"Use the tokenizer that the model was made for."
        )


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
