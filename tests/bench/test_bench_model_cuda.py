"""The model's record on a GPU, in its arithmetic: what is compared is equal first, and who is asked for what."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mamba_lab import cli
from mamba_lab.bench import model_cuda as bench
from mamba_lab.bench import model_cuda_peers, model_cuda_steps, model_cuda_table, operator_cuda_timing, step_profile
from mamba_lab.bench.record import read_record
from mamba_lab.models import MambaConfig, MambaLM

SMALL = MambaConfig(d_model=16, n_layer=2, vocab_size=61)


class Fake(nn.Module):
    """mamba-ssm's model, played by ours: rows are documents, and what comes back has logits."""

    def __init__(self, config: MambaConfig, factor: float = 1.0) -> None:
        super().__init__()
        self.model, self.factor = MambaLM(config), factor

    def forward(self, ids: Tensor) -> Any:
        return types.SimpleNamespace(logits=self.model(ids) * self.factor)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.model.load_state_dict(*arguments, **options)

    def named_parameters(self, *arguments: Any, **options: Any) -> Any:
        return self.model.named_parameters(*arguments, **options)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CONFIG": SMALL, "TOKENS": (100, 200), "CHECKED_TOKENS": 700, "EXPECTED_DRAWS": 3}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "peer", lambda config, precision, device: Fake(config))
    monkeypatch.setattr(bench, "load", lambda: None)


def test_a_row_says_where_its_documents_end() -> None:
    batch = bench.pack(3000, "cpu", 0)
    assert batch.ids.shape == batch.targets.shape == (1, 3000)
    assert sum(batch.lengths) == 3000
    assert len(batch.lengths) > 2
    assert int((batch.targets == -100).sum()) == len(batch.lengths)
    first = batch.lengths[0]
    assert torch.equal(batch.targets[0, : first - 1], batch.ids[0, 1:first])
    assert batch.targets[0, first - 1] == -100


def test_draws_of_lengths_are_draws_of_their_own() -> None:
    rows = bench.batches_of("padding", 3000, "autocast", "cpu")
    assert [row.seed for row in rows] == [0, 1, 2, 3]
    assert len({tuple(row.lengths) for row in rows}) == 4
    assert [row.lengths for row in bench.batches_of("packed", 3000, "autocast", "cpu")] == [row.lengths for row in rows]
    for step, precision in (("concat", "autocast"), ("one_by_one", "autocast"), ("packed", "bfloat16")):
        assert [row.seed for row in bench.batches_of(step, 3000, precision, "cpu")] == [0]


def test_what_many_draws_would_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {0: [5, 3, 2], 1: [9, 1]}
    monkeypatch.setattr(model_cuda_steps, "published_pack", lambda tokens, seed: lengths[seed])
    assert model_cuda_steps.expected_valid_ratio(10, 2) == pytest.approx(20 / (3 * 8 + 2 * 16))


def test_the_peers_ways_are_checked_against_ours() -> None:
    found = bench.check("cpu")
    assert max(found[name] for name in model_cuda_peers.PEER_STEPS) < 1e-4
    assert found["packed from concat"] > 0.01


def measured(repeats: int, peers: bool) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    bench.measure("cpu", repeats, peers, payload, lambda kept: None)
    return payload


def test_a_peer_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "peer", lambda config, precision, device: Fake(config, 1.01))
    with pytest.raises(RuntimeError, match=r"mamba-ssm, concat: .* is off by .* times of different things"):
        measured(1, True)


def test_a_check_that_sees_no_boundaries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "packed", bench.one_sequence)
    monkeypatch.setattr(bench, "PEER_STEPS", {})
    with pytest.raises(RuntimeError, match="the check sees no boundaries"):
        bench.check("cpu")


def test_gradients_of_other_parameters_do_not_agree() -> None:
    one = torch.ones(1)
    with pytest.raises(RuntimeError, match=r"it: gradients of other parameters: \['b'\]"):
        bench.agree("it", {"a": one, "b": one}, {"a": one})
    with pytest.raises(RuntimeError, match="it: a is off by nan"):
        bench.agree("it", {"a": one * float("nan")}, {"a": one})


