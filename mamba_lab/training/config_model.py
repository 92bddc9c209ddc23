"""The section ``model`` of a run's settings: sizes of a new model, or where one lies."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from mamba_lab.models.config import MambaConfig

from .config_errors import ConfigError, Problem, shown
from .config_types import Count, Positive, Section, Text


class ModelConfig(Section):
    """The model: a new one of these sizes, or one that is there.

    Attributes:
        from_pretrained: a checkpoint's folder, a run's folder, or a hub id. It brings its own sizes.
        backend: which kernels run the operators; "auto" takes the fastest here.
        d_model ... initializer_range: as in ``MambaConfig``. vocab_size None is the tokenizer's.
    """

    section: ClassVar[str] = "model"
    from_pretrained: Text | None = None
    backend: Literal["auto", "reference", "cpu", "triton", "cuda"] = "auto"
    d_model: Count = 128
    n_layer: Count = 4
    vocab_size: Count | None = None
    d_state: Count = 16
    d_conv: Count = 4
    expand: Count = 2
    dt_rank: Count | Literal["auto"] = "auto"
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1
    dt_init: Literal["random", "constant"] = "random"
    dt_scale: Positive = 1.0
    dt_init_floor: Positive = 1e-4
    conv_bias: bool = True
    bias: bool = False
    rms_norm: bool = True
    norm_epsilon: Positive = 1e-5
    residual_in_fp32: bool = True
    tie_embeddings: bool = True
    pad_vocab_size_multiple: Count = 8
    initializer_range: Positive = 0.02

    def mamba(self, vocab_size: int) -> MambaConfig:
        """The new model's configuration, for a tokenizer of ``vocab_size`` ids.

        Raises:
            ConfigError: the model has fewer ids than the tokenizer.
        """
        if self.vocab_size is not None and self.vocab_size < vocab_size:
            raise ConfigError(
                [
                    f"model.vocab_size is {self.vocab_size}, but the tokenizer has {vocab_size} ids. Leave it out, or "
                    f"take at least {vocab_size}."
                ]
            )
        sizes = self.model_dump(exclude={"from_pretrained", "backend", "vocab_size"})
        return MambaConfig(vocab_size=self.vocab_size or vocab_size, **sizes)

    @model_validator(mode="after")
    def _possible(self) -> ModelConfig:
        sizes = sorted(self.model_fields_set - {"from_pretrained", "backend"})
        if self.from_pretrained is not None and sizes:
            raise Problem(
                f"model.{sizes[0]}",
                f"is set, but model.from_pretrained {shown(self.from_pretrained)} brings its own. Remove one of them.",
            )
        try:
            self.mamba(self.vocab_size or 1)
        except ConfigError:
            raise
        except ValueError as error:
            raise Problem(f"model.{str(error).partition(' ')[0]}", str(error).partition(" ")[2]) from None
        return self
