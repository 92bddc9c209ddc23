"""TrainState: where a run stands between two steps, as numbers that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mamba_lab.batching._checks import as_int, shown


@dataclass
class TrainState:
    """Everything that later steps depend on, beside model, optimiser, schedule and random numbers.

    Attributes:
        step: optimiser steps that are done; 0 before the first.
        epoch: the epoch that goes on, from 0.
        stream_state: the ``stream_state`` of the last batch that was *used*; None where no batch was.
        counters: what was added up so far, such as tokens, targets, skipped and seconds.
        watch: what the watch remembers, such as the gradient norms of its running median.
        validation: (step, loss) of every validation so far.

    Only None, bools, ints, floats, strings, lists, and dicts with string keys may stand in it: these come back from a
    file as they were, floats to the bit.
    """

    step: int = 0
    epoch: int = 0
    stream_state: Any = None
    counters: dict[str, int | float] = field(default_factory=dict)
    watch: dict[str, Any] = field(default_factory=dict)
    validation: list[tuple[int, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, checked.

        Raises:
            ValueError: something that JSON would not give back as it is; the message names the place.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["validation"] = [list(pair) for pair in self.validation]
        require_json(values, "state")
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """From what ``to_dict`` gave.

        Raises:
            ValueError: another set of fields, or a step or an epoch that is no count.
        """
        wanted = {each.name for each in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != wanted:
            raise ValueError(f"state must have {', '.join(sorted(wanted))}, got {shown(values)}.")
        state = cls(**values)
        state.step, state.epoch = as_int(state.step, "step", minimum=0), as_int(state.epoch, "epoch", minimum=0)
        state.validation = [(step, loss) for step, loss in state.validation]
        return state


def require_json(value: object, name: str) -> None:
    """Refuse what does not come back from JSON as it was: tuples, arrays, tensors, keys that are numbers.

    Raises:
        ValueError: naming the place.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str:
                raise ValueError(f"{name} has the key {shown(key)}, expected strings only. Write str(key).")
            require_json(each, f"{name}[{key!r}]")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            require_json(each, f"{name}[{place}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise ValueError(
            f"{name} is {shown(value)}, a {type(value).__name__}, which does not come back from a file as it was. "
            f"Use None, bool, int, float, str, lists, and dicts."
        )
