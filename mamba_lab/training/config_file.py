"""A run's settings as TOML: read with overrides, and written out in full."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mamba_lab.paths import configs_dir

from .config import SECTIONS, TrainConfig
from .config_errors import ConfigError, accepts, printable, shown, unknown_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["dump", "merged", "parse_override", "read"]

Values = dict[str, Any]
_NAME_SHOWN = 200  # characters of a file's name in a message
UNSET = "none"  # as a value of an override: TOML has no word for it


def read(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings in the file ``path``, changed by ``overrides``, each ``section.key=value``.

    The name of an example run, such as ``pretrain-docs``, stands for its file.

    A value is written as in the file; text needs no quotes, and ``none`` takes a key back to its default.

    Raises:
        ConfigError: no such file, no TOML, an unknown key, a value or a combination that cannot be.
    """
    values = _tables(path)
    changes: dict[str, Values] = {}
    for text in overrides:
        section, key, value = parse_override(text)
        changes.setdefault(section, {})[key] = value
    try:
        return TrainConfig(**merged(values, changes))
    except ConfigError as error:
        given = {f"{section}.{key}" for section, keys in changes.items() for key in keys}
        own = _problems(values) if changes else error.problems
        raise ConfigError(
            [
                f"--set {line}"
                if line.split(maxsplit=1)[0] in given
                else f"{_name(path)}{' with --set' * (line not in own)}: {line}"
                for line in error.problems
            ]
        ) from None


def parse_override(text: str) -> tuple[str, str, Any]:
    """``section.key=value`` as its three parts. A value of None stands for ``none``.

    Raises:
        ConfigError: another form, or no such key.
    """
    name, equals, written = (part.strip() for part in text.partition("="))
    section, dot, key = name.partition(".")
    if not equals or not name or (section in SECTIONS and not key):
        raise ConfigError([f"--set {shown(text)}: expected section.key=value, such as training.learning_rate=1e-4."])
    if not dot or section not in SECTIONS:
        raise ConfigError([f"--set {unknown_key('', section, {})}"])
    fields = SECTIONS[section].model_fields
    if key not in fields:
        raise ConfigError([f"--set {unknown_key(section, key, fields)}"])
    if written.lower() == UNSET:
        return section, key, None
    value = _value(written)
    is_text = accepts(fields[key], str) or accepts(fields[key], Path)
    return section, key, written if is_text and not isinstance(value, str) else value


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """The tables ``values`` with those keys changed that ``changes`` has; None takes a key out."""
    result = dict(values)
    for section, keys in changes.items():
        there = result.get(section, {})
        if isinstance(keys, Mapping) and isinstance(there, Mapping):
            both = {**there, **keys}
            result[section] = {key: value for key, value in both.items() if value is not None}
        elif not isinstance(keys, Mapping):
            result[section] = keys
    return result


def dump(config: TrainConfig) -> str:
    """Every setting as TOML. What is None is left out, and so are the sizes that a pretrained model brings itself."""
    lines: list[str] = []
    for section in SECTIONS:
        values = getattr(config, section).model_dump(mode="json", exclude_none=True)
        if section == "model" and config.model.from_pretrained is not None:
            values = {key: values[key] for key in ("from_pretrained", "backend")}
        lines += [f"[{section}]", *(f"{key} = {_written(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _tables(path: str | os.PathLike[str]) -> Values:
    """The file's content.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    name, file = _name(path), Path(path)
    examples = {example.stem: example for example in sorted(configs_dir().glob("*.toml"))}
    try:
        data = (examples[name] if name in examples and not file.exists() else file).read_bytes()
    except FileNotFoundError:
        raise ConfigError([f"there is no such file. The package has {', '.join(examples)}."], name) from None
    except IsADirectoryError:
        inside = [f" Did you mean {file / 'config.toml'}?"] * (file / "config.toml").is_file()
        raise ConfigError(["this is a folder, expected a TOML file." + "".join(inside)], name) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"cannot be read: {why}."], name) from None
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"line {line} has the byte {data[error.start]:#04x}, which is no UTF-8. Save the file as UTF-8."], name
        ) from None
    except (ValueError, RecursionError) as error:  # tomllib's own errors are ValueErrors that name line and column
        raise ConfigError([f"no TOML: {error}."], name) from None


def _name(path: str | os.PathLike[str]) -> str:
    name = printable(os.fspath(path))
    return name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}..."


def _problems(values: Values) -> list[str]:
    try:
        TrainConfig(**values)
    except ConfigError as error:
        return error.problems
    return []


def _value(written: str) -> Any:
    """A value as in a file; what is none there is text."""
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):
        return written
    return parsed["value"] if len(parsed) == 1 else written


def _written(value: object) -> str:
    if isinstance(value, str):  # JSON's escapes are TOML's, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
