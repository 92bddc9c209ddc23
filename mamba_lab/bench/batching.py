"""`mamba-lab bench batching`: what each scheme of this release makes of real lengths, and what the sampler costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from mamba_lab.batching import PackingPlan, TokenBudgetSampler, _cut, chunk_fixed
from mamba_lab.bench.record import write_record
from mamba_lab.bench.timing import time_samples
from mamba_lab.corpus import Corpus, load_corpus
from mamba_lab.lengths import length_stats, published_lengths
from mamba_lab.ops.build import load_library

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

CORPORA = ("docs", "code", "code-modules", "chat")
CAPACITIES = (512, 2048)
BATCH_SIZE = 16
MAX_TOKENS = 16_384
SEEDS = 5
PUBLISHED = 100_000
TIMED = 1_000_000


def run(repeats: int = 5, output: Path | None = None) -> int:
    """Measure, print a table, write the record ``batching``. Returns 0.

    Args:
        repeats: timed repeats of each part.
        output: the record's folder, ``data/results`` when None.

    Raises:
        NativeUnavailable: the sampler's C++ loop cannot be built here, so there is nothing to compare.
    """
    load_library("token_budget")
    lengths = {name: _corpus_lengths(name) for name in CORPORA}
    lengths["published"] = published_lengths(PUBLISHED, seed=0)
    payload = {
        "settings": {
            "capacities": CAPACITIES,
            "batch_size": BATCH_SIZE,
            "max_tokens": MAX_TOKENS,
            "seeds": SEEDS,
            "repeats": repeats,
            "seconds": "wall time of each repeat, in order",
        },
        "lengths": {name: measure_schemes(found) for name, found in lengths.items()},
        "sampler": measure_sampler(published_lengths(TIMED, seed=0), repeats),
    }
    print(_table(payload))
    path = write_record("batching", payload, folder=output)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure_schemes(lengths: Int64Array) -> dict[str, Any]:
    """Valid ratios of fixed chunks, random padded batches and token-budget batches, for one list of lengths."""
    return {
        "statistics": asdict(length_stats(lengths)),
        "fixed_chunks": [
            {"capacity": capacity, "across": across, **chunk_costs(chunk_fixed(lengths, capacity, across=across))}
            for capacity in CAPACITIES
            for across in (False, True)
        ],
        "padded_random": {"valid_ratio": [random_padding(lengths, seed) for seed in range(SEEDS)]},
        "token_budget": _token_budget(lengths),
    }


def chunk_costs(plan: PackingPlan) -> dict[str, Any]:
    """What fixed chunks cost: padding, documents cut, chunks that mix documents, tokens that lost their context.

    A token has lost context when its document began in an earlier chunk.
    """
    length = (plan.stop - plan.start).astype(np.int64)
    documents, pieces = np.unique(plan.sequence, return_counts=True)
    continued = plan.start > 0
    mixed = np.diff(plan.offsets) > 1
    tokens = int(length.sum())
    return {
        "rows": plan.n_bins,
        "valid_ratio": 1.0 - plan.padding_rate,
        "documents_cut": float(np.mean(pieces > 1)) if len(documents) else 0.0,
        "cuts": int(continued.sum()),
        "tokens_cut_off": float(length[continued].sum() / tokens) if tokens else 0.0,
        "rows_that_mix_documents": float(np.mean(mixed)) if len(mixed) else 0.0,
        "dropped": plan.dropped,
    }


def random_padding(lengths: Int64Array, seed: int) -> float:
    """The valid ratio of an epoch of BATCH_SIZE random samples a batch, each batch padded to its longest."""
    shuffled = lengths[np.random.default_rng(seed).permutation(len(lengths))]
    starts = np.arange(0, len(shuffled), BATCH_SIZE)
    longest = np.maximum.reduceat(shuffled, starts)
    counts = np.diff(np.append(starts, len(shuffled)))
    return float(shuffled.sum() / (longest * counts).sum())


def _token_budget(lengths: Int64Array) -> dict[str, Any]:
    # The budget must hold the longest document.
    budget = max(MAX_TOKENS, int(lengths.max()))
    ratios, batches = [], []
    for seed in range(SEEDS):
        sampler = TokenBudgetSampler(lengths, budget, seed=seed)
        epoch = [lengths[batch] for batch in sampler]
        batches.append(len(epoch))
        ratios.append(float(lengths.sum() / sum(len(batch) * int(batch.max()) for batch in epoch)))
    return {"max_tokens": budget, "valid_ratio": ratios, "batches": batches}


def measure_sampler(lengths: Int64Array, repeats: int) -> dict[str, Any]:
    """Seconds of the sampler's inner loop in C++ and in Python on one stream, and of a whole epoch's plan."""
    stream = np.sort(lengths)  # a long bucket-like stream: neighbours are alike
    arguments = (MAX_TOKENS, 0.2, _cut.WAITING_ROOM)
    tensor = torch.from_numpy(stream)
    native = torch.ops.mamba_lab.cut_token_budget(tensor, *arguments)
    twin = _cut.cut_in_python(stream, *arguments)
    if not all(np.array_equal(a.numpy(), b) for a, b in zip(native, twin, strict=True)):
        raise RuntimeError("the C++ loop and its Python twin disagree; their times mean nothing")
    return {
        "samples": len(lengths),
        "cut_cpp_s": time_samples(lambda: torch.ops.mamba_lab.cut_token_budget(tensor, *arguments), repeats),
        "cut_python_s": time_samples(lambda: _cut.cut_in_python(stream, *arguments), repeats, warm_up=0),
        "epoch_s": time_samples(lambda: len(TokenBudgetSampler(lengths, MAX_TOKENS)), repeats),
    }


def _corpus_lengths(name: str) -> Int64Array:
    corpus = load_corpus(name)
    assert isinstance(corpus, Corpus)  # a shipped corpus is never a stream
    return corpus.lengths()


def _table(payload: Mapping[str, Any]) -> str:
    small, large = CAPACITIES
    head = ("lengths", f"chunks of {small}", f"chunks of {large}", "padded random", "token budget", f"cut at {large}")
    rows = [head]
    for name, found in payload["lengths"].items():
        chunks = {part["capacity"]: part for part in found["fixed_chunks"] if not part["across"]}
        ratios = [
            chunks[small]["valid_ratio"],
            chunks[large]["valid_ratio"],
            statistics.median(found["padded_random"]["valid_ratio"]),
            statistics.median(found["token_budget"]["valid_ratio"]),
            chunks[large]["documents_cut"],
        ]
        rows.append((name, *(f"{ratio:.1%}" for ratio in ratios)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(f"{word:>{width}}" for word, width in zip(row, widths, strict=True)) for row in rows]
    sampler = payload["sampler"]
    python, cpp = (statistics.median(sampler[key]) for key in ("cut_python_s", "cut_cpp_s"))
    epoch = statistics.median(sampler["epoch_s"])
    lines.append(
        f"Valid ratios; the last column is the share of documents cut. Cutting {sampler['samples']:,} samples: Python "
        f"{python:.3f} s, C++ {cpp:.4f} s ({python / cpp:.0f} times faster); a whole epoch's plan {epoch:.2f} s."
    )
    return "\n".join(lines)
