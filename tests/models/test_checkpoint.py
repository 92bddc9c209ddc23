"""Checkpoints in both layouts: there and back, from shards, from the Hub, and a report where they do not fit."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mamba_lab.log import log_once
from mamba_lab.models import MambaConfig, MambaLM, weight_files
from mamba_lab.models.checkpoint import load_weights
from mamba_lab.models.layouts import EMBEDDING

safetensors = pytest.importorskip("safetensors.torch")

CONFIG = MambaConfig(d_model=16, n_layer=2, vocab_size=50, d_state=4)
PAD = torch.arange(50, 56)


def make(**change: object) -> MambaLM:
    torch.manual_seed(0)
    return MambaLM(MambaConfig(**(CONFIG.to_dict() | change)))


def same(one: MambaLM, two: MambaLM) -> None:
    there = dict(two.named_parameters())
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, there[name]), name


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("format", ["mamba_ssm", "huggingface"])
@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back(format: str, tied: bool, tmp_path: Path) -> None:
    model = make(tie_embeddings=tied)
    model.save_pretrained(tmp_path / "new" / "folder", format=format)
    loaded = MambaLM.from_pretrained(tmp_path / "new" / "folder")
    same(model, loaded)
    assert (loaded.lm_head.weight is loaded.backbone.embedding.weight) == tied
    assert loaded.config.vocab_size == 50
    weights = {"mamba_ssm": "pytorch_model.bin", "huggingface": "model.safetensors"}[format]
    assert files(tmp_path / "new" / "folder") == ["config.json", weights]
    # Once more over the same files, and into the other layout.
    loaded.save_pretrained(str(tmp_path / "new" / "folder"), format=format)
    loaded.save_pretrained(tmp_path / "other", format="huggingface" if format == "mamba_ssm" else "mamba_ssm")
    same(model, MambaLM.from_pretrained(str(tmp_path / "other")))


def test_the_files_have_each_layouts_names(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "ssm")
    make().save_pretrained(tmp_path / "hf", format="huggingface")
    ssm = torch.load(tmp_path / "ssm/pytorch_model.bin", weights_only=True)
    hf = safetensors.load_file(tmp_path / "hf/model.safetensors")
    assert {"backbone.embedding.weight", "lm_head.weight"} <= set(ssm)
    assert "backbone.embeddings.weight" in hf
    assert "lm_head.weight" not in hf  # transformers ties it
    assert ssm["lm_head.weight"].data_ptr() == ssm["backbone.embedding.weight"].data_ptr()
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "mamba"


def shards(folder: Path, model: MambaLM, file: str) -> None:
    """The checkpoint in ``folder`` in two files and an index."""
    state = model.state_dict()
    parts = [dict(list(state.items())[:7]), dict(list(state.items())[7:])]
    stem, _, suffix = file.rpartition(".")
    weight_map = {}
    for number, part in enumerate(parts, 1):
        name = f"{stem}-{number:05}-of-00002.{suffix}"
        part = {key: value.clone() for key, value in part.items()}
        torch.save(part, folder / name) if suffix == "bin" else safetensors.save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / f"{file}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / file).unlink(missing_ok=True)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_shards(file: str, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    shards(tmp_path, model, file)
    same(model, MambaLM.from_pretrained(tmp_path))
    stem, _, suffix = file.rpartition(".")
    (tmp_path / f"{stem}-00002-of-00002.{suffix}").unlink()
    with pytest.raises(ValueError, match=r"index.json names .*-00002-of-00002\..*, which is not there"):
        MambaLM.from_pretrained(tmp_path)
    (tmp_path / f"{file}.index.json").write_text(json.dumps({"weight_map": {"a": "../../secret.bin"}}))
    with pytest.raises(ValueError, match=r"names '../../secret.bin': a shard lies beside its index"):
        MambaLM.from_pretrained(tmp_path)
    (tmp_path / f"{file}.index.json").write_text("{}")
    with pytest.raises(ValueError, match="has no weight_map"):
        MambaLM.from_pretrained(tmp_path)


def test_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    model, asked = make(), []
    model.save_pretrained(tmp_path, format="huggingface")

    def download(repository: str, name: str, revision: str | None = None) -> str:
        asked.append((repository, name, revision))
        if not (tmp_path / name).exists():
            raise EntryNotFoundError(f"no {name}")
        return str(tmp_path / name)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "mamba_lab"):
        same(model, MambaLM.from_pretrained("owner/tiny-mamba", revision="v1"))
    assert "there is no folder 'owner/tiny-mamba' here, so the Hub is asked for a model of this name" in caplog.messages
    assert asked == [("owner/tiny-mamba", name, "v1") for name in ("config.json", "model.safetensors")]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"the checkpoint has no weights: none of model\.safetensors"):
        MambaLM.from_pretrained("owner/tiny-mamba")

    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    with pytest.raises(ValueError, match=r"the Hub does not give config.json: no connection"):
        MambaLM.from_pretrained("owner/tiny-mamba")


@pytest.mark.parametrize(
    "path", ["/no/such", "./no-such", "no-such", "a/b/c", "~/models", "wörk/rün", "a b/c", "a/b\\c"]
)
def test_no_folder_and_no_hub_id(path: str) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .* Give a folder with config.json, or a hub id"):
        MambaLM.from_pretrained(path)


def test_what_is_missing_beside_our_own_folders_is_not_asked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 25 seconds without a network; with one the weights would have been a stranger's."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no folder 'runs/1', though there is 'runs', so the Hub is not asked\. Give"):
        MambaLM.from_pretrained("runs/1")


def change(folder: Path, edit: object) -> None:
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    edit(state)  # type: ignore[operator]
    torch.save(state, folder / "pytorch_model.bin")


def test_the_report_names_what_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make()
    model.save_pretrained(tmp_path)

    def edit(state: dict[str, Tensor]) -> None:
        state["backbone.layers.0.mixer.A_logs"] = state.pop("backbone.layers.0.mixer.A_log")
        state["backbone.layers.1.mixer.D"] = torch.ones(31)
        state["score.weight"] = torch.ones(2)

    change(tmp_path, edit)
    with pytest.raises(ValueError, match=r"the weights do not fit the model of its config\.json") as error:
        MambaLM.from_pretrained(tmp_path)
    assert str(error.value).splitlines()[1:] == [
        "20 parameters loaded",
        "  missing (1):",
        "    backbone.layers.0.mixer.A_log (did it mean backbone.layers.0.mixer.A_logs?)",
        "  unexpected (2):",
        "    backbone.layers.0.mixer.A_logs",
        "    score.weight",
        "  wrong shape (1):",
        "    backbone.layers.1.mixer.D: [31] in the file, [32] in the model",
        "strict=False loads what fits.",
    ]
    with caplog.at_level(logging.WARNING, logger="mamba_lab"):
        loaded = MambaLM.from_pretrained(tmp_path, strict=False)
    assert "missing (1)" in caplog.text
    assert torch.equal(loaded.backbone.embedding.weight, model.backbone.embedding.weight)
    report = load_weights(make(), weight_files.source(tmp_path), "mamba_ssm")
    assert not report.fits
    assert report.missing == ["backbone.layers.0.mixer.A_log"]
    assert report.wrong_shape == {"backbone.layers.1.mixer.D": ([31], [32])}


def test_a_long_report_is_cut(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    change(tmp_path, lambda state: state.clear())
    with pytest.raises(ValueError, match=r"missing \(22\):(\n.*){8}\n    and 14 more"):
        MambaLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("rows", [50, 52, 64])
def test_an_embedding_padded_otherwise(rows: int, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    values = torch.randn(rows, 16)
    change(tmp_path, lambda state: state.update({EMBEDDING: values, "lm_head.weight": values}))
    loaded = MambaLM.from_pretrained(tmp_path).backbone.embedding.weight
    assert loaded.shape == (56, 16)
    assert torch.equal(loaded[: min(rows, 56)], values[:56])
    assert loaded[rows:].eq(0).all()
    change(tmp_path, lambda state: state.update({EMBEDDING: values[:49], "lm_head.weight": values[:49]}))
    with pytest.raises(ValueError, match=r"backbone.embedding.weight: \[49, 16\] in the file, \[56, 16\]"):
        MambaLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("kept", ["lm_head.weight", EMBEDDING])
def test_a_tied_weight_under_one_name(kept: str, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    change(tmp_path, lambda state: state.pop("lm_head.weight" if kept == EMBEDDING else EMBEDDING))
    same(model, MambaLM.from_pretrained(tmp_path))


def test_half_precision_is_widened(tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    change(tmp_path, lambda state: state.update({name: value.bfloat16() for name, value in state.items()}))
    loaded = MambaLM.from_pretrained(tmp_path)
    assert loaded.backbone.embedding.weight.dtype == torch.float32
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.bfloat16().float())


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("trap-was-sprung",)


def test_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make().save_pretrained(tmp_path)
    torch.save({"backbone.norm_f.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is damaged, or holds more than tensors"):
        MambaLM.from_pretrained(tmp_path)
    assert not (tmp_path / "trap-was-sprung").exists()
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="must hold tensors by name"):
        MambaLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("format", ["mamba_ssm", "huggingface"])
def test_a_file_cut_short(format: str, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path, format=format)
    (weights,) = [path for path in tmp_path.iterdir() if path.name != "config.json"]
    for size in (len(weights.read_bytes()) // 2, 5, 0):
        weights.write_bytes(weights.read_bytes()[:size])
        with pytest.raises(ValueError, match=f"{weights.name} is damaged"):
            MambaLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"d_model": 16')
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        MambaLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"the checkpoint has no config\.json"):
        MambaLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("format", ["mamba_ssm", "huggingface"])
def test_a_failed_save_leaves_the_old_checkpoint(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 30: the disk is full while the second file is written."""
    old = make()
    old.save_pretrained(tmp_path, format=format)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    new = make(d_state=6)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            new.save_pretrained(tmp_path, format=format)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_are_renamed_and_never_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, moved, replace = make(), [], os.replace
    model.save_pretrained(tmp_path)
    open_before = [(path, open(path, "rb")) for path in tmp_path.iterdir()]  # noqa: SIM115
    old = [file.read() for _, file in open_before]
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append(Path(b).name), replace(a, b)))
    make(d_state=6).save_pretrained(tmp_path)
    assert moved == ["pytorch_model.bin", "config.json"]  # the configuration last: it is what a reader opens first
    for (path, file), content in zip(open_before, old, strict=True):
        file.seek(0)
        assert file.read() == content  # who had it open still has the old one
        assert path.read_bytes() != content
        file.close()