def test_the_record_of_tiny_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = json.loads(json.dumps(measured(2, True)))
    parts = [(one["package"], one["step"], one["precision"], one["tokens"]) for one in payload["timed"]]
    assert parts == [
        ("mamba-lab", "packed", "autocast", 100),
        ("mamba-lab", "packed", "autocast", 200),
        ("mamba-ssm", "concat", "autocast", 100),
        ("mamba-ssm", "one_by_one", "autocast", 100),
        ("mamba-ssm", "padding", "autocast", 100),
        ("mamba-ssm", "concat", "autocast", 200),
        ("mamba-ssm", "one_by_one", "autocast", 200),
        ("mamba-ssm", "padding", "autocast", 200),
        ("mamba-lab", "packed", "bfloat16", 100),
        ("mamba-lab", "packed", "bfloat16", 200),
        ("mamba-ssm", "concat", "bfloat16", 100),
        ("mamba-ssm", "concat", "bfloat16", 200),
    ]
    assert all(len(one["seconds"]) == 2 for one in payload["timed"])
    profiled = [(one["package"], one["step"], one["tokens"]) for one in payload["profiles"]]
    assert profiled == [("mamba-lab", "packed", 100), ("mamba-lab", "packed", 200), ("mamba-ssm", "concat", 100)]
    assert [sum(lengths) for lengths in payload["lengths"]["200"].values()] == [200] * 4
    draws = {(one["step"], one["precision"], one["tokens"]): one["draws"] for one in payload["timed"]}
    for padded, packed in zip(draws["padding", "autocast", 200], draws["packed", "autocast", 200], strict=True):
        lengths = payload["lengths"]["200"][str(padded["seed"])]
        assert padded["valid_ratio"] == packed["valid_ratio"] == 200 / model_cuda_steps.padded_positions(lengths)
        assert padded["sequences"] == len(lengths)
    assert len(draws["one_by_one", "autocast", 200]) == len(draws["packed", "bfloat16", 200]) == 1


def test_a_stopped_run_leaves_the_parts_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, done = bench.measure_step, []

    def stopped(*given: Any) -> dict[str, Any]:
        done.append(1)
        if len(done) == 4:
            raise SystemExit
        return real(*given)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "measure_step", stopped)
    original = bench.measure
    monkeypatch.setattr(bench, "measure", lambda device, *rest: original("cpu", *rest))
    with pytest.raises(SystemExit):
        bench.run(1, tmp_path, True)
    found = read_record("model-cuda-unfinished", folder=tmp_path)
    assert [one["step"] for one in found["results"]["timed"]] == ["packed", "packed", "concat"]
    assert found["versions"]["torch"]
    done[:] = [1] * 9  # and from here on nothing stops it
    assert bench.run(1, tmp_path, True) == 0
    assert len(read_record("model-cuda", folder=tmp_path)["results"]["timed"]) == 12
    assert not (tmp_path / "model-cuda-unfinished.json").exists()


def test_without_the_peer_ours_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "load", lambda: "mamba_ssm is not installed; see environment-peers.yml")
    payload = measured(1, True)
    assert {one["package"] for one in payload["timed"]} == {"mamba-lab"}
    assert payload["checked"] == {}
    assert "mamba-ssm: skipped, mamba_ssm is not installed" in model_cuda_table.table(payload)
    assert "mamba-ssm: skipped" in capsys.readouterr().out
    assert measured(1, False)["skipped"] == {"mamba-ssm": "not asked for"}


