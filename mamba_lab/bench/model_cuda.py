"""`mamba-lab bench model --device cuda`: a training step of a 1.4B Mamba-1 on a GPU, packed, beside mamba-ssm's.

A step is forward and backward of the summed cross-entropy. Tokens count where they belong to a document: padding is
work, and no token. How much padding there is depends on the lengths that a step's documents happen to have, so the
steps that this concerns are measured on several draws of them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mamba_lab.bench import model_cuda_steps, step_profile
from mamba_lab.bench.model_cuda_peers import INSTALL, PEER_STEPS, load
from mamba_lab.bench.model_cuda_steps import (
    Pack,
    Step,
    expected_valid_ratio,
    one_sequence,
    ours,
    packed,
    padded_positions,
    peer,
    under,
)
from mamba_lab.bench.model_cuda_table import table
from mamba_lab.bench.operator_cuda_timing import matmul_flops_per_second, queued_seconds
from mamba_lab.bench.record import Keep, RecordInProgress
from mamba_lab.machine import version_of
from mamba_lab.models import MambaConfig
from mamba_lab.ops.mamba_inner import fused_backends

CONFIG = MambaConfig(d_model=2048, n_layer=48, vocab_size=50_277)  # state-spaces/mamba-1.4b
TOKENS = (4096, 16_384)
PRECISIONS = ("autocast", "bfloat16")
# Of the second precision only what the memory and speed of the first are compared by.
SHORT = ("packed", "concat")
CHECKED_LAYERS, CHECKED_TOKENS = 2, 2048
TOLERANCE = 1e-3
SLOW_S, SLOW_REPEATS = 1.0, 3
# The lengths of a step's documents: the first seeds there are. One sequence at a time has the first draw alone, which
# suits it: it takes a step for each document, and that draw has fewer than the others. The rest sees no lengths.
SEEDS = (0, 1, 2, 3)
DRAWN = ("packed", "padding")
EXPECTED_DRAWS = 1000


def run(repeats: int, output: Path | None, peers: bool) -> int:
    """Measure, print each part as it is done and a table of all, write the record ``model-cuda``. Returns 0.

    The record is written again after each part. Where the process is stopped, ``model-cuda-unfinished`` has them.

    Raises:
        ValueError: PyTorch sees no GPU.
        RuntimeError: two models that should agree do not; their times would mean nothing.
    """
    if not torch.cuda.is_available():
        raise ValueError("device is cuda, and PyTorch sees no GPU here; mamba-lab bench model measures the CPU")
    payload: dict[str, Any] = {}
    record = RecordInProgress("model-cuda", output)
    measure("cuda", repeats, peers, payload, record.keep)
    print(table(payload))
    path = record.finish(payload)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure(device: str, repeats: int, peers: bool, payload: dict[str, Any], keep: Keep) -> None:
    """Fill the record's ``payload``, and ``keep`` it after each part.

    Of another device than "cuda" only the arithmetic means something.
    """
    missing = load() if peers else "not asked for"
    if missing is not None:
        print(f"mamba-ssm: skipped, {missing}", flush=True)
    payload |= {
        "settings": {
            "device": device,
            "config": asdict(CONFIG),
            "repeats": repeats,
            "step": "forward and backward of the summed cross-entropy; no optimizer",
            "autocast": "float32 parameters under bfloat16 autocast",
            "bfloat16": "bfloat16 parameters, but for A_log and D",
            "backends": fused_backends("auto", device),
            "draws": f"{' and '.join(DRAWN)} under autocast: documents of the published lengths, drawn with seeds "
            f"{', '.join(map(str, SEEDS))}; everything else: with seed {SEEDS[0]}. valid_ratio is that of padding "
            "to the longest document's length, up to the next multiple of 8",
            "expected_valid_ratio": f"the same over {EXPECTED_DRAWS:,} draws: tokens over positions, both summed",
            "seconds": "of each step by CUDA events, one after the other without a pause, in order; of a part with "
            "several draws the mean of theirs, so that tokens over seconds are all tokens over the whole time",
            "peak_bytes": "the most that PyTorch's allocator held during a step, parameters and gradients included; of "
            "several draws the most",
            "checked": f"relative L2 distance of the loss and of each gradient, the worst, of {CHECKED_LAYERS} layers "
            f"in float32 on {CHECKED_TOKENS} tokens; at most {TOLERANCE:.0e}",
        },
        "skipped": {} if missing is None else {"mamba-ssm": missing},
        "versions": {} if missing is not None else {name: version_of(name) for name in INSTALL},
        "ceilings": {"bf16_matmul_flops_per_second": matmul_flops_per_second(device)},
        "checked": check(device) if missing is None else {},
        "expected_valid_ratio": {str(tokens): expected_valid_ratio(tokens, EXPECTED_DRAWS) for tokens in TOKENS},
        "lengths": {str(tokens): {str(seed): pack(tokens, "cpu", seed).lengths for seed in SEEDS} for tokens in TOKENS},
        "timed": [],
        "profiles": [],
    }
    for precision in PRECISIONS:
        measure_ours(precision, device, repeats, payload, keep)
        if missing is None:
            measure_peer(precision, device, repeats, payload, keep)


def measure_ours(precision: str, device: str, repeats: int, payload: dict[str, Any], keep: Keep) -> None:
    """Add MambaLM's packed steps, and the profile of the first."""
    model = ours(CONFIG, precision, device)
    for tokens in TOKENS:
        batches = batches_of("packed", tokens, precision, device)
        add(payload, "mamba-lab", "packed", precision, measure_step(packed, model, precision, batches, repeats))
        if precision == PRECISIONS[0]:
            add_profile(payload, "mamba-lab", "packed", precision, packed, model, batches[0])
        keep(payload)


