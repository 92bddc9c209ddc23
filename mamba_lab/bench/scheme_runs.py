"""One scheme measured: an epoch of training on the same documents as all others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mamba_lab.batching import Batch
from mamba_lab.bench.memory import peak_bytes
from mamba_lab.corpus import Corpus
from mamba_lab.models import MambaLM
from mamba_lab.training import TrainConfig, TrainingData, evaluate
from mamba_lab.training.optim import Schedule, make_optimizer
from mamba_lab.training.rearrange import joined, one_by_one
from mamba_lab.training.step import backward, update

# Runs of these see the same tokens in the same steps, and only one of them lets the state leak.
SAME_ORDER = ("packed-greedy", "one-at-a-time", "concat")


def learn(
    model: MambaLM,
    start: dict[str, Tensor],
    config: TrainConfig,
    documents: Corpus,
    *,
    targets: int,
    bf16: bool,
    compare: bool = False,
) -> dict[str, Any]:
    """Train ``model``, from the weights ``start``, on every document once, then validate.

    A step takes micro-batches until they hold about ``targets`` targets. So all schemes take about as many steps, over
    the same targets in all.

    Args:
        config: scheme, learning rate and its schedule.
        compare: in each step also the loss of its packs one sequence at a time, and with the state leaking, by the same
            weights; not timed.
    """
    model.load_state_dict(start)
    data = TrainingData(config, documents=documents)
    steps = list(by_targets(data.steps(0, 1), targets))
    optimizer = make_optimizer(model, config.training)
    schedule = Schedule(optimizer, config.training, len(steps))
    found: dict[str, Any] = {"losses": [], "seconds": []}
    if compare:
        found |= {"losses_one_at_a_time": [], "losses_concat": []}
    largest = max((batch for step in steps for batch in step), key=lambda batch: batch.input_ids.numel())
    backward(model, [largest], bf16=bf16)  # the first call loads kernels
    for number, step in enumerate(steps):
        if compare:
            for name, runs in (("one_at_a_time", one_by_one), ("concat", lambda batch: [joined(batch)])):
                same = evaluate(model, [part for batch in step for part in runs(batch)], bf16=bf16)
                found[f"losses_{name}"].append(same.loss)
        schedule.set(number)
        seconds, loss = timed_step(model, step, optimizer, config.training.max_grad_norm, bf16)
        found["losses"].append(loss)
        found["seconds"].append(seconds)
    found["validation_loss"] = evaluate(model, data.validation(), bf16=bf16).loss
    del optimizer
    found["peak_bytes"] = peak_of(model, [largest], bf16)
    return found | contents(steps)


def by_targets(groups: Iterable[list[Batch]], targets: int) -> Iterator[list[Batch]]:
    """Groups joined to steps of as near to ``targets`` targets as whole groups come; the last has what remains."""
    step: list[Batch] = []
    held = 0
    for group in groups:
        more = sum(batch.n_target_tokens for batch in group)
        if step and held + more - targets > targets - held:
            yield step
            step, held = [], 0
        step, held = step + group, held + more
    if step:
        yield step


def timed_step(
    model: MambaLM, step: Sequence[Batch], optimizer: torch.optim.Optimizer, max_norm: float, bf16: bool
) -> tuple[float, float]:
    """Seconds of a whole optimiser step, and its mean loss."""
    started = now(model)
    mean = backward(model, step, bf16=bf16)
    update(model, optimizer, mean, max_norm)
    return now(model) - started, mean.loss


def peak_of(model: MambaLM, step: Sequence[Batch], bf16: bool) -> int:
    """The most bytes that forward and backward hold at once beyond the weights, gradients among them."""
    model.zero_grad(set_to_none=True)
    if not on_gpu(model):
        return peak_bytes(lambda: backward(model, step, bf16=bf16))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    backward(model, step, bf16=bf16)
    model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated() - before


def contents(steps: Sequence[Sequence[Batch]]) -> dict[str, Any]:
    """What the steps hold."""
    batches = [batch for step in steps for batch in step]
    tokens, positions = sum(b.n_tokens for b in batches), sum(b.input_ids.numel() for b in batches)
    return {
        "tokens_of_steps": [sum(batch.n_tokens for batch in step) for step in steps],
        "tokens": tokens,
        "targets": sum(batch.n_target_tokens for batch in batches),
        "positions": positions,
        "valid_ratio": tokens / positions,
        "micro_batches": len(batches),
        "sequences": sum(int((batch.sequence >= 0).sum()) for batch in batches),
    }


def now(model: MambaLM) -> float:
    """Seconds of a clock, when all that was asked of a GPU is done."""
    if on_gpu(model):
        torch.cuda.synchronize()
    return time.perf_counter()


def on_gpu(model: MambaLM) -> bool:
    """Whether the model lies on a GPU."""
    return next(model.parameters()).device.type == "cuda"
