"""The operators' record: what is timed is checked first, the arithmetic by hand, and the command from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mamba_lab import cli
from mamba_lab.bench import operator_cases as cases
from mamba_lab.bench import (
    operator_cuda_peers,
    operator_cuda_table,
    operator_cuda_timing,
    operator_peers,
    operator_scale,
    operators_cuda,
)
from mamba_lab.bench import operators as bench
from mamba_lab.bench.memory import peak_bytes, process_peak_bytes
from mamba_lab.bench.record import read_record
from mamba_lab.bench.timing import ratios, time_in_turn
from mamba_lab.ops.backends import BackendStatus

SIZES = (24, 4, 3)


def test_functions_take_turns_forwards_and_backwards() -> None:
    seen: list[str] = []
    samples = time_in_turn({name: lambda name=name: seen.append(name) for name in "ab"}, rounds=3)  # type: ignore[misc]
    assert "".join(seen) == "ababbaab"
    assert [len(samples[name]) for name in "ab"] == [3, 3]
    with pytest.raises(ValueError, match="rounds is 0"):
        time_in_turn({}, 0)


def test_ratios_are_taken_round_by_round() -> None:
    # The medians are 4 and 4: their quotient is 1, and none of the rounds has it.
    found = ratios([2.0, 4.0, 40.0], [1.0, 4.0, 10.0])
    assert found == {"median": 2.0, "lower_quartile": 1.5, "upper_quartile": 3.0}
    with pytest.raises(ValueError, match="3 samples and 2 to divide by"):
        ratios([1.0, 2.0, 3.0], [1.0, 2.0])


def test_the_process_grows_by_what_a_step_touches() -> None:
    grown = process_peak_bytes(lambda: torch.ones(8 << 20))
    assert grown is None or grown == pytest.approx(32 << 20, rel=0.2)


def test_the_profilers_notes_are_held_back_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        os.write(2, b"USDT: a note\nan error\n")

    peak_bytes(step)
    os.write(2, b"the end\n")
    assert capfd.readouterr().err == "an error\nthe end\n"


@pytest.mark.parametrize("scale", [1.0, 1 / 8])
def test_a_pack_is_full(scale: float) -> None:
    lengths = cases.published_pack(3000, scale)
    assert sum(lengths) == 3000
    assert min(lengths) >= 1
    assert lengths[0] == max(1, round(float(cases.published_lengths(1)[0]) * scale))


def test_pieces_are_the_cases_sequences() -> None:
    case = cases.scan_case(*SIZES, torch.float32)
    pieces = case.pieces([5, 1, 18])
    assert [piece.tokens for piece in pieces] == [5, 1, 18]
    assert torch.equal(pieces[2].inputs["B"], case.inputs["B"][6:])
    assert torch.equal(pieces[2].dy, case.dy[6:])
    assert torch.equal(pieces[1].inputs["A"], case.inputs["A"])
    assert case.first(7).tokens == 7


def test_the_same_seed_gives_a_peers_process_the_same_inputs() -> None:
    one, other = (cases.scan_case(*SIZES, torch.float32) for _ in range(2))
    assert all(torch.equal(one.inputs[name], other.inputs[name]) for name in one.inputs)
    steps = torch.nn.functional.softplus(one.inputs["delta_bias"].detach())
    assert 0.9e-3 < float(steps.min()) <= float(steps.max()) < 0.11


def test_errors_are_in_parts_of_the_largest_value() -> None:
    case = cases.Case("ssm_pack", {"u": torch.ones(2, 1, requires_grad=True)}, torch.ones(2, 1))
    wanted = (torch.tensor([[3.0], [4.0]]), torch.full((2, 1), 3.0))
    off = cases.errors("it", lambda inputs: inputs["u"] * 3 + torch.tensor([[0.0], [1 - 4e-6]]), case, wanted)
    assert off == {"y": pytest.approx(1e-6, rel=0.1), "u": 0.0}
    with pytest.raises(RuntimeError, match=r"it: y is off by 2.5e-01 .* times of different things mean nothing"):
        cases.errors("it", lambda inputs: inputs["u"] * 3, case, wanted)
    with pytest.raises(RuntimeError, match="it: the gradient of u is off by"):
        cases.errors("it", lambda i: i["u"] * 6 - torch.tensor([[3.0], [2.0]]), case, wanted)
    with pytest.raises(RuntimeError, match="off by nan"):
        cases.errors("it", lambda inputs: inputs["u"] * float("nan"), case, wanted)


def test_boundaries_that_are_ignored_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cases.ours
    monkeypatch.setattr(bench, "ours", lambda operator, lengths=None: real(operator))
    case = cases.convolution_case(24, 4, 3, torch.float32)
    with pytest.raises(RuntimeError, match="packed, equal: y is off"):
        bench.measure_operator(case, {"equal": [12, 12]}, [1], 1)
    pieces = case.pieces([12, 12])
    with pytest.raises(RuntimeError, match="one by one: y is off"):
        bench.check_pieces("one by one", real("conv1d_pack"), pieces, cases.expected(case, None)[0])


def test_pytorchs_convolution_is_ours() -> None:
    case = cases.channel_first(cases.convolution_case(24, 4, 3, torch.float32))
    assert case.inputs["x"].stride() == (1, 24)
    off = cases.errors("it", cases.torch_convolution, case, cases.expected(case, None))
    assert set(off) == {"y", "x", "weight", "bias"}


def slow_scan(inputs: Mapping[str, Tensor]) -> Tensor:
    return cases.ours("ssm_pack", backend="reference")(inputs)


def test_a_peer_is_checked_and_takes_turns_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {
        "quick": operator_peers.Peer(lambda: slow_scan, "scan", "pip install quick"),
        "slow": operator_peers.Peer(lambda: slow_scan, "scan", "pip install slow", slow=True),
        "wrong": operator_peers.Peer(lambda: lambda inputs: slow_scan(inputs) * 1.01, "scan", ""),
    }
    monkeypatch.setattr(operator_peers, "PEERS", peers)
    monkeypatch.setattr(operator_peers, "CHECKED", 8)
    quick = operator_peers.measure("quick", SIZES, [1, 1], repeats=2)
    assert [(one["direction"], len(one["seconds"]["peer"])) for one in quick["timed"]] == [
        ("forward", 2),
        ("forward_backward", 2),
    ] * 2
    assert quick["checked_tokens"] == 24
    assert min(quick["peak_bytes"][name] for name in ("ours", "peer")) > 24 * 4 * 4
    slow = operator_peers.measure("slow", SIZES, [1, 1], repeats=2)
    assert [len(one["seconds"]["peer"]) for one in slow["timed"]] == [2, 1]
    assert slow["checked_tokens"] == 8
    assert "process_grew_by" in slow
    with pytest.raises(RuntimeError, match=r"wrong, scan: y is off by 1.0e-02"):
        operator_peers.measure("wrong", SIZES, [1], repeats=1)


def test_missing_peers_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_peers, "version_of", lambda name: None)
    found = operator_peers.in_own_process("mamba-ssm", SIZES, [1], 1)
    assert found["skipped"].startswith("not installed; it has no wheel for the CPU")
    assert "MAMBA_SKIP_CUDA_BUILD=TRUE" in found["skipped"]
    monkeypatch.setitem(sys.modules, "mambapy.pscan", None)  # importing it raises
    found = operator_peers.measure("mambapy", SIZES, [1], 1)
    assert found["skipped"].endswith("is not installed; pip install 'mamba-lab[peers]'")


def test_the_stand_in_stays_in_its_process() -> None:
    assert "selective_scan_cuda" not in sys.modules


@pytest.mark.parametrize("name", sorted(operator_peers.PEERS))
def test_installed_peers_compute_the_scan(name: str) -> None:
    if operator_peers.version_of(name) is None:
        pytest.skip(f"{name} is not installed")
    found = operator_peers.in_own_process(name, (130, 4, 3), [1], 1)
    assert max(found["errors"].values()) < 1e-4


def test_a_failing_process_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Killed: memory")

    monkeypatch.setattr(subprocess, "run", fails)
    monkeypatch.setattr(operator_peers, "version_of", lambda name: "1")
    with pytest.raises(RuntimeError, match="measuring mambapy failed with exit code 1: Killed: memory"):
        operator_peers.in_own_process("mambapy", SIZES, [1], 1)
    with pytest.raises(RuntimeError, match="24 tokens failed with exit code 1: Killed: memory"):
        operator_scale.in_own_process("packed", 24, 4, 3)


def test_time_a_token_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_scale, "time_in_turn", lambda parts, rounds: {"16": [4.0, 8.0], "64": [8.0, 8.0]})
    small, large = operator_scale.measure_time("one_sequence", (16, 64), 4, 3, 2)
    assert (small["calls_a_sample"], large["calls_a_sample"]) == (4, 1)
    # 4 calls of 16 tokens are as many tokens as one of 64.
    assert small["seconds_a_token_against_the_smallest"]["median"] == 1.0
    assert large["seconds_a_token_against_the_smallest"]["median"] == 1.5


def test_memory_of_a_size_is_measured_in_another_process() -> None:
    found = operator_scale.in_own_process("packed", 1024, 64, 16)
    # y, three gradients of [T, D], and a state every 16 tokens that is as large as one of them: five at least.
    assert 5 * 1024 * 64 * 4 < found["peak_bytes"] < 10 * 1024 * 64 * 4
    assert found["input_bytes"] == (4 * 1024 * 64 + 2 * 1024 * 16 + 64 * 16 + 2 * 64) * 4


def test_time_is_measured_in_another_process_too() -> None:
    found = operator_scale.time_with_pages_kept("packed", (16, 64), 4, 3, 2)
    assert [(one["tokens"], one["calls_a_sample"], len(one["seconds"])) for one in found] == [(16, 4, 2), (64, 1, 2)]


def test_the_command_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TOKENS": 24, "CHANNELS": 4, "STATES": 3, "SCALES": (16, 64), "SCALED_CHANNELS": 4}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "PUBLISHED", (16, 300))
    monkeypatch.setattr(bench, "PACKS", {"equal": [12, 12], "ragged": [5, 1, 18], "short": [2] * 12})
    monkeypatch.setattr(bench, "n_cores", lambda: 1)
    monkeypatch.setattr(operator_scale, "in_own_process", operator_scale.measure_memory)
    monkeypatch.setattr(operator_scale, "time_with_pages_kept", operator_scale.measure_time)
    monkeypatch.setattr(operator_peers, "version_of", lambda name: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert cli.main(["bench", "operators", "--repeats", "1", "--output", str(tmp_path)]) == 0
        assert torch.get_num_threads() == 3  # what it found, not what it measured last
    finally:
        torch.set_num_threads(threads)
    results = read_record("operators", folder=tmp_path)["results"]
    for operator in ("ssm_pack", "conv1d_pack"):
        parts = results[operator]
        assert [part["dtype"] for part in parts[::2]] == ["float32", "bfloat16", "float64"]
        assert [part["direction"] for part in parts[:2]] == ["forward", "forward_backward"]
        assert set(parts[0]["errors"]) >= {"one_sequence", "packed_equal", "packed_ragged", "packed_short"}
        assert len(parts[1]["seconds"]["one_by_one_short"]) == bench.ROUNDS_A_REPEAT
        assert parts[1]["against_one_sequence"]["one_sequence"]["median"] == 1
        assert parts[1]["peak_bytes"]["packed_ragged"] > 0
    assert "torch_one_by_one_ragged" in results["conv1d_pack"][0]["seconds"]
    assert [(one["tokens"], one["direction"]) for one in results["published"][1:3]] == [
        (16, "forward_backward"),
        (300, "forward"),
    ]
    assert sum(results["published"][2]["lengths"]) == 300
    assert results["published"][0]["against_one_sequence"]["packed"]["median"] > 0
    assert [one["tokens"] for one in results["scale"]["packed"]["memory"]] == [16, 64]
    assert set(results["peers"]) == {"mambapy", "mamba-ssm"}
    out = capsys.readouterr().out
    assert "mambapy: skipped, not installed; pip install 'mamba-lab[peers]'" in out
    assert "ssm_pack, packed, 4 channels, 1 threads" in out


def test_peers_can_be_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(bench, "run", lambda *args: asked.append(args) or 0)
    for words in ([], ["--peers"], ["--no-peers"], ["--device", "cuda"]):
        assert cli.main(["bench", "operators", "--output", str(tmp_path), *words]) == 0
    assert [(device, peers) for _, _, device, peers in asked] == [
        ("cpu", True),
        ("cpu", True),
        ("cpu", False),
        ("cuda", True),
    ]


@pytest.mark.parametrize(
    "words", [["packing", "--device", "cuda"], ["batching", "--peers"], ["model", "--no-peers"], ["model", "--peers"]]
)
def test_device_and_peers_are_for_operators_and_models(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 1
    assert "belong to bench operators and to bench model --device cuda" in capsys.readouterr().err


# The GPU's part, in its arithmetic.


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "operators", "--device", "cuda"]) == 1
    assert "PyTorch sees no GPU here" in capsys.readouterr().err


def test_bytes_and_copies_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = 4096 * 4096 * 2, 4096 * 16 * 2
    assert operators_cuda.moved_bytes("ssm_pack", 4096, 4096) == (4 * wide + 2 * narrow, 7 * wide + 4 * narrow)
    assert operators_cuda.moved_bytes("conv1d_pack", 4096, 4096) == (2 * wide, 3 * wide)
    properties = type("Properties", (), {"L2_cache_size": 50})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    # With one in use, the others must fill the cache twice over.
    assert [operators_cuda.copies_beyond_cache(n, "cuda") for n in (10, 60, 99, 100)] == [11, 3, 3, 1]


def test_the_gpus_part_on_tiny_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CHANNELS": (4,), "TOKENS": (70,), "STATES": 3, "CHECKED": 40}.items():
        monkeypatch.setattr(operators_cuda, name, value)
    monkeypatch.setattr(operators_cuda, "backends_on", lambda device, operator: ["auto", "reference"])

    def load() -> dict[str, Any]:
        return {"selective_scan_fn": lambda case, lengths: (slow_scan, cases.channel_first(case))}

    def missing() -> dict[str, Any]:
        raise ModuleNotFoundError("no", name="causal_conv1d")

    peers = {
        "mamba-ssm": operator_cuda_peers.Peer(load, ""),
        "causal-conv1d": operator_cuda_peers.Peer(missing, "pip install it"),
    }
    monkeypatch.setattr(operators_cuda, "PEERS", peers)
    payload: dict[str, Any] = {}
    kept: list[int] = []
    operators_cuda.measure("cpu", 2, True, payload, lambda so_far: kept.append(len(so_far["timed"])))
    assert kept == [1, 2]
    payload = json.loads(json.dumps(payload))
    assert payload["skipped"] == {"causal-conv1d": "causal_conv1d is not installed; pip install it"}
    scan, convolution = payload["timed"]
    own = {"packed", "one_sequence", "packed_reference", "one_sequence_reference"}
    assert set(scan["parts"]) == set(scan["errors"]) == set(scan["relative_l2"]) == {*own, "selective_scan_fn"}
    assert set(convolution["parts"]) == own
    assert 0 < scan["relative_l2"]["packed"]["delta"] < 0.01
    assert payload["settings"]["backends"]["ssm_pack"] == ["auto", "reference"]
    assert scan["exponentials"] == 70 * 4 * 3
    assert len(scan["parts"]["packed"]["seconds"]["backward"]) == 2
    payload["ceilings"]["exp2_per_second"] = 1e12
    scan["parts"]["packed"]["seconds"]["forward"] = [scan["exponentials"] / 0.5e12] * 2
    payload["ceilings"]["copy_bytes_per_second"] = 1e18
    text = operators_cuda.table(payload)
    lines = [line.split() for line in text.splitlines()]
    (line,) = [words for words in lines if words[:1] == ["ssm_pack"] and words[3:5] == ["packed", "forward"]]
    assert line[-2:] == ["0.50", "50%"]
    assert "causal-conv1d: skipped, causal_conv1d is not installed; pip install it" in text


def test_a_peers_backward_gets_dy_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the wrapper does to dy would be timed as the peer's work."""
    seen: list[Tensor] = []

    class Peer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
            seen.append(dy)
            return dy, *(None,) * 7

    module = types.ModuleType("causal_conv1d")
    module.causal_conv1d_fn = lambda x, weight, bias, **options: Peer.apply(x)  # type: ignore[attr-defined]
    scans = types.ModuleType("mamba_ssm.ops.selective_scan_interface")
    scans.selective_scan_fn = lambda u, *rest, **options: Peer.apply(u)  # type: ignore[attr-defined]
    for name, value in (("causal_conv1d", module), ("mamba_ssm", types.ModuleType("mamba_ssm"))):
        monkeypatch.setitem(sys.modules, name, value)
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops", types.ModuleType("mamba_ssm.ops"))
    monkeypatch.setitem(sys.modules, scans.__name__, scans)
    made = operator_cuda_peers.mamba_ssm() | operator_cuda_peers.causal_conv1d()
    assert set(made) == set(operators_cuda.PEER_OPERATOR)
    for name, make in made.items():
        case = operators_cuda.make_case(operators_cuda.PEER_OPERATOR[name], 24, 4, "cpu", 0)
        function, its = make(case, [10, 14])
        (leaf,) = [its.inputs[first] for first in ("u", "x") if first in its.inputs]
        torch.autograd.grad(function(its.inputs), leaf, its.dy)
        assert seen[-1].data_ptr() == its.dy.data_ptr(), name
        assert seen[-1].stride()[1:] == ((1, 4) if name.endswith("seq_idx") else (24, 1)), name


