"""What a run takes at the very least: settings that no memory here can hold are refused before any of it is taken.

A system that has promised memory which it does not have ends a process without a word, so it is reckoned first. These
are lower bounds: what passes them may still be too large, and then PyTorch says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mamba_lab.machine import MIB, memory_mib

if TYPE_CHECKING:
    from .config import PackingConfig, TrainConfig

_GIB = 2**30
_IDS_AND_TARGETS, _WEIGHT = 2 * 8, 4  # int64 each; float32
_OF_A_PARAMETER = 4 * 4  # float32: itself, its gradient, AdamW's two moments
_KEPT = 2  # bytes of each number that a block keeps, in the shorter of the dtypes


def require_batch_fits(packing: PackingConfig, *, weighted: bool) -> None:
    """Refuse rows that this machine cannot hold. Padded and bucketed batches are as large as the documents make them.

    Args:
        weighted: whether the batches have loss weights.

    Raises:
        ValueError: naming ``packing.rows``, its bytes, and what to take instead.
    """
    needed, have = _positions(packing) * (_IDS_AND_TARGETS + _WEIGHT * weighted), _free()
    if have is not None and needed > have:
        raise ValueError(
            f"{_rows(packing)}, whose token ids and targets alone take {_size(needed)}, and {_size(have)} of memory "
            f"are free. {_smaller(packing)}"
        )


def require_training_fits(config: TrainConfig, vocab_size: int, device: torch.device) -> None:
    """Refuse a new model, or rows, that ``device`` cannot hold while it trains.

    Args:
        vocab_size: ids of the tokenizer.

    Raises:
        ValueError: naming the settings, their bytes, and what to take instead.
    """
    if config.model.from_pretrained is not None:  # its sizes are in a file
        return
    on_gpu = device.type == "cuda"
    have = torch.cuda.get_device_properties(device).total_memory if on_gpu else _free()
    if have is None:
        return
    there = f"this GPU has {_size(have)}" if on_gpu else f"{_size(have)} of memory are free"
    model, packing = config.model.mamba(vocab_size), config.packing
    # The three large matrices of each block, and the embedding.
    parameters = model.n_layer * 3 * model.d_inner * model.d_model + model.vocab_size * model.d_model
    own = parameters * _OF_A_PARAMETER
    if own > have:
        raise ValueError(
            f"model.d_model is {model.d_model:,}, model.expand {model.expand:,}, model.n_layer {model.n_layer:,} and "
            f"the vocabulary {model.vocab_size:,}: more than {parameters:,} parameters, which take {_size(own)} with "
            f"gradients and moments, and {there}. Take a smaller model."
        )
    # One micro-batch of "one-at-a-time" is one document.
    positions = 0 if packing.scheme == "one-at-a-time" else _positions(packing)
    kept = positions * model.n_layer * model.d_model * _KEPT
    if own + kept > have:
        raise ValueError(
            f"{_rows(packing)}, for which {model.n_layer:,} layers of {model.d_model:,} keep at least {_size(kept)} "
            f"beside the {_size(own)} of the model, and {there}. {_smaller(packing)}"
        )


def _positions(packing: PackingConfig) -> int:
    """Of a micro-batch, at the least, whatever the documents: fixed chunks may be fewer than the rows."""
    rows = {"padded": 0, "bucketed": 0, "fixed": 1}.get(packing.scheme, packing.rows)
    return rows * packing.width


def _rows(packing: PackingConfig) -> str:
    multiple = packing.pad_to_multiple_of
    return (
        f"packing.rows is {packing.rows:,} and packing.capacity {packing.capacity:,}"
        + (f" (packing.pad_to_multiple_of {multiple:,})" if packing.width != packing.capacity else "")
        + f": a micro-batch of {_positions(packing):,} positions"
    )


def _smaller(packing: PackingConfig) -> str:
    if packing.width >= 2 * packing.capacity:
        return "Take a smaller packing.pad_to_multiple_of."
    if packing.rows > 1:
        return "Take fewer rows and more training.gradient_accumulation_steps."
    return "Take a smaller capacity."


def _free() -> int | None:
    """Bytes that this machine has free; None when unknown."""
    here = memory_mib()
    return None if here is None else here[1] * MIB


def _size(n: int) -> str:
    return f"{n / _GIB:,.1f} GiB" if n >= _GIB else f"{n / MIB:,.1f} MiB"
