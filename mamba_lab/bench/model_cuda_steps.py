"""What a model's bench on a GPU runs: rows of documents, MambaLM and mamba-ssm's model, and MambaLM's steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from mamba_lab.batching import Boundaries
from mamba_lab.bench.model_cuda_peers import padded_length
from mamba_lab.bench.operator_cases import published_pack
from mamba_lab.models import MambaConfig, MambaLM

Call: TypeAlias = "Callable[..., Any]"
"""A model, or its forward pass under autocast."""


@dataclass(frozen=True)
class Pack:
    """One row of documents: ids and targets [1, T], where the documents start, and the draw that their lengths are."""

    ids: Tensor
    targets: Tensor
    lengths: list[int]
    boundaries: Boundaries
    seed: int


Step: TypeAlias = "Callable[[Call, Pack], Tensor]"
"""Forward and backward; gives the summed loss back."""


def pack(tokens: int, vocab_size: int, device: str, seed: int = 0) -> Pack:
    """A row of published lengths that ``tokens`` fill, of random ids."""
    lengths = published_pack(tokens, seed=seed)
    ids = torch.randint(0, vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    targets = ids.roll(-1, 1)
    targets[0, torch.tensor(lengths).cumsum(0) - 1] = -100
    return Pack(ids.to(device), targets.to(device), lengths, Boundaries.from_lengths(lengths, device=device), seed)


def padded_positions(lengths: list[int]) -> int:
    """Positions of a batch with a row for each document, as ``padding`` of the peers makes it."""
    return len(lengths) * padded_length(lengths)


def expected_valid_ratio(tokens: int, draws: int) -> float:
    """Tokens over positions of padded batches of published lengths, both summed over the first ``draws`` draws."""
    positions = [padded_positions(published_pack(tokens, seed=seed)) for seed in range(draws)]
    return float(tokens / np.mean(positions))


def packed(model: Call, batch: Pack) -> Tensor:
    """MambaLM on the row, with its boundaries."""
    loss: Tensor = model(batch.ids, batch.boundaries, targets=batch.targets)[0]
    loss.backward()
    return loss


def one_sequence(model: Call, batch: Pack) -> Tensor:
    """MambaLM on the row as one document."""
    loss: Tensor = model(batch.ids, None, targets=batch.targets)[0]
    loss.backward()
    return loss


def under(model: nn.Module, precision: str, device: str) -> Call:
    """The model's forward pass as ``precision`` has it: under autocast, or as it is."""
    if precision != "autocast":
        return model

    def call(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return model(*arguments, **options)

    return call


def ours(config: MambaConfig, precision: str, device: str) -> nn.Module:
    """MambaLM with fresh weights on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = MambaLM(config)
    return narrowed(model) if precision == "bfloat16" else model


def peer(config: MambaConfig, precision: str, device: str) -> nn.Module:
    """mamba-ssm's model of the same sizes with fresh weights on the device."""
    from mamba_ssm.models.config_mamba import MambaConfig as PeerConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model: nn.Module = MambaLMHeadModel(PeerConfig(**config.to_mamba_ssm()), device=device, dtype=dtype)
    return model


def narrowed(model: nn.Module) -> nn.Module:
    """The model in bfloat16, as mamba-ssm makes one: A_log and D stay float32."""
    for name, value in model.named_parameters():
        if name.rpartition(".")[2] not in ("A_log", "D"):
            value.data = value.data.to(torch.bfloat16)
    return model