def test_a_wrong_peer_on_the_gpu_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators_cuda, "CHECKED", 40)
    loaded = {"mamba-ssm": {"selective_scan_fn": lambda case, lengths: (lambda inputs: slow_scan(inputs) * 2, case)}}
    with pytest.raises(RuntimeError, match="ssm_pack, selective_scan_fn: y is off"):
        operators_cuda.check("ssm_pack", 4, "cpu", ["auto"], loaded)


def test_what_forward_is_timed_with_can_go_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []

    def scan(inputs: Mapping[str, Tensor]) -> Tensor:
        kept.append(slow_scan(inputs))
        return kept[-1]

    monkeypatch.setattr(operators_cuda, "STATES", 3)
    operators_cuda.measure_part(lambda case: (scan, case), "ssm_pack", 24, 4, "cpu", 1)
    assert all(y.requires_grad for y in kept)


def timed(rival: str) -> dict[str, Any]:
    def part(forward: float, backward: float) -> dict[str, Any]:
        return {"seconds": {"forward": [forward], "backward": [backward]}}

    return {
        "operator": "conv1d_pack" if rival.endswith("seq_idx") else "ssm_pack",
        "tokens": 4096,
        "channels": 8,
        "parts": {"packed": part(1, 2), "one_sequence": part(0.9, 2.1), rival: part(3, 8)},
        "relative_l2": {
            "packed": {"y": 3.0, "B": 8.0},
            "one_sequence": {"y": 3.0, "B": 4.0},
            rival: {"y": 2.0, "B": 4.0},
        },
    }


