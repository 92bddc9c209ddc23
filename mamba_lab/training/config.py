"""What a training run is told: six sections of settings, checked when they are made.

    config = TrainConfig(data={"corpus": "docs"}, training={"learning_rate": 1e-3, "max_steps": 100})
    config = TrainConfig.from_toml("configs/pretrain-docs.toml", overrides=["training.max_steps=100"])

A file has the same sections and keys. Names are those of the field: of Hugging Face's ``TrainingArguments`` where it
has one, of mamba-ssm for the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import model_validator

from .config_errors import ConfigError, Problem
from .config_model import ModelConfig
from .config_sections import SCHEMES, DataConfig, LoggingConfig, LossConfig, PackingConfig, TrainingConfig
from .config_types import Section

__all__ = [
    "SCHEMES",
    "SECTIONS",
    "ConfigError",
    "DataConfig",
    "LoggingConfig",
    "LossConfig",
    "ModelConfig",
    "PackingConfig",
    "TrainConfig",
    "TrainingConfig",
]

SECTIONS: dict[str, type[Section]] = {
    kind.section: kind for kind in (DataConfig, PackingConfig, LossConfig, TrainingConfig, ModelConfig, LoggingConfig)
}


class TrainConfig(Section):
    """All settings of a run. A section is given as its class or as a dictionary; what is left out has its default.

    Raises:
        ConfigError: an unknown key, a wrong value, or a combination that cannot be; a line for each.
    """

    data: DataConfig = DataConfig()
    packing: PackingConfig = PackingConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    model: ModelConfig = ModelConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def data_seed(self) -> int:
        """The seed of the validation documents and of the order."""
        return self.training.seed if self.data.seed is None else self.data.seed

    def replace(self, **sections: Mapping[str, Any]) -> TrainConfig:
        """The same settings but for those given: ``config.replace(training={"max_steps": 10})``.

        Raises:
            ConfigError: as for the class.
        """
        from .config_file import merged

        return TrainConfig(**merged(self.model_dump(exclude_unset=True), sections))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
        """The settings of a file, with ``section.key=value`` overrides, each value written as in the file.

        Raises:
            ConfigError: the file is missing or no TOML, or a setting is wrong; the message names file or override.
        """
        from .config_file import read

        return read(path, overrides)

    def to_toml(self) -> str:
        """Every setting with its value, as a file that ``from_toml`` reads back. What is None is left out."""
        from .config_file import dump

        return dump(self)

    @model_validator(mode="after")
    def _possible(self) -> TrainConfig:
        data, packing, training = self.data, self.packing, self.training
        if training.eval_steps is not None and data.validation_share == 0:
            raise Problem(
                "training.eval_steps",
                f"is {training.eval_steps}, but data.validation_share is 0: there is nothing to validate on.",
            )
        if data.streaming and packing.scheme in ("fixed", "padded", "bucketed"):
            raise Problem(
                "data.streaming",
                f'is true, but packing.scheme "{packing.scheme}" must know all lengths first. Take "packed-greedy".',
            )
        if data.streaming and training.max_steps is None:
            raise Problem(
                "data.streaming",
                "is true, and training.max_steps is not set: a stream does not know its length, and the learning "
                "rate must know the last step.",
            )
        if self.logging.tensorboard and training.output_dir is None:
            raise Problem(
                "logging.tensorboard", "is true, but training.output_dir is not set: there is no place for its files."
            )
        return self
