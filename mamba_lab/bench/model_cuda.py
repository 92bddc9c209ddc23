"""`mamba-lab bench model --device cuda`: a training step of a 1.4B Mamba-1 on a GPU, packed, beside mamba-ssm's.

A step is forward and backward of the summed cross-entropy. Tokens count where they belong to a document: padding is
work, and no token.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mamba_lab.batching import Boundaries
from mamba_lab.bench import step_profile
from mamba_lab.bench.model_cuda_peers import INSTALL, PEER_STEPS, load
from mamba_lab.bench.model_cuda_table import table
from mamba_lab.bench.operator_cases import published_pack
from mamba_lab.bench.operator_cuda_timing import matmul_flops_per_second, queued_seconds
from mamba_lab.bench.record import Keep, RecordInProgress
from mamba_lab.machine import version_of
from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.ops.mamba_inner import fused_backends

CONFIG = MambaConfig(d_model=2048, n_layer=48, vocab_size=50_277)  # state-spaces/mamba-1.4b
TOKENS = (4096, 16_384)
PRECISIONS = ("autocast", "bfloat16")
# Of the second precision only what the memory and speed of the first are compared by.
SHORT = ("packed", "concat")
CHECKED_LAYERS, CHECKED_TOKENS = 2, 2048
TOLERANCE = 1e-3
SLOW_S, SLOW_REPEATS = 1.0, 3

Call: TypeAlias = "Callable[..., Any]"
"""A model, or its forward pass under autocast."""


@dataclass(frozen=True)
class Pack:
    """One row of documents: ids and targets [1, T], and where the documents start."""

    ids: Tensor
    targets: Tensor
    lengths: list[int]
    boundaries: Boundaries


Step: TypeAlias = "Callable[[Call, Pack], Tensor]"
"""Forward and backward; gives the summed loss back."""


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
            "seconds": "of each step by CUDA events, one after the other without a pause, in order",
            "peak_bytes": "the most that PyTorch's allocator held during a step: parameters and gradients included",
            "checked": f"relative L2 distance of the loss and of each gradient, the worst, of {CHECKED_LAYERS} layers "
            f"in float32 on {CHECKED_TOKENS} tokens; at most {TOLERANCE:.0e}",
        },
        "skipped": {} if missing is None else {"mamba-ssm": missing},
        "versions": {} if missing is not None else {name: version_of(name) for name in INSTALL},
        "ceilings": {"bf16_matmul_flops_per_second": matmul_flops_per_second(device)},
        "checked": check(device) if missing is None else {},
        "lengths": {str(tokens): published_pack(tokens) for tokens in TOKENS},
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
        batch = pack(tokens, device)
        add(payload, "mamba-lab", "packed", precision, measure_step(packed, model, precision, batch, repeats))
        if precision == PRECISIONS[0]:
            add_profile(payload, "mamba-lab", "packed", precision, packed, model, batch)
        keep(payload)


def measure_peer(precision: str, device: str, repeats: int, payload: dict[str, Any], keep: Keep) -> None:
    """Add mamba-ssm's steps: the row as one document, one document at a time, and a padded batch."""
    model = peer(CONFIG, precision, device)
    for tokens in TOKENS:
        for name, step in PEER_STEPS.items():
            if precision == PRECISIONS[0] or name in SHORT:
                found = measure_step(step, model, precision, pack(tokens, device), repeats)
                add(payload, "mamba-ssm", name, precision, found)
                keep(payload)
        if precision == PRECISIONS[0] and tokens == TOKENS[0]:
            concat = PEER_STEPS["concat"]
            add_profile(payload, "mamba-ssm", "concat", precision, concat, model, pack(tokens, device))
            keep(payload)


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
    call = under(model, precision, batch.ids.device.type)

    def once() -> None:
        model.zero_grad(set_to_none=True)
        step(call, batch)

    return once


def measure_step(step: Step, model: nn.Module, precision: str, batch: Pack, repeats: int) -> dict[str, Any]:
    """Seconds of each step and the most memory; ``failed`` says so where there was not enough."""
    device, once = batch.ids.device.type, prepared(step, model, precision, batch)
    found: dict[str, Any] = {"tokens": batch.ids.shape[1], "failed": None}
    try:
        once()  # compiles and tunes what is compiled and tuned on first use
        probe, peak = peak_of(once, device)
        samples = queued_seconds(once, repeats if probe < SLOW_S else min(repeats, SLOW_REPEATS), device)
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
    batch = pack(CHECKED_TOKENS, device)
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


def packed(model: Call, batch: Pack) -> Tensor:
    """MambaLM on the row, with its boundaries."""
    loss: Tensor = model(batch.ids, batch.boundaries, targets=batch.targets)[0]
    loss.backward()
    return loss


def one_sequence(model: Call, batch: Pack) -> Tensor:
    """MambaLM on the row as one document."""
    loss: Tensor = model(batch.ids, None, targets=batch.targets)[0]
    loss.backward()
    return loss


def under(model: nn.Module, precision: str, device: str) -> Call:
    """The model's forward pass as ``precision`` has it: under autocast, or as it is."""
    if precision != "autocast":
        return model

    def call(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return model(*arguments, **options)

    return call


def ours(config: MambaConfig, precision: str, device: str) -> nn.Module:
    """MambaLM with fresh weights on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = MambaLM(config)
    return narrowed(model) if precision == "bfloat16" else model


def peer(config: MambaConfig, precision: str, device: str) -> nn.Module:
    """mamba-ssm's model of the same sizes with fresh weights on the device."""
    from mamba_ssm.models.config_mamba import MambaConfig as PeerConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model: nn.Module = MambaLMHeadModel(PeerConfig(**config.to_mamba_ssm()), device=device, dtype=dtype)
    return model


def narrowed(model: nn.Module) -> nn.Module:
    """The model in bfloat16, as mamba-ssm makes one: A_log and D stay float32."""
    for name, value in model.named_parameters():
        if name.rpartition(".")[2] not in ("A_log", "D"):
            value.data = value.data.to(torch.bfloat16)
    return model


def pack(tokens: int, device: str) -> Pack:
    """A row of published lengths that ``tokens`` fill, of random ids."""
    lengths = published_pack(tokens)
    ids = torch.randint(0, CONFIG.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    targets = ids.roll(-1, 1)
    targets[0, torch.tensor(lengths).cumsum(0) - 1] = -100
    return Pack(ids.to(device), targets.to(device), lengths, Boundaries.from_lengths(lengths, device=device))


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
