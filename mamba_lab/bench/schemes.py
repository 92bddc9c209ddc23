"""`mamba-lab bench schemes`: the eight schemes on the same conversations: speed, padding, memory, loss.

On the CPU a small model learns every document once under each scheme. On a GPU (`--device cuda`) a 130M model does so
too, and an epoch of all conversations is timed by a sample of its micro-batches, of a 130M and of a 1.4B model.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mamba_lab.bench.operator_table import aligned
from mamba_lab.bench.record import Keep, RecordInProgress
from mamba_lab.bench.scheme_runs import SAME_ORDER, learn
from mamba_lab.bench.scheme_steps import speed
from mamba_lab.corpus import Corpus, load_corpus
from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.training import TrainConfig
from mamba_lab.training.config import SCHEMES

CORPUS = "chat"
SMALL = MambaConfig(d_model=128, n_layer=2, vocab_size=8192)
M130 = MambaConfig(d_model=768, n_layer=24, vocab_size=50_277)  # state-spaces/mamba-130m
B14 = MambaConfig(d_model=2048, n_layer=48, vocab_size=50_277)  # state-spaces/mamba-1.4b
# Documents, tokens of a row, rows of a micro-batch, targets of a step, learning rate.
CPU_RUN = {"documents": 600, "capacity": 512, "rows": 2, "targets": 2048, "learning_rate": 3e-3}
GPU_RUN = {"documents": 110, "capacity": 2048, "rows": 2, "targets": 8192, "learning_rate": 1e-3}
# Model, rows of 2,048 in a micro-batch, positions of a step: how often the weights are updated.
GPU_STEPS = (
    ("1.4B", B14, 4, (8192, 65_536)),
    ("130M", M130, 4, (8192,)),
    ("130M", M130, 32, (65_536,)),
)
# Within a buffer of a stream the packs of best fit are those of "packed-greedy", so their time is too.
TIMED = tuple(scheme for scheme in SCHEMES if scheme != "packed-best-fit")
# Of more micro-batches than that, so many are timed: more where they differ in size.
AT_MOST = {"one-at-a-time": 12, "bucketed": 12, "padded": 6}
OTHERS_AT_MOST = 4
# A sample is timed so often, and less often where that would take longer than so many seconds.
REPEATS, STEP_SECONDS = 5, 1.5
# A GPU is paid by the minute: what has not begun by then is left out, and said.
GPU_SECONDS = 150.0
# One-at-a-time against packs, by the same weights, relative. In bfloat16 the shape of a matrix product decides how it
# rounds.
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}


def run(output: Path | None = None, device: str = "cpu") -> int:
    """Measure, print each part as it is done and a table of all, write ``schemes`` or ``schemes-cuda``. Returns 0.

    The record is written again after each part. Where the process is stopped, one with "-unfinished" in its name has
    them.

    Raises:
        ValueError: device is "cuda", and PyTorch sees no GPU.
        RuntimeError: packs have another loss than their sequences one at a time; nothing else would mean anything.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and PyTorch sees no GPU here; mamba-lab bench schemes measures the CPU")
    payload: dict[str, Any] = {}
    record = RecordInProgress("schemes" if device == "cpu" else f"schemes-{device}", output)
    measure(device, payload, record.keep)
    print(table(payload))
    path = record.finish(payload)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure(device: str, payload: dict[str, Any], keep: Keep) -> None:
    """Fill the record's ``payload``, and ``keep`` it after each part."""
    gpu = device == "cuda"
    config, settings = (M130, GPU_RUN) if gpu else (SMALL, CPU_RUN)
    payload |= {
        "settings": {
            "device": device,
            "corpus": CORPUS,
            "run": settings | {"config": asdict(config), "bf16": gpu},
            "learned": "every training document once; steps of about so many targets, in whole micro-batches; the same "
            "start; losses: of each step, in nats",
            "seconds": "learned: wall time of each optimiser step: forward, backward, clipping, update",
            "peak_bytes": "the most that a micro-batch's forward and backward (learned) or a step (steps) holds beyond "
            "weights and optimiser, gradients among it; of the micro-batch with the most positions",
            "losses_one_at_a_time, losses_concat": "of the packed run's steps, by its weights, run otherwise",
            "steps": "every document once under each scheme, cut off at a row; the weights stay as they are. seconds: "
            "of the whole epoch, repeated: forward_backward_seconds, and update_seconds times updates",
            "timed_micro_batches": "steps: so many of the micro_batches are run, spread by the lengths of their "
            "sequences; their forward_backward_seconds count for all in proportion",
            "call_seconds": "steps, one-at-a-time: forward and backward of one sequence of so many call_tokens",
        },
        "learned": {},
        "steps": [],
        "left_out": [],
    }
    started = time.monotonic()
    documents = _corpus()
    model = make_model(config, device)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for scheme in SCHEMES:
        found = learn(
            model,
            start,
            train_config(scheme, settings, device),
            documents[: settings["documents"]],
            targets=int(settings["targets"]),
            bf16=gpu,
            compare=scheme == "packed-greedy",
        )
        payload["learned"][scheme] = found
        keep(payload)
        print(f"{scheme}: {line(found)}", flush=True)
    payload["differences"] = differences(payload["learned"], TOLERANCE[device])
    if gpu:
        del model, start
        measure_steps(documents, device, started + GPU_SECONDS, payload, keep)


