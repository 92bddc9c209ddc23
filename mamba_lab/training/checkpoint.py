"""Checkpoints of a run: written whole or not at all, checked before anything of them is used.

    run/checkpoints/step-00000100/
        config.json  model.safetensors                what ``from_pretrained`` reads
        optimizer.safetensors                         tensors under their parameters' names
        trainer.json                                  place in the data, counters, schedule, random numbers
        train_config.json                             the run's settings
        manifest.json                                 sizes and SHA-256 of all these, written last

A step is written into a hidden folder beside its place, brought to the disk, and renamed. So whatever stops the
process, the folders called ``step-...`` are whole: the one before, or this one.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

import mamba_lab
from mamba_lab.models import MambaLM
from mamba_lab.models.checkpoint import _weights_to_save
from mamba_lab.models.layouts import CONFIG, HEAD, SAFETENSORS, from_huggingface, to_huggingface
from mamba_lab.models.weight_files import read_file, write_checkpoint

from .checkpoint_folders import discard, folder_name, publish, remove_old, scan, set_up, sync_folder
from .manifest import MANIFEST, CheckpointError, NewerFormatError, read_manifest, verify, write_manifest, write_text
from .optimizer_file import fit_optimizer, read_optimizer
from .rng import read_rng_state, rng_state
from .same_config import require_same_config
from .train_state import TrainState, require_json

if TYPE_CHECKING:
    from .config import TrainConfig

__all__ = [
    "CheckpointError",
    "NewerFormatError",
    "TrainState",
    "find_checkpoint",
    "latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]

log = logging.getLogger("mamba_lab")

OPTIMIZER, TRAINER, TRAIN_CONFIG = "optimizer.safetensors", "trainer.json", "train_config.json"


def save_checkpoint(
    folder: str | os.PathLike[str],
    *,
    model: MambaLM,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    state: TrainState,
    config: TrainConfig,
    keep: int | None = 3,
) -> Path:
    """Write ``folder/checkpoints/step-00000123``; then the oldest beyond ``keep`` are removed.

    Killed or failed at any moment, the checkpoints that were there are there. A step that is there already is replaced.

    Args:
        folder: the run's.
        model: may be wrapped by ``torch.compile``.
        optimizer: of this model's parameters.
        scheduler: has ``state_dict``, of what JSON holds.
        state: where the run stands; its step names the checkpoint.
        config: the run's settings.
        keep: how many checkpoints stay, this one among them; None: all.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: it cannot be written (disk full, no permission); the message names the file.
        ValueError: something in it that no file holds, such as a model with adapters or a tuple in ``state``.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1, or None for all, got {keep}.")
    own = _plain_model(model)
    weights, (tensors, groups), schedule = _weights(own), read_optimizer(optimizer, own), scheduler.state_dict()
    require_json(schedule, "the schedule's state")
    values = {"state": state.to_dict(), "optimizer": groups, "scheduler": schedule, "rng": rng_state()}
    steps: dict[str, Callable[[Path], None]] = {
        SAFETENSORS: lambda path: write_checkpoint(path.parent, _model_config(own), weights, SAFETENSORS),
        OPTIMIZER: lambda path: _write_tensors(path, tensors),
        TRAINER: lambda path: write_text(path, json.dumps(values)),
        TRAIN_CONFIG: lambda path: write_text(path, json.dumps(config.model_dump(mode="json"), indent=1)),
        MANIFEST: lambda path: write_manifest(
            path.parent, state.step, (CONFIG, SAFETENSORS, OPTIMIZER, TRAINER, TRAIN_CONFIG), _made_by()
        ),
    }
    root = Path(folder) / "checkpoints"
    final = root / folder_name(state.step)
    work, name = None, ""
    try:
        work = set_up(root, final)
        for name, write in steps.items():
            write(work / name)
        name = ""
        sync_folder(work)
        publish(work, final)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(
            f"{final / name} cannot be written ({reason}). The checkpoints before it are as they were. Make room or "
            f"give access in {root}; fewer stay with a smaller training.save_total_limit."
        ) from error
    finally:
        if work is not None:
            discard(work)
    remove_old(root, keep, final)
    return final


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: MambaLM,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    config: TrainConfig,
    verified: bool = False,
) -> TrainState:
    """Set model, optimiser, schedule and random numbers to what ``save_checkpoint`` wrote.

    All is read and compared first: after an error nothing has changed.

    Args:
        path: the checkpoint's folder.
        model, optimizer, scheduler: built as for a new run, the model on its device.
        config: this run's settings. Only those may differ that leave the results alone, and those that a run may be
            continued with, such as ``max_steps``.
        verified: ``latest_checkpoint`` or ``find_checkpoint`` has just read every byte, so it is not done twice.

    Returns:
        Where the run stood.

    Raises:
        CheckpointError: damaged, another run's, or another model's; the message names the mismatch.
    """
    folder, own = Path(path), _plain_model(model)
    made_by = (read_manifest(folder) if verified else verify(folder))["made_by"]
    try:
        values = json.loads((folder / TRAINER).read_text(encoding="utf-8"))
        require_same_config(json.loads((folder / TRAIN_CONFIG).read_text(encoding="utf-8")), config, folder)
        _require_same_model(json.loads((folder / CONFIG).read_text(encoding="utf-8")), _model_config(own))
        set_model = _fit_model(own, read_file(folder / SAFETENSORS))
        set_optimizer = fit_optimizer(optimizer, own, read_file(folder / OPTIMIZER), values["optimizer"])
        if set(values["scheduler"]) != set(scheduler.state_dict()):
            raise ValueError(f"the schedule has {', '.join(values['scheduler'])} in the checkpoint: it is another kind")
        set_random = read_rng_state(values["rng"])
        state = TrainState.from_dict(values["state"])
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__} {error}" if isinstance(error, KeyError | TypeError) else error
        raise CheckpointError(f"{folder} does not fit this run: {what}") from error
    here = _made_by()
    if other := [f"{key} {made_by.get(key)}, now {value}" for key, value in here.items() if made_by.get(key) != value]:
        log.warning("%s was written with %s: the last bits of what follows may differ", folder.name, "; ".join(other))
    set_model()
    set_optimizer()
    scheduler.load_state_dict(values["scheduler"])
    set_random()
    return state


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint of a run that is whole, every byte of it read. None where there is none.

    Broken ones are passed over, with a warning that names them.

    Raises:
        NewerFormatError: the newest one was written by a later version: an older one in its place would lose steps.
    """
    whole, broken = scan(Path(folder) / "checkpoints")
    for _, reason in broken:
        log.warning("passed over: %s", reason)
    return whole


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that ``path`` names: itself, or the newest of a run's folder. Every byte of it has been read.

    Raises:
        CheckpointError: there is none, or the one that is named is damaged.
    """
    folder = Path(path)
    if (folder / "checkpoints").is_dir() and not (folder / MANIFEST).exists():
        if (found := latest_checkpoint(folder)) is None:
            raise CheckpointError(f"{folder} has no whole checkpoint. Give another run's folder, or a checkpoint's.")
        return found
    verify(folder)
    return folder


