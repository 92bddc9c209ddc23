"""A stream's place in an epoch as a small dict that JSON can hold, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ._checks import as_int, shown
from ._stream_steps import Position, StreamCounts

KEYS = ("epoch", "document", "taken", "crc32", "load", "counts", "settings")
COUNTS = tuple(field.name for field in fields(StreamCounts))
REMEDY = "It does not come from a PackedStream: pass a batch's stream_state."


def start_of_epoch(world_size: int) -> Position:
    """The place before the first step."""
    return Position(0, 0, None, (0,) * world_size, StreamCounts())


def to_state(epoch: int, position: Position, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Ints, strings and None only, in dicts and lists."""
    return {
        "epoch": epoch,
        "document": position.document,
        "taken": position.taken,
        "crc32": position.crc32,
        "load": list(position.load),
        "counts": asdict(position.counts),
        "settings": dict(settings),
    }


def from_state(state: Any, settings: Mapping[str, Any]) -> tuple[int, Position]:
    """The epoch and the place in it.

    Raises:
        ValueError: no state of a stream, or one with other settings; the message names each that differs.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"state must be the stream_state of a Batch, got {shown(state)}.")
    if missing := [key for key in KEYS if key not in state]:
        raise ValueError(f"state has no {', '.join(missing)}. {REMEDY}")
    if not isinstance(state["settings"], Mapping):
        raise ValueError(f"state['settings'] must be a dict, got {shown(state['settings'])}. {REMEDY}")
    wrong = [
        f"{key} is {state['settings'].get(key)!r} in the state and {value!r} here"
        for key, value in settings.items()
        if state["settings"].get(key, _MISSING) != value
    ]
    if wrong:
        raise ValueError(
            f"state belongs to another run: {'; '.join(wrong)}. Build the stream with the state's settings and "
            f"documents, or start the epoch anew."
        )
    counts, load, crc32 = state["counts"], state["load"], state["crc32"]
    if not isinstance(counts, Mapping) or any(key not in counts for key in COUNTS):
        raise ValueError(f"state['counts'] must have {', '.join(COUNTS)}, got {shown(counts)}. {REMEDY}")
    if not isinstance(load, list | tuple) or len(load) != settings["world_size"]:
        raise ValueError(
            f"state['load'] must have {settings['world_size']} entries, one a rank, got {shown(load)}. {REMEDY}"
        )
    if crc32 is None and state["taken"]:
        raise ValueError(
            f"state['crc32'] is None, but {shown(state['taken'])} rows of a buffer were taken: which buffer that was "
            f"cannot be checked. {REMEDY}"
        )
    return _int(state, "epoch"), Position(
        document=_int(state, "document"),
        taken=_int(state, "taken"),
        crc32=None if crc32 is None else _int(state, "crc32"),
        load=tuple(as_int(each, "state['load']", minimum=0) for each in load),
        counts=StreamCounts(**{key: as_int(counts[key], f"state['counts'][{key!r}]", minimum=0) for key in COUNTS}),
    )


_MISSING = object()


def _int(state: Mapping[str, Any], key: str) -> int:
    return as_int(state[key], f"state[{key!r}]", minimum=0)
