"""Whether a layer is what its class says, so that its weights may be read instead; and whether two weights are one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module


def why_not_plain(layer: nn.Module, kind: type[nn.Module]) -> str | None:
    """What keeps ``layer`` from being replaced by its weights, or None.

    An adapter (LoRA), a parametrisation and a quantised layer are other classes; a hook, a replaced ``forward`` and a
    sharded weight would all be passed by.
    """
    if type(layer) is not kind:
        return f"is a {type(layer).__name__}"
    # Written out: a training step comes here hundreds of times.
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return "has a hook"
    if (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    ):
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
