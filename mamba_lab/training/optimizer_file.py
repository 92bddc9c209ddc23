"""An optimiser's state under its parameters' names, so that a mismatch can be said in words."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .train_state import require_json

# How the step is computed, not what: these stay as they are here.
_HOW = ("foreach", "fused", "capturable", "differentiable")
_HIDDEN = ("params", "param_names", *_HOW)


def read_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What has to be saved: tensors by "parameter/key", and the rest as JSON holds it.

    Raises:
        ValueError: a parameter that the model does not have, or a value that no file holds.
    """
    names = _names(optimizer, model)
    packed = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    flat = [name for group in names for name in group]
    for index, entry in packed["state"].items():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"{flat[index]}/{key}"] = value
            else:
                values.setdefault(flat[index], {})[key] = value
    groups = [
        {key: _plain(value) for key, value in group.items() if key not in _HIDDEN} | {"params": its}
        for group, its in zip(packed["param_groups"], names, strict=True)
    ]
    rest = {"kind": type(optimizer).__name__, "groups": groups, "values": values}
    require_json(rest, "the optimiser's state")
    return tensors, rest


def fit_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor], rest: dict[str, Any]
) -> Callable[[], None]:
    """A function that sets the optimiser to what ``read_optimizer`` gave; whether it fits is checked here.

    Raises:
        ValueError: another kind of optimiser, other groups, other parameters; the message names them.
    """
    if rest["kind"] != type(optimizer).__name__:
        raise ValueError(f"the optimiser is {rest['kind']} in the checkpoint and {type(optimizer).__name__} here")
    names: list[list[str]] = _names(optimizer, model)
    saved: list[list[str]] = [group["params"] for group in rest["groups"]]
    here, there = list(chain.from_iterable(names)), list(chain.from_iterable(saved))
    if names != saved:
        odd = sorted(set(here) ^ set(there))
        what = f"{odd[0]} is only {'here' if odd[0] in here else 'in the checkpoint'}" if odd else "the groups differ"
        raise ValueError(f"the optimiser's parameters are not those of the checkpoint: {what}")
    numbers = {name: number for number, name in enumerate(here)}
    state: dict[int, dict[str, Any]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        state.setdefault(numbers[name], {})[key] = tensor
    for name, entry in rest["values"].items():
        state.setdefault(numbers[name], {}).update(entry)
    groups, start = [], 0
    for group, now in zip(rest["groups"], optimizer.param_groups, strict=True):
        kept = {key: now[key] for key in (*_HOW, "param_names") if key in now}
        its = {key: _like(now.get(key), value) for key, value in group.items() if key != "params"}
        stop = start + len(group["params"])
        groups.append(its | kept | {"params": list(range(start, stop))})
        start = stop

    def apply() -> None:
        # Copies: the file's tensors may be a view of it, and the checkpoint is removed one day.
        own = {
            number: {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}
            for number, entry in state.items()
        }
        optimizer.load_state_dict({"state": own, "param_groups": groups})

    return apply


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise ValueError(
                    f"the optimiser has a parameter of shape {list(parameter.shape)} that the model does not have. "
                    f"Build it from this model's parameters, after the model is on its device."
                )
    return [[known[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _like(now: Any, value: Any) -> Any:
    """``value`` in the form that the optimiser has it in: JSON has no tuples and no tensors."""
    if isinstance(now, Tensor):
        return torch.as_tensor(value, dtype=now.dtype, device=now.device)
    return tuple(value) if isinstance(now, tuple) else value