def measure_steps(documents: Corpus, device: str, until: float, payload: dict[str, Any], keep: Keep) -> None:
    """Into ``payload``: what all documents take under every scheme, in steps of several sizes, by the same weights.

    Args:
        until: of ``time.monotonic``: what has not begun by then is left out.
    """
    model, made = None, ""
    for name, config, rows, sizes in GPU_STEPS:
        settings = GPU_RUN | {"rows": rows}
        parts: list[dict[str, Any]] = [
            {"model": name, "config": asdict(config), "rows": rows, "positions": size, "schemes": {}} for size in sizes
        ]
        for scheme in TIMED:
            title = f"{name}, {' and '.join(f'{size:,}' for size in sizes)} positions a step: {scheme}"
            if time.monotonic() > until:
                payload["left_out"].append(title)
                print(f"{title}: left out, the time is up", flush=True)
                continue
            if made != name:
                del model
                gc.collect()
                torch.cuda.empty_cache()
                model, made = make_model(config, device), name
            assert model is not None
            found = speed(
                model,
                train_config(scheme, settings, device, all_alike=True),
                documents,
                at_most=AT_MOST.get(scheme, OTHERS_AT_MOST),
                repeats=REPEATS,
                seconds=STEP_SECONDS,
                bf16=device == "cuda",
            )
            for part in parts:
                part["schemes"][scheme] = with_updates(found, part["positions"])
                require_same_tokens(part["schemes"])
                if len(part["schemes"]) == 1:
                    payload["steps"].append(part)
            keep(payload)
            print(f"{title}: {', '.join(line(part['schemes'][scheme]) for part in parts)}", flush=True)


