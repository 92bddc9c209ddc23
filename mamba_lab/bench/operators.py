"""`mamba-lab bench operators`: the scan and the convolution, packed and not, and the peers beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mamba_lab.bench import operator_peers, operator_scale
from mamba_lab.bench.memory import peak_bytes
from mamba_lab.bench.operator_cases import (
    DIRECTIONS,
    TOLERANCES,
    Case,
    Function,
    channel_first,
    convolution_case,
    errors,
    expected,
    forward,
    ours,
    published_pack,
    scan_case,
    torch_convolution,
)
from mamba_lab.bench.operator_table import table
from mamba_lab.bench.record import write_record
from mamba_lab.bench.timing import ratios, time_in_turn
from mamba_lab.machine import n_cores

TOKENS, CHANNELS, STATES, WIDTH = 1024, 512, 16, 4
PACKS = {
    "equal": [TOKENS // 8] * 8,
    "ragged": published_pack(TOKENS, scale=1 / 8),
    "short": [4] * (TOKENS // 4),
}
# The other dtypes are measured on ragged lengths alone.
PACKS_OF = {torch.float32: tuple(PACKS), torch.bfloat16: ("ragged",), torch.float64: ("ragged",)}
SCALES = (1024, 4096, 16_384, 65_536, 131_072)
SCALED_CHANNELS = 256
PUBLISHED = (4096, 16_384)
ROUNDS_A_REPEAT = 4


def run(repeats: int = 5, output: Path | None = None, device: str = "cpu", peers: bool = True) -> int:
    """Measure, print a table, write the record ``operators`` (on a GPU ``operators-cuda``). Returns 0.

    Everything that is timed is first compared with the float64 reference.

    Args:
        repeats: timed repeats of each part. Parts of milliseconds are timed ``ROUNDS_A_REPEAT`` times as often.
        output: the record's folder, ``data/results`` when None.
        device: "cpu" or "cuda".
        peers: measure other packages too, where they are installed.

    Raises:
        ValueError: "cuda" where PyTorch sees no GPU.
        RuntimeError: ours or a peer computes something else than the reference; its time would mean nothing.
    """
    if device == "cuda":
        from mamba_lab.bench import operators_cuda

        return operators_cuda.run(repeats, output, peers)
    before = torch.get_num_threads()
    try:
        payload = measure(repeats, peers)
    finally:
        torch.set_num_threads(before)
    print(table(payload))
    path = write_record("operators", payload, folder=output)
    print(f"record: {path.parent.name}/{path.name}")
    return 0


def measure(repeats: int, peers: bool) -> dict[str, Any]:
    """The record's payload on the CPU."""
    threads = sorted({1, n_cores()})
    sizes = (TOKENS, CHANNELS, STATES)
    cases = {
        "ssm_pack": lambda dtype: scan_case(*sizes, dtype),
        "conv1d_pack": lambda dtype: convolution_case(TOKENS, CHANNELS, WIDTH, dtype),
    }
    return {
        "settings": {
            "device": "cpu",
            "tokens": TOKENS,
            "channels": CHANNELS,
            "states": STATES,
            "width": WIDTH,
            "packs": PACKS,
            "threads": threads,
            "repeats": repeats,
            "scan": "with softplus, bias, D and gate",
            "convolution": "with bias and SiLU",
            "seconds": "wall time of each round, in order; the parts of a round are called one after the other",
            "against": "quartiles of the quotients of two parts, round by round",
            "errors": "largest distance from the float64 reference, in parts of its largest value; the rounding of "
            "the result's dtype is part of it",
            "tolerances": {str(dtype): value for dtype, value in TOLERANCES.items()},
            "peak_bytes": "the most that PyTorch's tensors hold during forward and backward, beyond the inputs",
            "pages_kept": "the C library keeps freed memory: without the system's work on each new page",
            "process_grew_by": "the same for the whole process, as the system counts it",
        },
        **{
            name: [
                part
                for dtype in PACKS_OF
                for part in measure_operator(case(dtype), {p: PACKS[p] for p in PACKS_OF[dtype]}, threads, repeats)
            ]
            for name, case in cases.items()
        },
        "published": measure_published(repeats),
        "scale": measure_scale(repeats),
        "peers": {name: operator_peers.in_own_process(name, sizes, threads, repeats) for name in operator_peers.PEERS}
        if peers
        else {},
    }


