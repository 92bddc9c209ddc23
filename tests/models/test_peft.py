"""LoRA by PEFT itself on the four projections of a block: it is called, it learns, and merging it changes nothing."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from mamba_lab.models import MambaConfig, MambaLM

PROJECTIONS = ("in_proj", "x_proj", "dt_proj", "out_proj")
BOUNDARIES = torch.tensor([0, 5, 12], dtype=torch.int32)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids, targets = torch.randint(0, 32, (2, 1, 12), generator=draw).unbind()
    return ids, targets


def adapted() -> torch.nn.Module:
    torch.manual_seed(0)
    model = MambaLM(MambaConfig(d_model=16, n_layer=2, vocab_size=32))
    return get_peft_model(model, LoraConfig(r=2, target_modules=list(PROJECTIONS)))


def test_every_adapter_learns_and_nothing_else(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = adapted()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss, weight = model(batch[0], BOUNDARIES, targets=batch[1])
        (loss / weight).backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    adapters = {name for name in before if "lora_" in name}
    assert moved == adapters
    assert {name.split(".")[6] for name in adapters} == set(PROJECTIONS)


def test_a_merged_adapter_gives_the_same_logits(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = adapted()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)
        with_adapter = model(batch[0], BOUNDARIES)
        merged = model.merge_and_unload()
        assert isinstance(merged, MambaLM)
        torch.testing.assert_close(merged(batch[0], BOUNDARIES), with_adapter, rtol=1e-4, atol=1e-5)
