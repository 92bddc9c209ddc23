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
from mamba_lab.bench.record import write_record
from mamba_lab.bench.timing import time_samples
from mamba_lab.lengths import published_lengths
from mamba_lab.machine import version_of
from mamba_lab.models import MambaConfig, MambaLM

CONFIG = MambaConfig(d_model=256, n_layer=4, vocab_size=4096, tie_embeddings=False)
TOKENS = (512, 2048)
# Hugging Face's loop over time takes seconds for 512 tokens already.
PEER_TOKENS = {"mambapy": (512, 2048), "transformers": (512,)}


def run(repeats: int = 5, output: Path | None = None) -> int:
    """Measure, print a table, write the record ``model``. Returns 0.

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
    payload = {
        "settings": {
            "config": asdict(CONFIG),
            "tokens": TOKENS,
            "repeats": repeats,
            "step": "forward and backward of the summed cross-entropy, float32",
            "seconds": "wall time of each repeat, in order",
            "peak_bytes": "the most that one step holds beyond parameters and their gradients' first allocation",
        },
        "ours": {str(tokens): measure_ours(model, tokens, repeats) for tokens in TOKENS},
        "peers": {name: measure_peer(model, name, repeats) for name in PEERS},
    }
    print(_table(payload))
    path = write_record("model", payload, folder=output)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure_ours(model: MambaLM, tokens: int, repeats: int) -> dict[str, Any]:
    """One pack, the same tokens as one sequence, the pack's sequences one by one, and the pack with less memory."""
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
    return {"lengths": lengths, **{name: measure(part, repeats) for name, part in parts.items()}}


def measure_peer(model: MambaLM, name: str, repeats: int) -> dict[str, Any]:
    """A peer's step on the same tokens as one sequence: it cannot be told where sequences start.

    Raises:
        RuntimeError: its loss is not ours.
    """
    if version_of(name) is None:
        return {"installed": False}
    peer = PEERS[name](model)
    found: dict[str, Any] = {"installed": True}
    for tokens in PEER_TOKENS[name]:
        ids, targets, _ = batch(tokens)

        def loss(ids: Tensor = ids, targets: Tensor = targets) -> Tensor:
            return all_logits(peer(ids), targets)

        agree(f"{name} at {tokens} tokens", loss().item(), ours(model, ids, targets, None).item())
        found[str(tokens)] = measure(loss, repeats)
    return found


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


def measure(loss: Callable[[], Tensor], repeats: int) -> dict[str, Any]:
    """Seconds of each step and the most bytes that one holds."""

    def step() -> None:
        loss().backward()

    return {"seconds": time_samples(step, repeats), "peak_bytes": peak_bytes(step)}


def _table(payload: Mapping[str, Any]) -> str:
    rows = [("step", *(f"{tokens} tokens: seconds" for tokens in TOKENS), "peak MiB")]
    found = {name: {tokens: payload["ours"][tokens][name] for tokens in payload["ours"]} for name in _OURS}
    found |= {
        name: {tokens: part for tokens, part in peer.items() if tokens != "installed"}
        for name, peer in payload["peers"].items()
        if peer["installed"]
    }
    for name, parts in found.items():
        times = [
            f"{statistics.median(parts[str(tokens)]['seconds']):.3f}" if str(tokens) in parts else "-"
            for tokens in TOKENS
        ]
        last = parts[max(parts, key=int)]
        rows.append((_OURS.get(name, name), *times, f"{last['peak_bytes'] / 2**20:.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{word:>{width}}" for word, width in zip(row, widths, strict=True)) for row in rows]
    missing = [name for name, peer in payload["peers"].items() if not peer["installed"]]
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