def measure_operator(
    case: Case, packs: Mapping[str, Sequence[int]], threads: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """One operator in one dtype: as one sequence, packed, one call a sequence; for each number of threads.

    "one_sequence_again" is the same call as "one_sequence": their quotient shows what the machine adds.
    """
    torch.set_num_threads(1)  # the reference's small steps gain nothing from more
    wanted = {name: expected(case, lengths) for name, lengths in packs.items()}
    wanted_concat = expected(case, None)
    alone = ours(case.operator)
    theirs = channel_first(case) if case.operator == "conv1d_pack" and case.dy.dtype == torch.float32 else None
    found = []
    for count in threads:
        torch.set_num_threads(count)
        parts: dict[str, tuple[Function, list[Case]]] = {}
        for name in ("one_sequence", "one_sequence_again"):
            parts[name] = (alone, [case])
        off = {"one_sequence": errors("one sequence", alone, case, wanted_concat)}
        for name, lengths in packs.items():
            packed, pieces = ours(case.operator, lengths), case.pieces(lengths)
            parts |= {f"packed_{name}": (packed, [case]), f"one_by_one_{name}": (alone, pieces)}
            off[f"packed_{name}"] = errors(f"packed, {name}", packed, case, wanted[name])
            check_pieces(f"one by one, {name}", alone, pieces, wanted[name][0])
        if theirs is not None:
            parts["torch_one_sequence"] = (torch_convolution, [theirs])
            off["torch_one_sequence"] = errors("PyTorch's conv1d", torch_convolution, theirs, wanted_concat)
            for name, lengths in packs.items():
                pieces = [channel_first(piece) for piece in theirs.pieces(lengths)]
                parts[f"torch_one_by_one_{name}"] = (torch_convolution, pieces)
                check_pieces(f"PyTorch's conv1d one by one, {name}", torch_convolution, pieces, wanted[name][0])
        for direction, step in DIRECTIONS.items():
            calls = {name: calling(step, *part) for name, part in parts.items()}
            samples = time_in_turn(calls, repeats * ROUNDS_A_REPEAT)
            found.append(
                {
                    "dtype": str(case.dy.dtype).removeprefix("torch."),
                    "threads": count,
                    "direction": direction,
                    "errors": off,
                    "seconds": samples,
                    "against_one_sequence": {name: ratios(samples[name], samples["one_sequence"]) for name in samples},
                    "peak_bytes": {
                        name: peak_bytes(call)
                        for name, call in calls.items()
                        if direction == "forward_backward" and "one_by_one" not in name
                    },
                }
            )
    return found


def calling(step: Callable[[Function, Case], object], function: Function, cases: Sequence[Case]) -> Callable[[], None]:
    """A call that takes one step on each case and keeps nothing."""

    def call() -> None:
        for case in cases:
            step(function, case)

    return call


def check_pieces(what: str, function: Function, pieces: Sequence[Case], wanted: Tensor) -> None:
    """The sequences' outputs, laid end to end, must be the pack's.

    Raises:
        RuntimeError: they are not; their time would mean nothing.
    """
    found = torch.cat([forward(function, piece) for piece in pieces])
    off = float((found.double() - wanted).abs().max() / wanted.abs().max())
    if not off <= TOLERANCES[found.dtype]:
        raise RuntimeError(
            f"{what}: y is off by {off:.1e} of its largest value; times of different things mean nothing"
        )


def measure_published(repeats: int) -> list[dict[str, Any]]:
    """The scan on packs of the published lengths, against the same tokens as one sequence, with all threads."""
    torch.set_num_threads(n_cores())
    found = []
    for tokens in PUBLISHED:
        case, lengths = scan_case(tokens, CHANNELS, STATES, torch.float32), published_pack(tokens)
        parts = {"one_sequence": ours("ssm_pack"), "packed": ours("ssm_pack", lengths)}
        parts["one_sequence_again"] = parts["one_sequence"]
        for direction, step in DIRECTIONS.items():
            calls = {name: calling(step, function, [case]) for name, function in parts.items()}
            samples = time_in_turn(calls, repeats * ROUNDS_A_REPEAT)
            found.append(
                {
                    "tokens": tokens,
                    "lengths": lengths,
                    "direction": direction,
                    "threads": n_cores(),
                    "seconds": samples,
                    "against_one_sequence": {name: ratios(samples[name], samples["one_sequence"]) for name in samples},
                }
            )
    return found


def measure_scale(repeats: int) -> dict[str, Any]:
    """The scan's time and memory over more and more tokens, with all threads."""
    torch.set_num_threads(n_cores())
    sizes = (SCALED_CHANNELS, STATES)
    return {
        "channels": SCALED_CHANNELS,
        "threads": n_cores(),
        **{
            form: {
                "time": operator_scale.measure_time(form, SCALES, *sizes, repeats),
                "time_with_pages_kept": operator_scale.time_with_pages_kept(form, SCALES, *sizes, repeats),
                "memory": [operator_scale.in_own_process(form, tokens, *sizes) for tokens in SCALES],
            }
            for form in operator_scale.FORMS
        },
    }
