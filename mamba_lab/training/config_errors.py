"""One line for each mistake in a configuration: the key, its value, what was expected, the nearest right name."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

__all__ = ["ConfigError", "Problem", "accepts", "expected", "printable", "problems_of", "shown", "unknown_key"]

_SHOWN = 60  # characters of a value in a message

# What people write elsewhere, and where it stands here.
_ELSEWHERE = {
    "accumulation": "training.gradient_accumulation_steps",
    "adam_eps": "training.adam_epsilon",
    "amp": "training.bf16",
    "batch_size": "packing.rows",
    "betas": "training.adam_beta1 and training.adam_beta2",
    "block_size": "packing.capacity",
    "bfloat16": "training.bf16",
    "clip": "training.max_grad_norm",
    "compile": "training.torch_compile",
    "context_length": "packing.capacity",
    "dataset": "data.corpus",
    "epochs": "training.num_train_epochs",
    "eps": "training.adam_epsilon",
    "eval_interval": "training.eval_steps",
    "file": "data.corpus",
    "fp16": "training.bf16 (float16 overflows where bfloat16 does not)",
    "gpu": "training.device",
    "grad_clip": "training.max_grad_norm",
    "gradient_clipping": "training.max_grad_norm",
    "hidden_size": "model.d_model",
    "log_interval": "logging.logging_steps",
    "loss_weighting": "loss.weighting",
    "lr": "training.learning_rate",
    "lr_scheduler": "training.lr_scheduler_type",
    "max_length": "data.max_seq_len, or packing.capacity for a row's length",
    "max_norm": "training.max_grad_norm",
    "min_length": "data.min_seq_len",
    "mixed_precision": "training.bf16",
    "model_name_or_path": "model.from_pretrained",
    "n_epochs": "training.num_train_epochs",
    "name": "logging.run_name",
    "num_epochs": "training.num_train_epochs",
    "num_hidden_layers": "model.n_layer",
    "num_layers": "model.n_layer",
    "out_dir": "training.output_dir",
    "output": "training.output_dir",
    "pack": "packing.scheme",
    "path": "data.corpus",
    "per_device_train_batch_size": "packing.rows",
    "save_interval": "training.save_steps",
    "scheduler": "training.lr_scheduler_type",
    "seq_len": "packing.capacity",
    "seq_length": "packing.capacity",
    "state_size": "model.d_state",
    "steps": "training.max_steps",
    "train_batch_size": "packing.rows",
    "val_share": "data.validation_share",
    "validation": "data.validation_share",
    "warmup": "training.warmup_steps or training.warmup_ratio",
}


class Problem(ValueError):
    """A combination that cannot be, raised by a section's own check.

    Attributes:
        key: the key that is wrong, as ``section.key``.
        text: what is wrong with it, to follow the key.
    """

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key} {text}")
        self.key, self.text = key, text


class ConfigError(ValueError):
    """A configuration that cannot be: one line a mistake.

    Attributes:
        problems: the lines, each beginning with its key (``section.key``).
        source: the file, None where the values come from Python.
    """

    def __init__(self, problems: Iterable[str], source: str | Path | None = None) -> None:
        self.problems, self.source = list(problems), source
        before = "" if source is None else f"{source}: "
        super().__init__("\n".join(before + line for line in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str], str | Path | None]]:
        return type(self), (self.problems, self.source)


def problems_of(error: ValidationError, section: str, fields: Mapping[str, FieldInfo]) -> list[str]:
    """What pydantic found in ``section``, as lines. One line a key, in the order of the input."""
    lines: dict[str, str] = {}
    for found in error.errors(include_url=False):
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):  # from a section that was given as a table
            lines |= {line: line for line in cause.problems}
            continue
        if isinstance(cause, Problem):
            lines[cause.key] = str(cause)
            continue
        name = str(found["loc"][0]) if found["loc"] else ""
        key = _key(section, name)
        if found["type"] == "extra_forbidden":
            lines[key] = unknown_key(section, name, fields)
        elif name in fields:
            why = f"{cause}" if cause is not None else f"expected {expected(fields[name])}"
            lines[key] = f"{key} is {shown(found['input'])}: {why}."
        else:
            lines[key] = f"{key}: {cause or found['msg']}."
    return list(lines.values())


def unknown_key(section: str, name: str, fields: Mapping[str, FieldInfo]) -> str:
    """The line for a key that does not exist, with the nearest one that does."""
    from .config import SECTIONS

    key = _key(section, name)
    if not section:
        if homes := [f"{there}.{name}" for there, kind in SECTIONS.items() if name in kind.model_fields]:
            return f"{key} stands outside the sections. Say {' or '.join(homes)}."
        near = difflib.get_close_matches(name.lower(), SECTIONS, 1, 0.6)
        return f"{key} is no section. {_hint(near, name) or 'There are ' + ', '.join(SECTIONS) + '.'}"
    start = f"{key} is no key of [{section}]."
    if homes := [f"{there}.{name}" for there, kind in SECTIONS.items() if name in kind.model_fields]:
        return f"{start} Did you mean {' or '.join(homes)}?"
    if name.lower() in _ELSEWHERE:
        return f"{start} Did you mean {_ELSEWHERE[name.lower()]}?"
    word = name.lower().replace("-", "_")
    near = [f"{section}.{hit}" for hit in difflib.get_close_matches(word, fields, 1, 0.6)]
    if not near:
        everywhere = {other: there for there, kind in SECTIONS.items() for other in kind.model_fields}
        near = [f"{everywhere[hit]}.{hit}" for hit in difflib.get_close_matches(word, everywhere, 1, 0.7)]
    return f"{start} {_hint(near, name) or 'Its keys are ' + ', '.join(fields) + '.'}"


def _key(section: str, name: str) -> str:
    name = printable(name)[:_SHOWN] or '""'
    return f"{section}.{name}" if section else name


def _hint(near: list[str], name: str) -> str:
    return f"Did you mean {near[0]}?" if near else (f"Did you mean {_ELSEWHERE[name]}?" if name in _ELSEWHERE else "")


def expected(field: FieldInfo) -> str:
    """What a field takes, in words: "a whole number, 1 or more"."""
    return _words(field.annotation, field.metadata)


def accepts(field: FieldInfo, kind: Any) -> bool:
    """Whether a value of ``kind``, such as ``str`` or ``None``, is among what a field takes."""
    return (type(None) if kind is None else kind) in _kinds(field.annotation)


def _kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [annotation]


def _words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(args[0], [*metadata, *args[1:]])
    if origin in (Union, types.UnionType):
        parts = [_words(part, metadata) for part in args if part is not type(None)]
        return (", or " if len(parts) > 1 and "," in parts[0] else " or ").join(parts)
    if origin is Literal:
        return ("one of " if len(args) > 2 else "") + (", " if len(args) > 2 else " or ").join(map(shown, args))
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        return f"{'a whole number' if annotation is int else 'a number'}{_range(metadata)}"
    if annotation is Path:
        return 'a folder in quotes, such as "runs/first"'
    if annotation is str:
        return "text in quotes"
    return "a table of keys"


def _range(metadata: Iterable[Any]) -> str:
    """What follows "a number": ", 1 or more", " above 0", " from 0 to 1"."""
    bounds = {type(bound): bound for bound in metadata}
    low, high, above, below = bounds.get(Ge), bounds.get(Le), bounds.get(Gt), bounds.get(Lt)
    if above is not None:
        return f" above {above.gt}"
    if below is not None:
        return f" from {low.ge} to below {below.lt}" if low is not None else f" below {below.lt}"
    if low is not None and high is not None:
        return f" from {low.ge} to {high.le}"
    return f", {low.ge} or more" if low is not None else ""


def shown(value: object) -> str:
    """A value as TOML would have it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = printable(f'"{value}"' if isinstance(value, str | Path) else repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def printable(text: str) -> str:
    """``text`` in one line: what is no sign on paper, such as a line's end, as Python writes it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