def test_a_step_that_does_not_fit_says_so() -> None:
    def step(call: Any, batch: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    found = bench.measure_step(step, MambaLM(SMALL), "float32", [bench.pack(100, "cpu", 0)], 1)
    (draw,) = found.pop("draws")
    assert found == {"tokens": 100, "failed": "out of memory", "seconds": [], "peak_bytes": None}
    assert (draw["failed"], draw["seconds"]) == ("out of memory", [])


def test_several_draws_are_one_step_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(step: Any, model: Any, precision: str, batch: Any, repeats: int) -> dict[str, Any]:
        seconds = {0: [1.0, 2.0], 1: [3.0, 8.0], 2: []}[batch.seed]
        return {"failed": None if seconds else "out of memory", "seconds": seconds, "peak_bytes": batch.seed or None}

    monkeypatch.setattr(bench, "measure_draw", draw)
    rows = [bench.pack(100, "cpu", seed) for seed in range(3)]
    found = bench.measure_step(bench.packed, MambaLM(SMALL), "float32", rows, 2)
    assert (found["failed"], found["seconds"], found["peak_bytes"]) == (None, [2.0, 5.0], 1)
    assert [one["failed"] for one in found["draws"]] == [None, None, "out of memory"]


def test_slow_steps_are_repeated_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    taken = bench.SLOW_S
    monkeypatch.setattr(bench, "queued_seconds", lambda call, n, device: asked.append(n) or [taken] * n)

    def samples(repeats: int) -> int:
        asked.clear()
        return len(bench.measure_draw(bench.packed, MambaLM(SMALL), "float32", batch, repeats)["seconds"])

    batch = bench.pack(100, "cpu", 0)
    assert (samples(9), asked) == (bench.SLOW_REPEATS, [1, bench.SLOW_REPEATS - 1])
    assert (samples(1), asked) == (1, [1])
    taken /= 2
    assert (samples(9), asked) == (9, [1, 9])  # the first is not one of them


def test_only_the_forward_pass_is_under_autocast() -> None:
    seen = []

    def model(x: int) -> int:
        seen.append(torch.is_autocast_enabled("cpu"))
        return x + 1

    assert bench.under(model, "autocast", "cpu")(1) == 2  # type: ignore[arg-type]
    assert bench.under(model, "bfloat16", "cpu") is model  # type: ignore[arg-type]
    assert seen == [True]
    assert not torch.is_autocast_enabled("cpu")


def test_parameters_are_narrowed_as_the_peer_has_them() -> None:
    model = bench.ours(SMALL, "bfloat16", "cpu")
    wide = {name.rpartition(".")[2] for name, value in model.named_parameters() if value.dtype == torch.float32}
    assert wide == {"A_log", "D"}
    assert model.lm_head.weight is model.backbone.embedding.weight


def test_a_padded_batch_is_the_same_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(model_cuda_peers, "loss_of", lambda model, ids, targets: seen.append((ids, targets)))
    batch = types.SimpleNamespace(ids=torch.arange(1, 7)[None], targets=torch.arange(2, 8)[None], lengths=[4, 2])
    model_cuda_peers.padding(None, batch)
    ((ids, targets),) = seen
    assert ids.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0], [5, 6, 0, 0, 0, 0, 0, 0]]
    assert targets.tolist() == [[2, 3, 4, 5, *[-100] * 4], [6, 7, *[-100] * 6]]
    assert [model_cuda_peers.padded_length(lengths) for lengths in ([8, 3], [9], [1, 16])] == [8, 16, 16]