def measure_peer(precision: str, device: str, repeats: int, payload: dict[str, Any], keep: Keep) -> None:
    """Add mamba-ssm's steps: the row as one document, one document at a time, and a padded batch."""
    model = peer(CONFIG, precision, device)
    for tokens in TOKENS:
        for name, step in PEER_STEPS.items():
            if precision == PRECISIONS[0] or name in SHORT:
                batches = batches_of(name, tokens, precision, device)
                found = measure_step(step, model, precision, batches, repeats)
                add(payload, "mamba-ssm", name, precision, found)
                keep(payload)
        if precision == PRECISIONS[0] and tokens == TOKENS[0]:
            concat = PEER_STEPS["concat"]
            add_profile(payload, "mamba-ssm", "concat", precision, concat, model, pack(tokens, device, SEEDS[0]))
            keep(payload)


def batches_of(step: str, tokens: int, precision: str, device: str) -> list[Pack]:
    """The rows that a step is measured on: one for each draw of lengths that concerns it."""
    several = step in DRAWN and precision == PRECISIONS[0]
    return [pack(tokens, device, seed) for seed in (SEEDS if several else SEEDS[:1])]


def pack(tokens: int, device: str, seed: int) -> Pack:
    """A row of the model's ids."""
    return model_cuda_steps.pack(tokens, CONFIG.vocab_size, device, seed)


def add_profile(
    payload: dict[str, Any], package: str, name: str, precision: str, step: Step, model: nn.Module, batch: Pack
) -> None:
    """Add where the GPU's time of a step goes."""
    found = step_profile.measure(prepared(step, model, precision, batch), batch.ids.device.type)
    what = {"package": package, "step": name, "precision": precision, "tokens": batch.ids.shape[1]}
    payload["profiles"].append(what | found)
    model.zero_grad(set_to_none=True)


def add(payload: dict[str, Any], package: str, name: str, precision: str, found: Mapping[str, Any]) -> None:
    payload["timed"].append({"package": package, "step": name, "precision": precision, **found})
    said = found["failed"] or f"{found['tokens'] / statistics.median(found['seconds']):,.0f} tokens/s"
    print(f"{package}, {name}, {precision}, {found['tokens']:,} tokens: {said}", flush=True)


def prepared(step: Step, model: nn.Module, precision: str, batch: Pack) -> Callable[[], None]:
    """The step as a training loop makes it: gradients of its own."""
    call, parameters = under(model, precision, batch.ids.device.type), list(model.parameters())

    def once() -> None:
        for parameter in parameters:  # as an optimiser does; Module.zero_grad goes through all layers first
            parameter.grad = None
        step(call, batch)

    return once


