"""The example runs in configs/: each loads, says what it is, and those for a laptop train two steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from mamba_lab import cli
from mamba_lab.models import MambaLM
from mamba_lab.paths import configs_dir
from mamba_lab.training import TrainConfig, read_metrics

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = sorted(configs_dir().glob("*.toml"))
SMALL = ["data.max_documents=12", "packing.capacity=128", "training.max_steps=2", "training.device=cpu"]
SIZES = ["model.d_model=16", "model.n_layer=1"]


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_these_are_the_examples() -> None:
    names = {file.stem for file in FILES}
    assert names == {"pretrain-docs", "tune-chat", "code", "longalign", "gpu-130m", "gpu-1.4b"}
    folders = [TrainConfig.from_toml(file).training.output_dir for file in FILES]
    assert len(set(folders)) == len(folders)
    assert all(folder is not None and folder.parent == Path("runs") for folder in folders)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_explains_itself(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert f"#   mamba-lab train {file.stem}" in "\n".join(lines)
    assert len(lines) <= 40
    assert all(len(line) <= 120 for line in lines)
    settings = [line for line in lines if "=" in line and not line.startswith("#")]
    assert sum("#" in line for line in settings) >= len(settings) / 4
    assert TrainConfig.from_toml(file.stem) == TrainConfig.from_toml(file)
    written = tomllib.loads("\n".join(lines))
    assert written == TrainConfig.from_toml(file).model_dump(mode="json", exclude_unset=True)


@pytest.mark.parametrize("name", ["pretrain-docs", "code", "longalign"])
def test_an_example_trains_two_steps(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert cli.main(["train", name, *sets(*SMALL, *SIZES, f"training.output_dir={folder}")]) == 0
    assert "reached training.max_steps after 2 steps" in capsys.readouterr().out
    assert [line["step"] for line in read_metrics(folder)] == [1, 2]


def test_tuning_before_pre_training_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder too, where a plain runs/docs would be taken for a name on the Hub."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "tune-chat", *sets(*SMALL, "training.output_dir=none")]) == 1
    assert "mamba-lab: model.from_pretrained: there is no folder './runs/docs'. Give " in capsys.readouterr().err


def test_tuning_starts_from_pre_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "pretrain-docs", *sets(*SMALL, *SIZES)]) == 0
    assert cli.main(["train", "tune-chat", *sets(*SMALL)]) == 0
    (line,) = [line for line in read_metrics("runs/chat") if line["step"] == 1]
    assert 0 < line["targets"] < 0.75 * line["tokens"]  # the assistant's tokens only
    assert cli.main(["generate", "runs/chat", "--prompt", "Do you like tea?", "--max-new-tokens", "3"]) == 0


@pytest.mark.parametrize(("name", "millions"), [("gpu-130m", 130), ("gpu-1.4b", 1400)])
def test_the_models_of_the_gpu_runs_are_those_they_name(name: str, millions: int) -> None:
    config = TrainConfig.from_toml(name)
    assert config.training.device == "cuda"
    assert config.training.bf16 == "auto"
    tokens = config.packing.rows * config.packing.capacity * config.training.gradient_accumulation_steps
    assert tokens == 65536
    with torch.device("meta"):
        # Their vocabulary has 50,280 ids; ours has fewer, and the blocks are the same.
        model = MambaLM(config.model.mamba(50280))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


def test_the_longalign_recipe_is_the_papers() -> None:
    config = TrainConfig.from_toml("longalign")
    assert config.loss.weighting == "sequence"
    assert config.data.teach == "assistant"
    assert config.packing.capacity == config.data.max_seq_len == 65536
    assert config.training.gradient_accumulation_steps > 1
    sorted_batching = config.replace(packing={"scheme": "bucketed", "sort": "sorted"})
    assert sorted_batching.packing.sort == "sorted"