def test_the_table_compares_with_concat() -> None:
    def part(package: str, step: str, seconds: float, peak: int | None) -> dict[str, Any]:
        sizes = {"precision": "autocast", "tokens": 4096, "failed": None}
        draws = [{"seed": seed, "sequences": 6, "valid_ratio": 1 / (2 + seed), "failed": None} for seed in range(2)]
        for seed, draw in enumerate(draws):
            draw["seconds"] = [seconds * (1 + seed)]
        return {"package": package, "step": step, "seconds": [seconds], "peak_bytes": peak, "draws": draws, **sizes}

    padded = part("mamba-ssm", "padding", 1, None) | {"failed": "out of memory"}
    padded["draws"] = [draw | {"failed": "out of memory"} for draw in padded["draws"]]
    timed = [part("mamba-lab", "packed", 0.1, 3 << 30), part("mamba-ssm", "concat", 0.2, 2 << 30), padded]
    profile = {
        "package": "mamba-lab",
        "step": "packed",
        "tokens": 4096,
        "precision": "autocast",
        "seconds": 0.1,
        "busy_seconds": 0.08,
        "kinds": {"scan forward": 0.06, "loss": 0.02},
    }
    payload = {"timed": timed, "profiles": [profile], "skipped": {}, "expected_valid_ratio": {"4096": 0.44}}
    text = model_cuda_table.table(payload).splitlines()
    assert text[1].split()[3:] == ["4,096", "40,960", "100.0", "3.0", "2.00", "1.500"]
    assert text[3].split()[3:] == ["4,096", "out", "of", "memory", "-", "-", "-", "-"]
    assert text[-1].split() == ["loss", "20.00", "25.0%"]
    assert text[-4] == "mamba-lab, packed, autocast, 4,096 tokens: the GPU works 80.0 ms of a step of 100.0 ms"
    assert not any("draw" in line for line in text)
    # 0.1 and 0.2 s against 0.5 and 1.5 s; where one did not fit, the other against its own.
    timed[2] = part("mamba-ssm", "padding", 0.5, None)
    timed[2]["draws"][1]["seconds"] = [1.5]
    said = model_cuda_table.padded_lines(payload)
    assert said[1] == (
        "4,096 tokens: packed is 6.67 times as fast as padding over these draws. Of many draws' padded batches 44.0% "
        "are tokens."
    )
    assert [line.split() for line in said[3:]] == [
        ["0", "6", "50.0%", "40,960", "8,192", "5.00"],
        ["1", "6", "33.3%", "20,480", "2,731", "7.50"],
    ]
    timed[2]["draws"][1]["failed"] = "out of memory"
    said = model_cuda_table.padded_lines(payload)
    assert said[1].startswith("4,096 tokens: packed is 5.00 times as fast as padding over these draws.")
    assert said[4].split()[4:] == ["out", "of", "memory", "-"]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void selective_scan_bwd_kernel<Traits>(SSMParamsBwd)", "scan backward"),
        ("void selective_scan_fwd_kernel<Traits>(SSMParamsBase)", "scan forward"),
        ("void mamba_lab::ssm::(anonymous namespace)::scan_backward<__nv_bfloat16>(Arguments)", "scan backward"),
        ("scan_forward", "scan forward"),
        ("void mamba_lab::ssm::(anonymous namespace)::sum_parts<__nv_bfloat16>(Sums)", "partial sums"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "casts and copies"),
        ("void causal_conv1d_bwd_kernel<Traits>(ConvParamsBwd)", "convolution"),
        ("void mamba_lab::conv::(anonymous namespace)::forward_tiles<__nv_bfloat16, 4>(Arguments)", "convolution"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopB_NNT", "matrix products"),
        ("_layer_norm_fwd_1pass_kernel", "norm and residual"),
        ("void cunn_SoftMaxForward<4>", "loss"),
        ("void at::native::vectorized_elementwise_kernel<4>", "everything else"),
    ],
)
def test_kernels_by_kind(kernel: str, kind: str) -> None:
    assert step_profile.kind_of(kernel) == kind


def test_a_profile_by_hand() -> None:
    kernels = [("nvjet_a", 2.0), ("fill", 1.0), ("nvjet_a", 2.0), ("nvjet_b", 4.5)]
    found = step_profile.summary(kernels, 12.0)
    assert found["kinds"] == {"matrix products": 8.5, "everything else": 1.0}
    assert (found["seconds"], found["busy_seconds"]) == (12.0, 9.5)
    assert [(one["kernel"], one["calls"], one["seconds"]) for one in found["longest"]] == [
        ("nvjet_b", 1, 4.5),
        ("nvjet_a", 2, 4.0),
        ("fill", 1, 1.0),
    ]


def test_long_calls_are_counted_one_by_one() -> None:
    calls: list[int] = []
    assert len(operator_cuda_timing.queued_seconds(lambda: calls.append(1), 3, "cpu")) == 3
    assert len(calls) == 3
    assert operator_cuda_timing.matmul_flops_per_second("cpu") is None


def test_the_command_asks_for_the_gpus_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(bench, "run", lambda *arguments: asked.append(arguments) or 0)
    assert cli.main(["bench", "model", "--device", "cuda", "--repeats", "3"]) == 0
    assert cli.main(["bench", "model", "--device", "cuda", "--no-peers"]) == 0
    assert asked == [(3, None, True), (5, None, False)]
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "model", "--device", "cuda"]) == 1
    assert "PyTorch sees no GPU here" in capsys.readouterr().err


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "causal_conv1d", None)
    said = model_cuda_peers.load()
    assert said is not None
    assert "causal_conv1d" in said
    assert "environment-peers.yml" in said
