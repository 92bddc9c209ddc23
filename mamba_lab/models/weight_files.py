"""Files of weights: safetensors or .bin, whole or in shards, in a folder or on the Hub. Nothing in them is executed."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mamba_lab.batching._checks import shown
from mamba_lab.corpus_files import is_hub_id
from mamba_lab.log import log_once

from .layouts import CONFIG, WEIGHTS

Fetch = Callable[[str], Path | None]


def source(path_or_id: str | os.PathLike[str], revision: str | None = None) -> Fetch:
    """How to get a checkpoint's files: a function from a file's name to its path, None where there is no such file.

    Raises:
        ValueError: neither a folder nor the form of a hub id, or a name such as "runs/1" where a folder "runs" is: what
            is missing there is not asked for on the Hub, where it could be anybody's.
    """
    folder = as_path(path_or_id, "path_or_hub_id")
    if folder.is_dir():
        return lambda name: folder / name if (folder / name).is_file() else None
    text = os.fspath(path_or_id)
    ours = is_hub_id(text) and folder.parent.is_dir()
    if folder.exists() or ours or not is_hub_id(text):
        why = f", though there is {str(folder.parent)!r}, so the Hub is not asked" if ours else ""
        raise ValueError(
            f"there is no folder {text!r}{why}. Give a folder with {CONFIG}, or a hub id such as 'owner/name'."
        )
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise ValueError(
            f"there is no folder {text!r}, and the Hub needs huggingface_hub: pip install 'mamba-lab[train]'."
        ) from None

    log_once(logging.INFO, f"there is no folder {text!r} here, so the Hub is asked for a model of this name")

    def fetch(name: str) -> Path | None:
        try:
            return Path(hf_hub_download(text, name, revision=revision))
        except (OSError, EntryNotFoundError) as error:  # the Hub's errors are OSErrors, or a file that is not there
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                return None  # the Hub answered, and has no such file; the local kind means that it did not answer
            raise ValueError(f"{text!r} is no folder here, and the Hub does not give {name}: {error}") from error

    return fetch


def as_path(value: str | os.PathLike[str], name: str) -> Path:
    """``value`` as a path.

    Raises:
        ValueError: neither a string nor a path, or an empty one, which would mean the working folder.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name} must be a path or a string with one, got {shown(value)}. For this folder write '.'.")
    return Path(text)


def read_config(fetch: Fetch) -> dict[str, Any]:
    """The content of ``config.json``.

    Raises:
        ValueError: there is none, or it is no JSON object.
    """
    path = fetch(CONFIG)
    if path is None:
        raise ValueError(f"the checkpoint has no {CONFIG}. Is this a checkpoint's folder?")
    return _json(path)


def read_weights(fetch: Fetch) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each file's name and its tensors by name, on the CPU, one file at a time.

    Raises:
        ValueError: no weights, a damaged file, or an index that names a file that is not there.
    """
    for name in WEIGHTS:
        path = fetch(name)
        if path is None:
            continue
        if name.endswith(".index.json"):
            for shard in _shards(path):
                part = fetch(shard)
                if part is None:
                    raise ValueError(f"{name} names {shard}, which is not there. Fetch the checkpoint again.")
                yield shard, read_file(part)
        else:
            yield name, read_file(path)
        return
    raise ValueError(f"the checkpoint has no weights: none of {', '.join(WEIGHTS)} is there.")


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors`` or ``.bin`` file, on the CPU. A pickle may hold tensors and nothing else.

    Raises:
        ValueError: the file is damaged, or holds something other than tensors by name.
    """
    found: Any
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError

        try:
            found = _safetensors().load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path.name} is damaged ({error}). Fetch or save the checkpoint again.") from error
    else:
        try:
            with open(path, "rb") as file:
                found = torch.load(file, map_location="cpu", weights_only=True)
        except PermissionError:
            raise
        # A file of a few bytes is an OSError to PyTorch.
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"{path.name} is damaged, or holds more than tensors, and is not unpickled ({first})."
            ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise ValueError(f"{path.name} must hold tensors by name. Save model.state_dict(), not the model.")
    for name, value in found.items():
        if value.is_meta or value.layout != torch.strided:
            kind = "on meta, without values" if value.is_meta else f"of layout {value.layout}"
            raise ValueError(f"{path.name}: {name} is {kind}. Save plain dense tensors.")
    return found


def write_checkpoint(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], file: str) -> None:
    """Write both files beside their places, then rename them: a reader never sees half a file.

    The old configuration is removed before the new weights take their place. A process that is killed in between leaves
    a folder that does not load, never one save's weights under another's configuration.

    Raises:
        ValueError: the folder has weights in another file, which a reader might take for these, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder: {str(folder)!r} cannot be made ({error}). Choose another place.") from error
    for other in WEIGHTS:
        if other != file and (folder / other).exists():
            raise ValueError(
                f"{folder.name} has {other} already, and a reader might take it for the new {file}. "
                f"Save into another folder, or remove it first."
            )
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in (file, CONFIG)}
    try:
        if file.endswith(".safetensors"):
            # The metadata is what transformers wants to see in a file of PyTorch's.
            _safetensors().save_file(weights, temporary[file], metadata={"format": "pt"})
        else:
            torch.save(weights, temporary[file])
        temporary[CONFIG].write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        # safetensors makes files for their owner alone; the configuration has the mode that the user's umask gives.
        temporary[file].chmod(temporary[CONFIG].stat().st_mode & 0o777)
        for path in temporary.values():
            with open(path, "rb") as written:
                os.fsync(written.fileno())
        (folder / CONFIG).unlink(missing_ok=True)
        for name, path in temporary.items():
            os.replace(path, folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ValueError("safetensors files need the package of that name: pip install 'mamba-lab[train]'.") from None
    return safetensors.torch


def _shards(index: Path) -> list[str]:
    weight_map = _json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f"{index.name} has no weight_map from parameters to files. Fetch the checkpoint again.")
    for name in weight_map.values():
        if Path(name).name != name or "\\" in name:
            raise ValueError(
                f"{index.name} names {name!r}: a shard lies beside its index. Do not load this checkpoint."
            )
    return sorted(set(weight_map.values()))


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is no JSON ({error}). Fetch or save the checkpoint again.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} must hold a JSON object, got {type(values).__name__}.")
    return values