def test_a_save_that_is_killed_leaves_no_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models of the same shapes that differ in their configuration: killed after the weights are in place."""
    make().save_pretrained(tmp_path)
    moved, replace = [], os.replace

    def killed(old: Path, new: Path) -> None:
        if moved:
            raise KeyboardInterrupt
        moved.append(replace(old, new))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            make(residual_in_fp32=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"the checkpoint has no config\.json"):
        MambaLM.from_pretrained(tmp_path)
    make(residual_in_fp32=False).save_pretrained(tmp_path)
    assert not MambaLM.from_pretrained(tmp_path).config.residual_in_fp32


@pytest.mark.parametrize("format", ["mamba_ssm", "huggingface"])
def test_the_files_have_the_mode_of_the_umask(format: str, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        make().save_pretrained(tmp_path / "a", format=format)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()} == {0o640}


@pytest.mark.parametrize("format", ["mamba_ssm", "huggingface"])
def test_a_head_of_its_own_is_not_lost(format: str, tmp_path: Path) -> None:
    model = make()
    model.lm_head.weight = torch.nn.Parameter(torch.randn(56, 16))
    logits = model(torch.arange(9)[None])
    with pytest.raises(ValueError, match=r"lm_head.weight differs from backbone.embedding.weight, .* tie_weights\(\)"):
        model.save_pretrained(tmp_path / "a", format=format)
    assert not (tmp_path / "a").exists()
    # What the message offers: either keeps what it says.
    model.config = dataclasses.replace(model.config, tie_embeddings=False)
    model.save_pretrained(tmp_path / "both", format=format)
    assert torch.equal(MambaLM.from_pretrained(tmp_path / "both")(torch.arange(9)[None]), logits)
    model.config = dataclasses.replace(model.config, tie_embeddings=True)
    model.tie_weights()
    model.save_pretrained(tmp_path / "one", format=format)
    same(model, MambaLM.from_pretrained(tmp_path / "one"))


@pytest.mark.parametrize("first", ["lm_head.weight", EMBEDDING])
def test_a_file_with_a_head_of_its_own_is_in_the_report(first: str, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    head = torch.randn(56, 16)

    def edit(state: dict[str, Tensor]) -> None:
        both = {EMBEDDING: state.pop(EMBEDDING), "lm_head.weight": head}
        del state["lm_head.weight"]
        state.update({first: both.pop(first)} | both)

    change(tmp_path, edit)
    with pytest.raises(ValueError, match=r"untied \(1\):\n    lm_head.weight is not the embedding, but tie_embeddings"):
        MambaLM.from_pretrained(tmp_path)
    same(model, MambaLM.from_pretrained(tmp_path, strict=False))
    # Padding rows have no id: a head that differs there is the same head.
    change(tmp_path, lambda state: state.update({"lm_head.weight": state[EMBEDDING].clone().index_fill_(0, PAD, 7.0)}))
    same(model, MambaLM.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda state: {1: torch.ones(1)}, "must hold tensors by name"),
        (lambda state: state | {EMBEDDING: state[EMBEDDING].to_sparse()}, f"{EMBEDDING} is of layout torch.sparse_coo"),
        (lambda state: state | {EMBEDDING: state[EMBEDDING].to("meta")}, f"{EMBEDDING} is on meta, without values"),
        (lambda state: {k: v.to(torch.int8) for k, v in state.items()}, r"is torch.int8 in the file, .* not quantised"),
        (lambda state: {k: v.to(torch.complex64) for k, v in state.items()}, "is torch.complex64 in the file"),
        (lambda state: {"lm_head.weight": torch.ones(56, 16, dtype=torch.int8)}, "lm_head.weight is torch.int8"),
    ],
)
def test_weights_of_another_kind(edit: object, message: str, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    torch.save(edit(dict(model.state_dict())), tmp_path / "pytorch_model.bin")  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        MambaLM.from_pretrained(tmp_path)


def test_places_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    for place in ("file", "file/below"):
        with pytest.raises(ValueError, match=f"folder: '{place}' cannot be made .* Choose another place"):
            make().save_pretrained(place)
    for nothing in ("", None, b"bytes"):
        with pytest.raises(ValueError, match="folder must be a path or a string with one"):
            make().save_pretrained(nothing)
        with pytest.raises(ValueError, match="path_or_hub_id must be a path or a string"):
            MambaLM.from_pretrained(nothing)
    with pytest.raises(ValueError, match=r"is on meta and has no values to save"):
        make().to("meta").save_pretrained("meta")
    resized = make()
    resized.backbone.embedding = torch.nn.Embedding(80, 16)
    resized.tie_weights()
    with pytest.raises(ValueError, match=r"is \[80, 16\], but config makes it \[56, 16\]"):
        resized.save_pretrained("resized")
    assert files(tmp_path) == ["file"]


def test_what_is_not_saved(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path, format="huggingface")
    with pytest.raises(ValueError, match=r"has model\.safetensors already, and a reader might take it"):
        make().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="format must be one of mamba_ssm, huggingface, got 'onnx'"):
        make().save_pretrained(tmp_path, format="onnx")
    adapted = make()
    adapted.backbone.layers[0].mixer.x_proj.register_parameter("lora", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ValueError, match=r"such as backbone.layers.0.mixer.x_proj.lora. Merge or remove adapters"):
        adapted.save_pretrained(tmp_path / "adapted")
    assert not (tmp_path / "adapted").exists()