def with_updates(found: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """``seconds`` of an epoch: all micro-batches, and an update for every so many tokens, under each scheme alike."""
    updates = -(-found["tokens"] // positions)
    passes = zip(found["forward_backward_seconds"], found["update_seconds"], strict=True)
    return {**found, "updates": updates, "seconds": [batches + updates * update for batches, update in passes]}


def require_same_tokens(schemes: Mapping[str, Any]) -> None:
    """Raises RuntimeError where the schemes' epochs do not hold the same number of tokens."""
    tokens = {name: found["tokens"] for name, found in schemes.items()}
    if len(set(tokens.values())) > 1:
        raise RuntimeError(f"the same documents have other tokens: {tokens}; times of other work mean nothing")


def train_config(scheme: str, settings: Mapping[str, Any], device: str, *, all_alike: bool = False) -> TrainConfig:
    """The run of one scheme; with ``all_alike`` on all documents, none longer than a row."""
    data: dict[str, Any] = {"corpus": CORPUS, "validation_share": 0.1}
    if all_alike:
        data |= {"validation_share": 0.0, "max_seq_len": settings["capacity"]}
    sections: dict[str, Any] = {
        "data": data,
        "packing": {"scheme": scheme, "capacity": settings["capacity"], "rows": settings["rows"], "workers": 0},
        "training": {"learning_rate": settings["learning_rate"], "warmup_ratio": 0.1, "device": device},
    }
    return TrainConfig(**sections)


def make_model(config: MambaConfig, device: str) -> MambaLM:
    """The same weights each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return MambaLM(config)


def differences(learned: Mapping[str, Any], tolerance: float) -> dict[str, float]:
    """The largest relative difference of a step's loss from that of the packs, by the same weights and by the runs.

    Raises:
        RuntimeError: by the same weights, one sequence at a time has another loss.
    """
    packed = learned["packed-greedy"]
    found = {name: _largest(packed["losses"], packed[f"losses_{name}"]) for name in ("one_at_a_time", "concat")}
    if not found["one_at_a_time"] <= tolerance:
        raise RuntimeError(
            f"packs and their sequences one at a time differ by {found['one_at_a_time']:.1e} in a step's loss, and "
            f"rounding makes {tolerance:.0e} at most; no other figure would mean anything"
        )
    for scheme in SAME_ORDER[1:]:
        found[f"run_{scheme.replace('-', '_')}"] = _largest(packed["losses"], learned[scheme]["losses"])
    return found


def _largest(one: list[float], other: list[float]) -> float:
    # NumPy's maximum, since Python's passes over what is no number.
    return float(np.max([abs(a - b) / abs(a) for a, b in zip(one, other, strict=True)]))


def line(found: Mapping[str, Any]) -> str:
    """A scheme's figures in a line."""
    text = f"{tokens_per_second(found):,.0f} tokens/s, valid ratio {found['valid_ratio']:.1%}"
    return text + (f", validation loss {found['validation_loss']:.3f}" if "validation_loss" in found else "")


def tokens_per_second(found: Mapping[str, Any]) -> float:
    """Tokens, padding left out, over the time of all steps, or over the median of an epoch that was repeated."""
    seconds = statistics.median(found["seconds"]) if "updates" in found else sum(found["seconds"])
    return float(found["tokens"] / seconds)


def table(payload: Mapping[str, Any]) -> str:
    """All figures, against one sequence at a time."""
    lines = []
    parts = [("every document once", payload["learned"])]
    parts += [
        (f"{part['model']}, {part['positions']:,} positions a step", part["schemes"]) for part in payload["steps"]
    ]
    for title, schemes in parts:
        alone = tokens_per_second(schemes["one-at-a-time"]) if "one-at-a-time" in schemes else None
        rows = [(title, "tokens/s", "one at a time = 1", "valid ratio", "peak MiB", "validation loss")]
        for scheme, found in schemes.items():
            rows.append(
                (
                    scheme,
                    f"{tokens_per_second(found):,.0f}",
                    "-" if alone is None else f"{tokens_per_second(found) / alone:.2f}",
                    f"{found['valid_ratio']:.1%}",
                    "-" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:,.0f}",
                    f"{found['validation_loss']:.3f}" if "validation_loss" in found else "-",
                )
            )
        lines += [*aligned(rows), ""]
    apart = payload["differences"]
    lines.append(
        f"Largest difference of a step's loss from the packs', by the same weights: one sequence at a time "
        f"{apart['one_at_a_time']:.1e}, leaking {apart['concat']:.1e}; by their own runs "
        f"{apart['run_one_at_a_time']:.1e} and {apart['run_concat']:.1e}."
    )
    return "\n".join(lines)


def _corpus() -> Corpus:
    corpus = load_corpus(CORPUS)
    assert isinstance(corpus, Corpus)  # a shipped corpus is never a stream
    return corpus
