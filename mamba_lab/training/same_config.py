"""May a run go on under these settings? Compared, setting by setting, with those that its checkpoint has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .manifest import CheckpointError

if TYPE_CHECKING:
    from .config import TrainConfig

log = logging.getLogger("mamba_lab")

# No result depends on these.
_FREE = (
    "logging.",
    "packing.workers",
    "packing.prefetch",
    "training.output_dir",
    "training.eval_steps",
    "training.save_steps",
    "training.save_total_limit",
    "training.on_nonfinite",
)
# A run may go on with another of these, but it is not the run that it would have been, so it is said.
_SAID = (
    "training.num_train_epochs",
    "training.max_steps",
    "training.device",
    "training.torch_compile",
    "training.deterministic",
    "training.gradient_checkpointing",
    "model.backend",
)


def require_same_config(saved: Mapping[str, Any], config: TrainConfig, checkpoint: Path) -> None:
    """Compare this run's settings with a checkpoint's.

    A setting that the checkpoint's version did not have yet must have its default here.

    Raises:
        CheckpointError: settings differ that the results depend on; the message has both values of each.
    """
    there, here = dict(_flat(saved)), dict(_flat(config.model_dump(mode="json")))
    default = dict(_flat(type(config)().model_dump(mode="json")))
    said: list[str] = []
    wrong: list[str] = []
    for key in sorted(there.keys() | here.keys()):
        before, now = there.get(key, default.get(key)), here.get(key)
        if before == now or key.startswith(_FREE):
            continue
        (said if key in _SAID else wrong).append(f"{key} is {before!r} in the checkpoint and {now!r} here")
    if wrong:
        raise CheckpointError(
            f"{checkpoint} belongs to a run with other settings: {'; '.join(wrong)}. Go on with the checkpoint's, or "
            f"start a new run from its weights: model.from_pretrained = {str(checkpoint)!r}, and another output_dir."
        )
    if said:
        log.warning("%s goes on with other settings: %s", checkpoint.name, "; ".join(said))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
