"""Arguments of another kind are named before anything is written; wrapped models are models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_help import config, documents, run

from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.training import MambaRegressor, train, train_regressor

SIZES = MambaConfig(d_model=8, n_layer=1, vocab_size=264, d_state=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"config": {"training": {"max_steps": 1}}},
            r"^config must be a TrainConfig, got dict\. .* TrainConfig\(\*\*values\)",
        ),
        ({"config": "my.toml"}, r"^config must be a TrainConfig, got str\. .* TrainConfig\.from_toml\(path\)"),
        ({"model": torch.nn.Linear(2, 2)}, r"^model must be a MambaLM, got Linear\. Make one with MambaLM\(config\)"),
        (
            {"model": torch.nn.Sequential(MambaLM(MambaConfig(d_model=8, n_layer=1, vocab_size=8)))},
            r"^model must be a MambaLM, got Sequential\. ",
        ),
        (
            {"model": "runs/first"},
            r'^model must be a MambaLM, got str\. .* TrainConfig\(model=\{"from_pretrained": folder',
        ),
        (
            {"documents": "my.jsonl"},
            r"^documents must be a list of Document\(.*\), got 'my.jsonl'\. A file or a",
        ),
        ({"on_step": 5}, r"^on_step must be a function of a step's StepMetrics, or None, got 5\.$"),
    ],
)
def test_an_argument_of_another_kind_is_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    chosen = config(tmp_path, tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        train(**({"config": chosen, "documents": documents()} | given))
    assert not (tmp_path / "run").exists(), "refused before anything is written"


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off_nothing_is_trained(tmp_path: Path, off: Callable[[], Any]) -> None:
    chosen, series = config(tmp_path, None), [[[1.0], [2.0]]]
    regressor = MambaRegressor(MambaConfig(d_model=8, n_layer=1, vocab_size=1), 1)
    with off():
        with pytest.raises(ValueError, match=r"^training was called where gradients are off"):
            run(chosen)
        with pytest.raises(ValueError, match=r"^training was called where gradients are off"):
            train_regressor(regressor, series, chosen.training, capacity=2)


def test_a_model_without_values(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^model is on meta and has no values\. Call to_empty"):
        run(config(tmp_path, None), model=MambaLM(SIZES).to("meta"))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda model: torch.compile(model, backend="eager"),
        lambda model: get_peft_model(model, LoraConfig(r=2, target_modules=["in_proj"])),
    ],
    ids=["torch.compile", "PEFT"],
)
def test_a_wrapped_model_is_trained(tmp_path: Path, wrapped: Callable[[MambaLM], torch.nn.Module]) -> None:
    chosen = config(tmp_path, None, training={"max_steps": 2})
    assert run(chosen, model=wrapped(MambaLM(SIZES))).steps == 2
