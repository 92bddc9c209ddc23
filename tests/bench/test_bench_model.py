"""The model's record: what is compared is equal first, memory is counted by the byte, and the command end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mamba_lab.bench import model as bench
from mamba_lab.bench.record import read_record
from mamba_lab.models import MambaConfig, MambaLM

SMALL = MambaConfig(d_model=16, n_layer=2, vocab_size=64, tie_embeddings=False)


def test_peak_bytes_by_hand() -> None:
    def step() -> None:
        a = torch.zeros(250_000)
        b = a + 1
        del a
        c = b + 1  # takes the place that a left
        del b, c

    # Two at a time, and not three; the ones that are added take a few bytes.
    assert bench.peak_bytes(step) == pytest.approx(2_000_000, abs=100)


def test_a_batch_has_the_sequences_that_it_says() -> None:
    ids, targets, lengths = bench.batch(2048)
    assert ids.shape == targets.shape == (1, 2048)
    assert sum(lengths) == 2048
    assert len(lengths) > 1
    assert int((targets == -100).sum()) == len(lengths)
    assert torch.equal(targets[0, : lengths[0] - 1], ids[0, 1 : lengths[0]])


def test_different_things_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CONFIG", SMALL)
    monkeypatch.setitem(bench.PEERS, "torch", lambda model: lambda ids: torch.zeros(*ids.shape, 64))
    monkeypatch.setitem(bench.PEER_TOKENS, "torch", (32,))
    with pytest.raises(RuntimeError, match=r"torch at 32 tokens: the loss is .* times of different things"):
        bench.measure_peer(MambaLM(SMALL), "torch", 1, {}, lambda: None)
    with pytest.raises(RuntimeError, match="the loss is nan"):
        bench.agree("it", float("nan"), 1.0)


@pytest.mark.parametrize("name", ["mambapy", "transformers"])
def test_a_peer_with_our_weights_has_our_logits(name: str) -> None:
    pytest.importorskip(name)
    torch.manual_seed(0)
    model, ids = MambaLM(SMALL), torch.arange(1, 24)[None]
    torch.testing.assert_close(bench.PEERS[name](model)(ids), model(ids), rtol=1e-4, atol=1e-5)


def test_the_command_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CONFIG", SMALL)
    monkeypatch.setattr(bench, "TOKENS", (16, 128))
    monkeypatch.setattr(bench, "PEER_TOKENS", {"transformers": (16,)})
    monkeypatch.setattr(bench, "PEERS", {"no-such-peer": None, "transformers": bench.PEERS["transformers"]})
    monkeypatch.setattr("mamba_lab.bench.model.published_lengths", lambda *_, **__: [9, 3, 40, 400])
    assert bench.run(repeats=2, output=tmp_path) == 0
    results = read_record("model", folder=tmp_path)["results"]
    assert results["ours"]["16"]["lengths"] == [9, 3, 4]
    assert results["ours"]["128"]["lengths"] == [9, 3, 40, 76]
    for name in ("packed", "one_sequence", "one_by_one", "packed_checkpointed", "packed_all_logits"):
        part = results["ours"]["128"][name]
        assert len(part["seconds"]) == 2
        assert part["peak_bytes"] > 0
    assert results["ours"]["128"]["packed_checkpointed"]["peak_bytes"] < results["ours"]["128"]["packed"]["peak_bytes"]
    assert results["peers"]["no-such-peer"] == {"installed": False}
    assert len(results["peers"]["transformers"]["16"]["seconds"]) == 2
    assert results["peers"]["transformers"]["16"]["peak_bytes"] is None  # minutes for a number
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]
    out = capsys.readouterr().out
    assert "MambaLM, packed, checkpointed, 128 tokens: 0." in out
    assert out.index("transformers, 16 tokens: ") < out.index("peak MiB")
    assert "not installed: no-such-peer" in out


@pytest.mark.parametrize("measured", [[], ["numpy"]])
def test_a_stopped_run_leaves_the_parts_it_has(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(model: MambaLM) -> object:
        raise SystemExit

    monkeypatch.setattr(bench, "CONFIG", SMALL)
    monkeypatch.setattr(bench, "TOKENS", (16,))
    peers = {name: lambda model: lambda ids: model(ids) for name in measured}
    monkeypatch.setattr(bench, "PEERS", {**peers, "torch": stop})
    monkeypatch.setattr(bench, "PEER_TOKENS", {"numpy": (16,)})
    with pytest.raises(SystemExit):
        bench.run(repeats=1, output=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model-unfinished.json"]
    results = read_record("model-unfinished", folder=tmp_path)["results"]
    assert len(results["ours"]["16"]["packed_all_logits"]["seconds"]) == 1
    assert [name for name, found in results["peers"].items() if "16" in found] == measured
