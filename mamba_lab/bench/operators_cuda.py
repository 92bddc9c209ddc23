"""`mamba-lab bench operators --device cuda`: the operators on a GPU, in bf16, beside the chip's ceilings and the peers.

Times are CUDA events'. The inputs are taken in turn from as many copies as do not fit the L2 cache together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mamba_lab.bench.operator_cases import (
    PARAMETERS,
    Case,
    Function,
    convolution_case,
    errors_of,
    expected,
    forward_backward,
    ours,
    published_pack,
    relative_l2,
    scan_case,
)
from mamba_lab.bench.operator_cuda_peers import PEERS, Peer
from mamba_lab.bench.operator_cuda_table import against, table
from mamba_lab.bench.operator_cuda_timing import copy_bytes_per_second, exp2_per_second, in_turn_seconds
from mamba_lab.bench.record import Keep, RecordInProgress
from mamba_lab.machine import version_of
from mamba_lab.ops.backends import OPERATORS, backends

CHANNELS = (4096, 1536)
TOKENS = (4096, 16_384, 65_536)
STATES, WIDTH = 16, 4
CHECKED = 2048
DTYPE = torch.bfloat16


def run(repeats: int, output: Path | None, peers: bool) -> int:
    """Measure, print each size as it is done and a table of all, write the record ``operators-cuda``. Returns 0.

    The record is written again after each part. Where the process is stopped, ``operators-cuda-unfinished`` has them.

    Raises:
        ValueError: PyTorch sees no GPU, or none of our backends runs on it.
        RuntimeError: ours or a peer computes something else than the reference; its time would mean nothing.
    """
    if not torch.cuda.is_available():
        raise ValueError("device is cuda, and PyTorch sees no GPU here; mamba-lab bench operators measures the CPU")
    payload: dict[str, Any] = {}
    record = RecordInProgress("operators-cuda", output)
    measure("cuda", repeats, peers, payload, record.keep)
    print(table(payload))
    path = record.finish(payload)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure(device: str, repeats: int, peers: bool, payload: dict[str, Any], keep: Keep) -> None:
    """Fill the record's ``payload``, and ``keep`` it after each part.

    Of another device than "cuda" only the arithmetic means something.
    """
    loaded = {name: load(peer) for name, peer in PEERS.items()} if peers else {}
    run_by = {operator: backends_on(device, operator) for operator in OPERATORS}
    payload |= {
        "settings": {
            "device": device,
            "backends": run_by,
            "parts": "packed and one_sequence are ours by the first backend; those of another carry its name",
            "dtype": str(DTYPE).removeprefix("torch."),
            "states": STATES,
            "width": WIDTH,
            "repeats": repeats,
            "checked_tokens": CHECKED,
            "scan": "with softplus, bias, D and gate",
            "convolution": "with bias and SiLU",
            "seconds": "of each repeat, by CUDA events, in order; forward keeps what backward needs",
            "errors": "largest distance from the float64 reference, in parts of its largest value",
            "relative_l2": "L2 norm of the distance from the float64 reference, in parts of its norm",
            "bytes": "read and written once: inputs and outputs (forward), with dy and all gradients (backward)",
            "exponentials": "one for each token, channel and state: forward needs as many at least, and backward",
        },
        "ceilings": {
            "copy_bytes_per_second": copy_bytes_per_second(device),
            "exp2_per_second": exp2_per_second(device),
        },
        "skipped": {name: found for name, found in loaded.items() if isinstance(found, str)},
        "versions": {name: version_of(name) for name, found in loaded.items() if not isinstance(found, str)},
        "timed": [],
    }
    for operator in ("ssm_pack", "conv1d_pack"):
        for channels in CHANNELS:
            checked = check(operator, channels, device, run_by[operator], loaded)
            for tokens in TOKENS:
                found = measure_operator(operator, tokens, channels, device, repeats, run_by[operator], loaded)
                payload["timed"].append(found | checked)
                keep(payload)
                print("; ".join(against({"timed": payload["timed"][-1:]})[1:2]) or operator, flush=True)


def backends_on(device: str, operator: str) -> list[str]:
    """Our backends that run the operator on the device, fastest first.

    Raises:
        ValueError: a GPU, and none of them.
    """
    if device != "cuda":
        return ["auto"]
    found = [status for status in reversed(backends()) if status.name in ("cuda", "triton")]
    names = [status.name for status in found if status.available and operator in status.operators]
    if not names:
        why = "; ".join(f"{status.name}: {status.why}" for status in found)
        raise ValueError(f"{operator} has no backend for this GPU ({why}); mamba-lab doctor says how to add one")
    return names


def load(peer: Peer) -> Mapping[str, Callable[[Case, Sequence[int]], tuple[Function, Case]]] | str:
    """The peer's functions, or why it is skipped."""
    try:
        return peer.load()
    except ImportError as error:
        return f"{error.name or error} is not installed; {peer.install}"


