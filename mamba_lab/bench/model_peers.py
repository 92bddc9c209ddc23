"""Other packages' Mamba models with our weights, as functions from ids [B, L] to logits [B, L, V]."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mamba_lab.models import MambaLM
from mamba_lab.models.layouts import to_huggingface

Peer = Callable[[Tensor], Tensor]


def transformers(model: MambaLM) -> Peer:
    """Hugging Face's ``MambaForCausalLM``, its path without kernels."""
    from transformers import MambaConfig, MambaForCausalLM

    peer = MambaForCausalLM(MambaConfig(**model.config.to_huggingface()))
    peer.load_state_dict({to_huggingface(name): value for name, value in model.state_dict().items()})
    peer.train()
    return lambda ids: peer(ids, use_cache=False).logits


def mambapy(model: MambaLM) -> Peer:
    """mambapy's ``Mamba`` with its parallel scan, between an embedding, its norm and an output layer as in its ``LM``.

    That class itself asks for a package that only its Mamba-2 needs.
    """
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    config = model.config
    sizes = {"d_state": config.d_state, "d_conv": config.d_conv, "expand_factor": config.expand}
    core = Mamba(MambaConfig(config.d_model, config.n_layer, dt_rank=config.rank, **sizes))
    norm = RMSNorm(config.d_model, config.norm_epsilon)
    backbone = model.backbone.state_dict()
    core.load_state_dict({name: value for name, value in backbone.items() if name.startswith("layers.")})
    norm.load_state_dict({"weight": backbone["norm_f.weight"]})
    embedding, head = (
        torch.nn.Parameter(weight.detach().clone())
        for weight in (model.backbone.embedding.weight, model.lm_head.weight)
    )
    return lambda ids: F.linear(norm(core(F.embedding(ids, embedding))), head)


PEERS: dict[str, Callable[[MambaLM], Peer]] = {"mambapy": mambapy, "transformers": transformers}
