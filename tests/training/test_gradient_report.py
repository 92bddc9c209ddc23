"""A layer that vanishes, explodes or gets no gradient is named; a healthy model has nothing to name."""

from __future__ import annotations

import json
import math

import pytest
import torch
from loop_help import pack, small_model, some_sequences

from mamba_lab.training.gradient_report import gradient_report, layer_of
from mamba_lab.training.step import backward


def a_model(**sizes: int) -> torch.nn.Module:
    model = small_model(**({"n_layer": 4} | sizes))
    backward(model, [pack(some_sequences([4, 2, 3, 7]))])
    return model


def test_a_healthy_model() -> None:
    model = a_model()
    report = gradient_report(model)
    assert report.healthy
    assert [layer.name for layer in report.layers] == ["embedding", *(f"layers.{n}" for n in range(4)), "norm_f"]
    block = model.backbone.layers[2]
    gradient = torch.cat([p.grad.flatten() for p in block.parameters()])
    weights = torch.cat([p.detach().flatten() for p in block.parameters()])
    assert report.layers[3].norm == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert report.layers[3].rms == pytest.approx(gradient.square().mean().sqrt().item(), rel=1e-5)
    assert report.layers[3].weight_norm == pytest.approx(weights.norm().item(), rel=1e-5)
    assert len(str(report).splitlines()) == 6


@pytest.mark.parametrize(
    ("factor", "where"), [(1e-5, "vanishing"), (1e5, "exploding"), (math.nan, "exploding"), (math.inf, "exploding")]
)
def test_a_layer_that_stands_out(factor: float, where: str) -> None:
    model = a_model()
    for p in model.backbone.layers[1].parameters():
        p.grad *= factor
    report = gradient_report(model)
    assert not report.healthy
    expected = {"vanishing": [], "exploding": []} | {where: ["layers.1"]}
    assert {"vanishing": report.vanishing, "exploding": report.exploding} == expected
    assert not report.missing
    assert f"{where}: layers.1" in str(report)
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (values["layers"][2]["norm"] is None) == (not math.isfinite(factor))


def test_what_has_no_gradient_is_missing_and_what_is_frozen_is_not() -> None:
    model = a_model()
    model.backbone.layers[0].mixer.D.grad = None
    model.backbone.layers[3].mixer.x_proj.weight.grad.zero_()
    model.backbone.layers[2].mixer.A_log.requires_grad_(False)
    model.backbone.layers[2].mixer.A_log.grad = None
    report = gradient_report(model)
    assert report.missing == ["backbone.layers.0.mixer.D", "backbone.layers.3.mixer.x_proj.weight"]
    assert "missing: backbone.layers.0.mixer.D" in str(report)


def test_without_a_backward_everything_is_missing() -> None:
    report = gradient_report(small_model(n_layer=1))
    assert len(report.missing) == 12
    assert not report.vanishing
    assert not report.exploding
    assert "and 4 more" in str(report)


def test_nothing_trained_is_an_empty_report() -> None:
    report = gradient_report(small_model(n_layer=1).requires_grad_(False))
    assert report.healthy
    assert report.layers == []
    assert str(report) == ""


def test_names_of_layers() -> None:
    assert layer_of("backbone.layers.13.mixer.dt_proj.bias") == "layers.13"
    assert layer_of("backbone.embedding.weight") == "embedding"
    assert layer_of("lm_head.weight") == "lm_head"
    compiled = torch.compile(a_model(), backend="eager")
    assert [layer.name for layer in gradient_report(compiled).layers][:2] == ["embedding", "layers.0"]
    assert gradient_report(torch.compile(small_model(), backend="eager")).missing[0] == "backbone.embedding.weight"