def measure_operator(
    operator: str,
    tokens: int,
    channels: int,
    device: str,
    repeats: int,
    run_by: Sequence[str],
    loaded: Mapping[str, Any],
) -> dict[str, Any]:
    """One operator at one size: a published pack, the same tokens as one sequence, and the peers."""
    lengths = published_pack(tokens)
    parts = parts_of(operator, lengths, device, run_by, loaded)
    return {
        "operator": operator,
        "tokens": tokens,
        "channels": channels,
        "sequences": len(lengths),
        "bytes": dict(zip(("forward", "backward"), moved_bytes(operator, tokens, channels), strict=True)),
        "exponentials": tokens * channels * STATES if operator == "ssm_pack" else None,
        "parts": {
            name: measure_part(part, operator, tokens, channels, device, repeats) for name, part in parts.items()
        },
    }


Part = Callable[[Case], "tuple[Function, Case]"]


def parts_of(
    operator: str, lengths: Sequence[int], device: str, run_by: Sequence[str], loaded: Mapping[str, Any]
) -> dict[str, Part]:
    """By name: what makes a function and the inputs as it likes them of a case."""
    parts: dict[str, Part] = {}
    for number, backend in enumerate(run_by):
        for name, cut in (("packed", lengths), ("one_sequence", None)):
            function = ours(operator, cut, device, backend)
            parts[name if number == 0 else f"{name}_{backend}"] = lambda case, function=function: (function, case)  # type: ignore[misc]
    for found in loaded.values():
        for name, make in ({} if isinstance(found, str) else found).items():
            if PEER_OPERATOR[name] == operator:
                parts[name] = lambda case, make=make: make(case, lengths)  # type: ignore[misc]
    return parts


PEER_OPERATOR = {
    "selective_scan_fn": "ssm_pack",
    "causal_conv1d_fn": "conv1d_pack",
    "causal_conv1d_fn_seq_idx": "conv1d_pack",
}


def check(
    operator: str, channels: int, device: str, run_by: Sequence[str], loaded: Mapping[str, Any]
) -> dict[str, dict[str, dict[str, float]]]:
    """Each part's distances from the float64 reference on a short pack, whose sequences end at odd places.

    Raises:
        RuntimeError: a part computes something else.
    """
    lengths = published_pack(CHECKED, scale=1 / 8)
    case = make_case(operator, CHECKED, channels, device, seed=1)
    with_boundaries, without = expected(case, lengths), expected(case, None)
    found: dict[str, dict[str, dict[str, float]]] = {"errors": {}, "relative_l2": {}}
    for name, part in parts_of(operator, lengths, device, run_by, loaded).items():
        wanted = with_boundaries if name.startswith("packed") or name.endswith("seq_idx") else without
        function, its = part(case)
        got = forward_backward(function, its)
        found["errors"][name] = errors_of(f"{operator}, {name}", its, got, wanted)
        found["relative_l2"][name] = relative_l2(its, got, wanted)
    return found


def measure_part(part: Part, operator: str, tokens: int, channels: int, device: str, repeats: int) -> dict[str, Any]:
    """Seconds of forward and of backward, and the most memory that both take beyond the inputs."""
    first = make_case(operator, tokens, channels, device, seed=0)
    copies = copies_beyond_cache(first.n_bytes, device)
    made = [part(first), *(part(make_case(operator, tokens, channels, device, seed)) for seed in range(1, copies))]
    turn = itertools.cycle(made)

    def forward() -> Tensor:
        function, case = next(turn)
        return function(case.inputs)

    seconds = {"forward": in_turn_seconds(forward, repeats, device)}
    peak = peak_memory(*made[0], device)
    kept = [(function(case.inputs), [*case.inputs.values()], case.dy) for function, case in made]
    graphs = itertools.cycle(kept)

    def backward() -> tuple[Tensor, ...]:
        y, inputs, dy = next(graphs)
        return torch.autograd.grad(y, inputs, dy, retain_graph=True)

    seconds["backward"] = in_turn_seconds(backward, repeats, device)
    return {"copies": copies, "seconds": seconds, "peak_bytes": peak}


def make_case(operator: str, tokens: int, channels: int, device: str, seed: int) -> Case:
    """Inputs on the device; the convolution's parameters in float32."""
    if operator == "ssm_pack":
        return scan_case(tokens, channels, STATES, DTYPE, seed, device)
    case = convolution_case(tokens, channels, WIDTH, DTYPE, seed, device)
    return case.changed(lambda name, value: value.float() if name in PARAMETERS else value)


def moved_bytes(operator: str, tokens: int, channels: int) -> tuple[int, int]:
    """Bytes of activations that forward and backward read and write at least, each once."""
    size = DTYPE.itemsize
    wide, narrow = tokens * channels * size, tokens * STATES * size
    if operator == "conv1d_pack":
        return 2 * wide, 3 * wide  # x; y. x, dy; dx.
    return 4 * wide + 2 * narrow, 7 * wide + 4 * narrow  # u, delta, z, B, C; y. The same, dy; five gradients.


def copies_beyond_cache(n_bytes: int, device: str) -> int:
    """How many inputs it takes so that none is still in the L2 cache when its turn comes again."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device == "cuda" else 0
    return 1 + -(-2 * cache // n_bytes) if n_bytes < 2 * cache else 1


def peak_memory(function: Function, case: Case, device: str) -> int | None:
    """The most bytes that forward and backward hold beyond what is there; None without a GPU."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    forward_backward(function, case)
    return torch.cuda.max_memory_allocated() - before
