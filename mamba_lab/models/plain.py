"""Whether a layer is what its class says, so that its weights may be read instead; and whether two weights are one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(name.replace("_", "_global_", 1) for name in _HOOKS)


def why_not_plain(layer: nn.Module, kind: type[nn.Module]) -> str | None:
    """What keeps ``layer`` from being replaced by its weights, or None.

    An adapter (LoRA), a parametrisation and a quantised layer are other classes; a hook, a replaced ``forward`` and a
    sharded weight would all be passed by.
    """
    if type(layer) is not kind:
        return f"is a {type(layer).__name__}"
    if any(getattr(layer, hooks) for hooks in _HOOKS):
        return "has a hook"
    if any(getattr(torch_module, hooks) for hooks in _GLOBAL_HOOKS):
        return "has a global hook"
    if "forward" in vars(layer):
        return "has a replaced forward"
    for name, weight in layer._parameters.items():
        if weight is not None and type(weight) not in (nn.Parameter, torch.Tensor):
            return f"has a {name} that is a {type(weight).__name__}"
    return None


def same_values(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of one shape hold the same numbers; NaN equals NaN, and what has no values equals nothing."""
    if one.is_meta or two.is_meta or one.device != two.device or one.dtype != two.dtype:
        return False
    return one.data_ptr() == two.data_ptr() or torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)
