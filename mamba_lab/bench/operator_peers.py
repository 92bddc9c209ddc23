"""Other packages' scans on the CPU beside ours, each in a process of its own: one needs a stand-in for its GPU library.

Ours takes turns with the peer in that process, as one sequence: neither peer can be told where sequences start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from mamba_lab.bench.memory import peak_bytes, process_peak_bytes
from mamba_lab.bench.operator_cases import (
    DIRECTIONS,
    Case,
    Function,
    errors,
    expected,
    forward_backward,
    ours,
    scan_case,
)
from mamba_lab.bench.timing import ratios, time_in_turn
from mamba_lab.machine import version_of


@dataclass(frozen=True)
class Peer:
    """A package's scan.

    Attributes:
        load: imports it. Raises ModuleNotFoundError when it is not there.
        function: the name it has in its package.
        install: how to add it.
        slow: one forward and backward takes half a minute: it is timed once, with all threads, and checked before on
            the first ``CHECKED`` tokens.
    """

    load: Callable[[], Function]
    function: str
    install: str
    slow: bool = False


CHECKED = 128


def mambapy() -> Function:
    """mambapy's parallel scan, called as its block does."""
    from mambapy.pscan import pscan

    def scan(inputs: Any) -> torch.Tensor:
        u, B, C = (inputs[name][None] for name in ("u", "B", "C"))
        delta = F.softplus(inputs["delta"][None] + inputs["delta_bias"])
        decay = torch.exp(delta.unsqueeze(-1) * inputs["A"])
        added = delta.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1)
        y = (pscan(decay, added) @ C.unsqueeze(-1)).squeeze(3) + inputs["D"] * u
        return (y * F.silu(inputs["z"][None]))[0]

    return scan


def mamba_ssm() -> Function:
    """mamba-ssm's reference. Its module asks for the library of its GPU kernels, which the reference never calls."""
    sys.modules.setdefault("selective_scan_cuda", types.ModuleType("selective_scan_cuda"))
    from mamba_ssm.ops.selective_scan_interface import selective_scan_ref

    def scan(inputs: Any) -> torch.Tensor:
        u, delta, B, C, z = (inputs[name].t()[None] for name in ("u", "delta", "B", "C", "z"))
        bias = inputs["delta_bias"]
        return selective_scan_ref(u, delta, inputs["A"], B, C, inputs["D"], z, bias, delta_softplus=True)[0].t()

    return scan


MAMBA_SSM = "mamba-ssm==2.3.2.post1"
PEERS = {
    "mambapy": Peer(mambapy, "pscan", "pip install 'mamba-lab[peers]'"),
    "mamba-ssm": Peer(
        mamba_ssm,
        "selective_scan_ref",
        "it has no wheel for the CPU: pip install setuptools wheel packaging ninja einops transformers triton && "
        "MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE pip install --no-build-isolation --no-deps " + MAMBA_SSM,
        slow=True,
    ),
}


def in_own_process(name: str, sizes: tuple[int, int, int], threads: Sequence[int], repeats: int) -> dict[str, Any]:
    """``measure`` in a fresh process, or {"skipped": why} for a peer that is not installed.

    Raises:
        RuntimeError: the process failed; the message ends with what it said.
    """
    if version_of(name) is None:
        return {"skipped": f"not installed; {PEERS[name].install}"}
    job = json.dumps({"name": name, "sizes": sizes, "threads": threads, "repeats": repeats})
    command = [sys.executable, "-m", "mamba_lab.bench.operator_peers", job]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"measuring {name} failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, sizes: tuple[int, int, int], threads: Sequence[int], repeats: int) -> dict[str, Any]:
    """The peer's seconds and ours in turn, its memory and ours, and how far each is from float64.

    Args:
        sizes: tokens, channels, states.
        threads: numbers of threads; the last one is all there are.

    Returns:
        The record's entry; {"skipped": why} where something that the peer imports is missing.

    Raises:
        RuntimeError: the peer, or ours, computes something else.
    """
    peer = PEERS[name]
    try:
        theirs = peer.load()
    except ModuleNotFoundError as error:
        return {"skipped": f"{error.name} is not installed; {peer.install}"}
    case, mine = scan_case(*sizes, torch.float32), ours("ssm_pack")
    checked = case.first(CHECKED) if peer.slow else case
    torch.set_num_threads(1)  # a loop of small steps gains nothing from more
    wanted = expected(checked, None)
    found: dict[str, Any] = {
        "version": version_of(name),
        "function": peer.function,
        "checked_tokens": checked.tokens,
        "errors": errors(f"{name}, {peer.function}", theirs, checked, wanted),
        "our_errors": errors("ours", mine, checked, wanted),
        "timed": [],
    }
    torch.set_num_threads(threads[-1])
    if not peer.slow:
        found["peak_bytes"] = {"ours": _peak(mine, case), "peer": _peak(theirs, case)}
    for count in threads[-1:] if peer.slow else threads:
        torch.set_num_threads(count)
        for direction, run in DIRECTIONS.items():
            once = peer.slow and direction == "forward_backward"
            calls = {"ours": lambda run=run: run(mine, case), "peer": lambda run=run: run(theirs, case)}
            if once:
                calls["ours"]()  # its warm-up; the peer has none
            samples: dict[str, list[float]] = {}

            def timed(calls: Any = calls, once: bool = once, samples: Any = samples) -> None:
                samples.update(time_in_turn(calls, 1 if once else repeats, warm_up=0 if once else 1))

            grown = process_peak_bytes(timed)
            found["timed"].append(
                {
                    "threads": count,
                    "direction": direction,
                    "seconds": samples,
                    "times_ours": ratios(samples["peer"], samples["ours"]),
                }
            )
            if once:
                found["process_grew_by"] = grown
    return found


def _peak(function: Function, case: Case) -> int:
    return peak_bytes(lambda: forward_backward(function, case))


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
