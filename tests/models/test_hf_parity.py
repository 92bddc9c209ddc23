"""The same weights in transformers' MambaForCausalLM: the same logits and the same gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from mamba_lab.models import MambaConfig, MambaLM

transformers = pytest.importorskip("transformers")

CONFIG = MambaConfig(d_model=32, n_layer=2, vocab_size=50, d_state=8)


def close(found: torch.Tensor, wanted: torch.Tensor, name: str) -> None:
    """Within 1e-5 of the largest entry."""
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item(), msg=name)


@pytest.mark.parametrize("change", [{}, {"bias": True, "conv_bias": False, "d_conv": 3, "tie_embeddings": False}])
def test_logits_and_gradients(change: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = MambaLM(MambaConfig(**(CONFIG.to_dict() | change)))
    # Away from the start, where residuals and biases are small.
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours.save_pretrained(tmp_path, format="huggingface")
    theirs = transformers.MambaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).train()
    there = dict(theirs.named_parameters())
    for length in (1, 3, 23):
        ids = torch.randint(0, 50, (1, length), generator=torch.Generator().manual_seed(length))
        targets = ids.roll(-1, 1)
        logits = theirs(ids).logits
        close(ours(ids), logits[..., :50], "logits")
        ours.zero_grad()
        theirs.zero_grad()
        ours(ids, targets=targets)[0].backward()
        F.cross_entropy(logits[0, :, :50], targets[0], reduction="sum").backward()
        for name, parameter in ours.named_parameters():
            grad = there[name.replace("embedding.", "embeddings.")].grad
            close(parameter.grad, torch.zeros_like(parameter) if grad is None else grad, name)


def test_their_checkpoint_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=61, hidden_size=24, state_size=4, num_hidden_layers=2, expand=3)
    theirs = transformers.MambaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = MambaLM.from_pretrained(tmp_path)
    ids = torch.arange(19)[None] * 3
    with torch.no_grad():
        close(ours(ids), theirs(ids).logits, "logits")


def test_their_greedy_text_is_ours(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ours = MambaLM(CONFIG)
    ours.save_pretrained(tmp_path, format="huggingface")
    theirs = transformers.MambaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    text = theirs.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours.generate(ids, 12, temperature=0) == text[:, 5:].tolist()
