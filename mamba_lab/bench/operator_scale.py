"""The scan on more and more tokens: time a token in turn, memory in a process of its own for each size."""

from __future__ import annotations

import json
import os
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
    found: dict[str, Any] = _in_process(f"{tokens:,} tokens", ["memory", [form, tokens, channels, states]])
    return found


def time_with_pages_kept(
    form: str, sizes: Sequence[int], channels: int, states: int, rounds: int
) -> list[dict[str, Any]]:
    """``measure_time`` in a process whose C library (glibc) keeps freed memory instead of giving it back.

    By default large tensors are of new pages each time, and the first touch of a page is the system's work. It can take
    as long as the scan itself, and tensors of a megabyte are spared it: that is no property of the scan.
    """
    job = ["time", [form, list(sizes), channels, states, rounds]]
    found: list[dict[str, Any]] = _in_process(
        "the sizes", job, MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40)
    )
    return found


def _in_process(what: str, job: list[Any], **environment: str) -> Any:
    words = [sys.executable, "-m", "mamba_lab.bench.operator_scale", json.dumps([torch.get_num_threads(), *job])]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode != 0:
        raise RuntimeError(f"{what} failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


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
    threads, measured, arguments = json.loads(sys.argv[1])
    torch.set_num_threads(threads)
    print(json.dumps(measure_time(*arguments) if measured == "time" else measure_memory(*arguments)))
