"""The scan on more and more tokens: time a token in turn, memory in a process of its own for each size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch

from mamba_lab.bench.memory import peak_bytes, process_peak_bytes
from mamba_lab.bench.operator_cases import Case, Function, forward_backward, ours, published_pack, scan_case
from mamba_lab.bench.timing import ratios, time_in_turn

FORMS = ("one_sequence", "packed")


def measure_time(form: str, sizes: Sequence[int], channels: int, states: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds of forward and backward at each number of tokens, and time a token against the smallest's.

    A sample of a small size is of many calls, 64 at most, until they make up the largest size's tokens: what disturbs
    the machine for a moment then disturbs all sizes alike.
    """
    cases = {tokens: scan_case(tokens, channels, states, torch.float32) for tokens in sizes}
    functions = {tokens: form_of(form, tokens) for tokens in sizes}
    calls = {tokens: min(64, max(sizes) // tokens) for tokens in sizes}

    def sample(function: Function, case: Case, calls: int) -> None:
        for _ in range(calls):
            forward_backward(function, case)

    parts = {str(n): lambda n=n: sample(functions[n], cases[n], calls[n]) for n in sizes}
    samples = time_in_turn(parts, rounds)
    per_token = {n: [s / (calls[n] * n) for s in samples[str(n)]] for n in sizes}
    return [
        {
            "tokens": n,
            "calls_a_sample": calls[n],
            "seconds": samples[str(n)],
            "seconds_a_token_against_the_smallest": ratios(per_token[n], per_token[min(sizes)]),
        }
        for n in sizes
    ]


def form_of(form: str, tokens: int) -> Function:
    """Our scan over all tokens as one sequence, or over a pack of published lengths."""
    return ours("ssm_pack", published_pack(tokens) if form == "packed" else None)


def in_own_process(form: str, tokens: int, channels: int, states: int) -> dict[str, Any]:
    """``measure_memory`` in a fresh process.

    Raises:
        RuntimeError: the process failed (out of memory, for example); the message ends with what it said.
    """
    words = [form, *map(str, (tokens, channels, states, torch.get_num_threads()))]
    done = subprocess.run(
        [sys.executable, "-m", "mamba_lab.bench.operator_scale", *words], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{tokens:,} tokens failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_memory(form: str, tokens: int, channels: int, states: int) -> dict[str, Any]:
    """The most that one forward and backward holds beyond its inputs: the whole process, and PyTorch's tensors."""
    function, case = form_of(form, tokens), scan_case(tokens, channels, states, torch.float32)
    forward_backward(form_of("one_sequence", 16), scan_case(16, channels, states, torch.float32))  # loads the library
    grown = process_peak_bytes(lambda: forward_backward(function, case))
    return {
        "tokens": tokens,
        "input_bytes": case.n_bytes,
        "process_grew_by": grown,
        "peak_bytes": peak_bytes(lambda: forward_backward(function, case)),
    }


if __name__ == "__main__":
    form, *numbers = sys.argv[1:]
    *sizes, threads = map(int, numbers)
    torch.set_num_threads(threads)
    print(json.dumps(measure_memory(form, *sizes)))
