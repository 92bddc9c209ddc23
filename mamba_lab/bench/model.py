"""`mamba-lab bench model`: a training step of MambaLM, packed and not, beside the peers that run without a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.bench.memory import peak_bytes
from mamba_lab.bench.model_peers import PEERS
from mamba_lab.bench.record import RecordInProgress
from mamba_lab.bench.timing import time_samples
from mamba_lab.lengths import published_lengths
from mamba_lab.machine import version_of
from mamba_lab.models import MambaConfig, MambaLM

CONFIG = MambaConfig(d_model=256, n_layer=4, vocab_size=4096, tie_embeddings=False)
TOKENS = (512, 2048)
# Hugging Face's loop over time takes seconds for 512 tokens already.
PEER_TOKENS = {"mambapy": (512, 2048), "transformers": (512,)}
# The profiler that counts bytes takes minutes over a step of so many thousand small operators.
LOOPS = ("transformers",)


def run(repeats: int = 5, output: Path | None = None) -> int:
    """Measure, print each part as it is done and a table of all, write the record ``model``. Returns 0.

    The record is written again after each part. Where the process is stopped, ``model-unfinished`` has them.

    A step is forward and backward of the summed cross-entropy in float32. Every peer has the same weights, and its loss
    is compared with ours before it is timed.

    Args:
        repeats: timed repeats of each part.
        output: the record's folder, ``data/results`` when None.

    Raises:
        RuntimeError: two models that should agree do not; their times would mean nothing.
    """
    torch.manual_seed(0)
    model = MambaLM(CONFIG)
    payload: dict[str, Any] = {
        "settings": {
            "config": asdict(CONFIG),
            "tokens": TOKENS,
            "repeats": repeats,
            "step": "forward and backward of the summed cross-entropy, float32",
            "seconds": "wall time of each repeat, in order",
            "peak_bytes": "the most that one step holds beyond parameters and their gradients' first allocation; "
            "null where the allocator's events were not recorded",
        },
        "ours": {},
        "peers": {},
    }
    record = RecordInProgress("model", output)

    def keep() -> None:
        record.keep(payload)

    for tokens in TOKENS:
        measure_ours(model, tokens, repeats, payload["ours"].setdefault(str(tokens), {}), keep)
    for peer in PEERS:
        measure_peer(model, peer, repeats, payload["peers"].setdefault(peer, {}), keep)
    print(_table(payload))
    path = record.finish(payload)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure_ours(model: MambaLM, tokens: int, repeats: int, found: dict[str, Any], keep: Callable[[], object]) -> None:
    """Into ``found``: one pack, its tokens as one sequence, its sequences one by one, and the pack in less memory."""
    ids, targets, lengths = batch(tokens)
    boundaries = Boundaries.from_lengths(lengths)
    checkpointed = MambaLM(CONFIG)
    checkpointed.load_state_dict(model.state_dict())
    checkpointed.set_gradient_checkpointing()
    pieces = list(zip(ids.split(lengths, 1), targets.split(lengths, 1), strict=True))

    def one_by_one() -> Tensor:
        return torch.stack([ours(model, *piece, None) for piece in pieces]).sum()

    parts: dict[str, Callable[[], Tensor]] = {
        "packed": lambda: ours(model, ids, targets, boundaries),
        "one_sequence": lambda: ours(model, ids, targets, None),
        "one_by_one": one_by_one,
        "packed_checkpointed": lambda: ours(checkpointed, ids, targets, boundaries),
        "packed_all_logits": lambda: all_logits(model(ids, boundaries), targets),
    }
    for name in ("one_by_one", "packed_checkpointed", "packed_all_logits"):
        agree(f"{name} at {tokens} tokens", parts[name]().item(), parts["packed"]().item())
    found["lengths"] = lengths
    for name, part in parts.items():
        found[name] = measure(f"{_OURS[name]}, {tokens} tokens", part, repeats)
        keep()


def measure_peer(model: MambaLM, name: str, repeats: int, found: dict[str, Any], keep: Callable[[], object]) -> None:
    """Into ``found``: a peer's step on the same tokens as one sequence: it cannot be told where sequences start.

    Raises:
        RuntimeError: its loss is not ours.
    """
    found["installed"] = version_of(name) is not None
    if not found["installed"]:
        return
    peer = PEERS[name](model)
    for tokens in PEER_TOKENS[name]:
        ids, targets, _ = batch(tokens)

        def loss(ids: Tensor = ids, targets: Tensor = targets) -> Tensor:
            return all_logits(peer(ids), targets)

        agree(f"{name} at {tokens} tokens", loss().item(), ours(model, ids, targets, None).item())
        found[str(tokens)] = measure(f"{name}, {tokens} tokens", loss, repeats, memory=name not in LOOPS)
        keep()


def batch(tokens: int) -> tuple[Tensor, Tensor, list[int]]:
    """Ids and targets [1, tokens], and the lengths of the sequences in them; the last one is cut to fit."""
    drawn = published_lengths(tokens, seed=0)
    ends = np.minimum(np.cumsum(drawn), tokens)
    lengths = [int(length) for length in np.diff(ends, prepend=0) if length]
    ids = torch.randint(0, CONFIG.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    targets = ids.roll(-1, 1)
    targets[0, np.cumsum(lengths) - 1] = -100
    return ids, targets, lengths


def ours(model: MambaLM, ids: Tensor, targets: Tensor, boundaries: Boundaries | None) -> Tensor:
    """The summed loss, without all logits."""
    loss, _ = model(ids, boundaries, targets=targets)
    return loss


def all_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """The summed loss of whole logits, as a peer's user writes it."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def agree(what: str, found: float, wanted: float) -> None:
    """Raise RuntimeError unless two summed losses are equal to 1e-4 of their size."""
    if not abs(found - wanted) <= 1e-4 * abs(wanted):
        raise RuntimeError(f"{what}: the loss is {found}, expected {wanted}; times of different things mean nothing")