def _plain_model(model: Any) -> MambaLM:
    own = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if not isinstance(own, MambaLM):
        raise ValueError(f"model must be a MambaLM, got {type(own).__name__}.")
    return own


def _model_config(model: MambaLM) -> dict[str, Any]:
    """Hugging Face's layout, so that its library opens the checkpoint too; LayerNorm has none there."""
    config = model.config
    values = config.to_huggingface() if config.rms_norm else config.to_dict()
    return dict(json.loads(json.dumps(values)))


def _weights(model: MambaLM) -> dict[str, Tensor]:
    weights = _weights_to_save(model)
    if model.config.tie_embeddings:
        del weights[HEAD]
    return _apart({to_huggingface(name) if model.config.rms_norm else name: each for name, each in weights.items()})


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(_apart(tensors), path)
    # safetensors makes files for their owner alone; the folder has the mode that the user's umask gives.
    path.chmod(path.parent.stat().st_mode & 0o666)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in memory of their own, on the CPU: safetensors refuses what two names share."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        apart[name] = own.clone() if place in seen else own
        seen.add(place)
    return apart


def _require_same_model(there: dict[str, Any], here: dict[str, Any]) -> None:
    if wrong := [
        f"{key} is {there.get(key)!r} in the checkpoint and {here.get(key)!r} here"
        for key in sorted(set(there) | set(here))
        if there.get(key) != here.get(key)
    ]:
        raise ValueError(f"the model is another one: {'; '.join(wrong)}. Was the tokenizer changed?")


def _fit_model(model: MambaLM, tensors: dict[str, Tensor]) -> Callable[[], None]:
    read = {from_huggingface(name): tensor for name, tensor in tensors.items()} if model.config.rms_norm else tensors
    own = dict(model.named_parameters(remove_duplicate=False))
    if model.config.tie_embeddings:
        own.pop(HEAD)
    if odd := sorted(set(read) ^ set(own)):
        where = "the checkpoint" if odd[0] in read else "the model"
        raise ValueError(f"the weights are not the model's: only {where} has {odd[0]}")
    for name, tensor in read.items():
        for what, there, here in (
            ("shape", list(tensor.shape), list(own[name].shape)),
            ("dtype", tensor.dtype, own[name].dtype),
        ):
            if there != here:
                raise ValueError(f"{name} has {what} {there} in the checkpoint and {here} in the model")

    @torch.no_grad()
    def apply() -> None:
        for name, tensor in read.items():
            own[name].copy_(tensor)

    return apply


def _made_by() -> dict[str, Any]:
    """What the last bits of a result depend on."""
    return {
        "mamba_lab": mamba_lab.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