def measure_step(step: Step, model: nn.Module, precision: str, batches: Sequence[Pack], repeats: int) -> dict[str, Any]:
    """Seconds of each step and the most memory, over all ``batches`` and of each.

    ``failed`` says so where there was not enough memory: of a batch, and of the whole where none of them fitted.
    """
    draws = [measure_draw(step, model, precision, batch, repeats) for batch in batches]
    fitted = [draw for draw in draws if not draw["failed"]]
    return {
        "tokens": batches[0].ids.shape[1],
        "failed": None if fitted else draws[0]["failed"],
        "seconds": [statistics.mean(turn) for turn in zip(*(draw["seconds"] for draw in fitted), strict=False)],
        "peak_bytes": max((draw["peak_bytes"] for draw in fitted if draw["peak_bytes"] is not None), default=None),
        "draws": draws,
    }


def measure_draw(step: Step, model: nn.Module, precision: str, batch: Pack, repeats: int) -> dict[str, Any]:
    """Seconds of each step on one row, and the most memory."""
    device, once = batch.ids.device.type, prepared(step, model, precision, batch)
    found: dict[str, Any] = {
        "seed": batch.seed,
        "sequences": len(batch.lengths),
        "valid_ratio": batch.ids.shape[1] / padded_positions(batch.lengths),
        "failed": None,
    }
    try:
        once()  # compiles and tunes what is compiled and tuned on first use
        probe, peak = peak_of(once, device)
        samples = [probe] if probe >= SLOW_S else []
        more = (min(repeats, SLOW_REPEATS) if samples else repeats) - len(samples)
        samples += queued_seconds(once, more, device) if more else []
    except torch.OutOfMemoryError:
        return found | {"failed": "out of memory", "seconds": [], "peak_bytes": None}
    finally:
        model.zero_grad(set_to_none=True)
        _tidy(device)
    return found | {"seconds": samples, "peak_bytes": peak}


def check(device: str) -> dict[str, float]:
    """Two layers in float32: each way of training on documents against its equal of the other package.

    Raises:
        RuntimeError: they do not agree.
    """
    config = replace(CONFIG, n_layer=CHECKED_LAYERS)
    mine, theirs = ours(config, "float32", device), peer(config, "float32", device)
    theirs.load_state_dict(mine.state_dict())
    batch = pack(CHECKED_TOKENS, device, SEEDS[0])
    apart = gradients(packed, mine, batch)
    together = gradients(one_sequence, mine, batch)
    found = {}
    for name, step in PEER_STEPS.items():
        wanted = together if name == "concat" else apart
        found[name] = agree(f"mamba-ssm, {name}", gradients(step, theirs, batch), wanted)
    # A check that cannot tell the two apart checks nothing.
    found["packed from concat"] = max(distances(together, apart).values())
    if found["packed from concat"] < 10 * TOLERANCE:
        raise RuntimeError("packed and concatenated documents give the same gradients; the check sees no boundaries")
    return found


def gradients(step: Step, model: nn.Module, batch: Pack) -> dict[str, Tensor]:
    """The summed loss and every parameter's gradient."""
    model.zero_grad(set_to_none=True)
    loss = step(model, batch)
    found = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return {"loss": loss.detach(), **found}


def agree(what: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The worst relative L2 distance.

    Raises:
        RuntimeError: a distance above ``TOLERANCE``, or other parameters.
    """
    if found.keys() != wanted.keys():
        raise RuntimeError(f"{what}: gradients of other parameters: {sorted(found.keys() ^ wanted.keys())}")
    off = distances(found, wanted)
    worst = max(off, key=lambda name: off[name] if off[name] == off[name] else float("inf"))
    if not off[worst] <= TOLERANCE:
        raise RuntimeError(
            f"{what}: {worst} is off by {off[worst]:.1e}, more than {TOLERANCE:.0e}; times of different things mean "
            f"nothing"
        )
    return off[worst]


def distances(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, float]:
    """Relative L2 distance of each tensor."""
    return {
        name: float((value.double() - wanted[name].double()).norm() / wanted[name].double().norm().clamp(min=1e-300))
        for name, value in found.items()
    }


def peak_of(step: Callable[[], object], device: str) -> tuple[float, int | None]:
    """Seconds of a step, and the most bytes that tensors took on the GPU then, with all that was there before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    (seconds,) = queued_seconds(step, 1, device)
    return seconds, torch.cuda.max_memory_allocated() if device == "cuda" else None


def _tidy(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