def measure(what: str, loss: Callable[[], Tensor], repeats: int, *, memory: bool = True) -> dict[str, Any]:
    """Seconds of each step and, with ``memory``, the most bytes that one holds. Prints the median."""

    def step() -> None:
        loss().backward()

    seconds = time_samples(step, repeats)
    print(f"{what}: {statistics.median(seconds):.3f} s", flush=True)
    return {"seconds": seconds, "peak_bytes": peak_bytes(step) if memory else None}


def _table(payload: Mapping[str, Any]) -> str:
    rows = [("step", *(f"{tokens} tokens: seconds" for tokens in TOKENS), "peak MiB")]
    found = {
        name: {tokens: parts[name] for tokens, parts in payload["ours"].items() if name in parts} for name in _OURS
    }
    found |= {
        name: {tokens: part for tokens, part in peer.items() if tokens != "installed"}
        for name, peer in payload["peers"].items()
    }
    for name, parts in found.items():
        if not parts:
            continue
        times = [
            f"{statistics.median(parts[str(tokens)]['seconds']):.3f}" if str(tokens) in parts else "-"
            for tokens in TOKENS
        ]
        peak = parts[max(parts, key=int)]["peak_bytes"]
        rows.append((_OURS.get(name, name), *times, "-" if peak is None else f"{peak / 2**20:.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{word:>{width}}" for word, width in zip(row, widths, strict=True)) for row in rows]
    missing = [name for name, peer in payload["peers"].items() if peer.get("installed") is False]
    if missing:
        lines.append(f"not installed: {', '.join(missing)} (pip install 'mamba-lab[peers,dev]')")
    return "\n".join(lines)


_OURS = {
    "packed": "MambaLM, packed",
    "one_sequence": "MambaLM, one sequence",
    "one_by_one": "MambaLM, one by one",
    "packed_checkpointed": "MambaLM, packed, checkpointed",
    "packed_all_logits": "MambaLM, packed, all logits",
}
