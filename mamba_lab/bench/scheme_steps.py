"""One scheme timed over all documents, by a sample of its micro-batches: only the scheme differs, not what it reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from mamba_lab.batching import Batch
from mamba_lab.bench.scheme_runs import contents, now, on_gpu
from mamba_lab.corpus import Corpus
from mamba_lab.models import MambaLM
from mamba_lab.training import TrainConfig, TrainingData
from mamba_lab.training.optim import make_optimizer
from mamba_lab.training.step import backward, update

LEAST = 3  # repeats: a median of fewer would not pass over a stray one


def speed(
    model: MambaLM,
    config: TrainConfig,
    documents: Corpus,
    *,
    at_most: int,
    repeats: int,
    seconds: float,
    bf16: bool,
) -> dict[str, Any]:
    """What all ``documents`` take under a scheme. The learning rate is 0, so the weights stay as they are.

    Args:
        at_most: of more micro-batches than that so many are run, spread by their sequences' lengths.
        repeats: so often, unless ``seconds`` have passed; at least ``LEAST`` times.

    Returns:
        Contents of the whole epoch, and of each repeat ``forward_backward_seconds``, in proportion for all of its
        micro-batches, and ``update_seconds`` of a single update. Of one sequence at a time also what each call takes.
    """
    batches = list(TrainingData(config, documents=documents).epoch(0))
    run = spread_by_length(batches, at_most)
    optimizer = make_optimizer(model, config.training)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    max_norm = config.training.max_grad_norm
    # The first step loads kernels and makes the optimiser's state.
    update(model, optimizer, backward(model, [run[0]], bf16=bf16), max_norm)
    model.zero_grad(set_to_none=True)
    kept = torch.cuda.memory_allocated() if on_gpu(model) else None
    if on_gpu(model):
        torch.cuda.reset_peak_memory_stats()
    backward(model, [max(batches, key=lambda batch: batch.input_ids.numel())], bf16=bf16)
    passes: list[float] = []
    updates: list[float] = []
    began = time.perf_counter()
    while len(passes) < min(LEAST, repeats) or (len(passes) < repeats and time.perf_counter() - began < seconds):
        start = now(model)
        mean = backward(model, run, bf16=bf16)
        middle = now(model)
        update(model, optimizer, mean, max_norm)
        passes.append((middle - start) * len(batches) / len(run))
        updates.append(now(model) - middle)
    peak = torch.cuda.max_memory_allocated() if on_gpu(model) else None
    found: dict[str, Any] = {"forward_backward_seconds": passes, "update_seconds": updates}
    if config.packing.scheme == "one-at-a-time":
        found |= calls(model, run, bf16)
    model.zero_grad(set_to_none=True)
    found["peak_bytes"] = None if peak is None or kept is None else peak - kept
    return found | contents([batches]) | {"timed_micro_batches": len(run)}


def spread_by_length(batches: Sequence[Batch], at_most: int) -> list[Batch]:
    """So many of ``batches``, or all: evenly spread, from those of short sequences to those of long ones."""
    if len(batches) <= at_most:
        return list(batches)
    in_order = sorted(batches, key=lambda batch: batch.max_seqlen)
    return [in_order[(2 * k + 1) * len(batches) // (2 * at_most)] for k in range(at_most)]


def calls(model: MambaLM, batches: Sequence[Batch], bf16: bool) -> dict[str, list[float]]:
    """Each batch's forward and backward by itself: its tokens and its seconds."""
    tokens: list[float] = []
    seconds: list[float] = []
    for batch in sorted(batches, key=lambda batch: batch.n_tokens):
        start = now(model)
        backward(model, [batch], bf16=bf16)
        seconds.append(now(model) - start)
        tokens.append(batch.n_tokens)
    return {"call_tokens": tokens, "call_seconds": seconds}