@pytest.mark.parametrize(
    ("rival", "worst"), [("selective_scan_fn", "1.500 (y)"), ("causal_conv1d_fn_seq_idx", "2.000 (dB)")]
)
def test_speed_and_error_against_a_peer_by_hand(rival: str, worst: str) -> None:
    # The scan's peer knows no boundaries: errors are compared on the task that both can do.
    _, peer, alone = operator_cuda_table.against({"timed": [timed(rival)]})
    assert peer.split()[3:] == [rival, "3.00", "4.00", "3.67", *worst.split()]
    assert alone.split()[3:] == ["one_sequence", "0.90", "1.05", "1.00", "-"]


def test_only_backends_of_the_gpu_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(name: str, available: bool, *operators: str) -> BackendStatus:
        return BackendStatus(name, available, "found" if available else "no nvcc", operators=operators)

    both = ("ssm_pack", "conv1d_pack")
    found = [status("reference", True, *both), status("cpu", True, *both), status("triton", True, *both)]
    monkeypatch.setattr(operators_cuda, "backends", lambda: [*found, status("cuda", True, "ssm_pack")])
    assert operators_cuda.backends_on("cuda", "ssm_pack") == ["cuda", "triton"]
    assert operators_cuda.backends_on("cuda", "conv1d_pack") == ["triton"]
    assert operators_cuda.backends_on("cpu", "ssm_pack") == ["auto"]
    monkeypatch.setattr(operators_cuda, "backends", lambda: [status("triton", False), status("cuda", False)])
    with pytest.raises(ValueError, match=r"no backend for this GPU \(cuda: no nvcc; triton: no nvcc\)"):
        operators_cuda.backends_on("cuda", "ssm_pack")


def test_the_exponentials_kernel_compiles_for_a_gpu() -> None:
    triton = pytest.importorskip("triton")
    if operator_cuda_timing.exp2_per_second("cpu") is not None:
        pytest.fail("a CPU has no such ceiling")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mamba_lab.bench.exp2_kernel import exp2_chains

    source = ASTSource(
        exp2_chains,
        signature={"out": "*fp32", "BLOCK": "constexpr", "ROUNDS": "constexpr"},
        constexprs={"BLOCK": 1024, "ROUNDS": 64},
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert "ex2.approx" in ptx
