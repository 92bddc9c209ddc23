"""MambaConfig: the sizes and starting values of a Mamba-1 language model, under mamba-ssm's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, Literal

from mamba_lab.batching._checks import as_int, shown


@dataclass(frozen=True)
class MambaConfig:
    """What a checkpoint has to agree with, and how a new model starts.

    The names are those of mamba-ssm's ``MambaConfig`` and of its block's arguments. A Hugging Face configuration
    converts both ways.

    Attributes:
        d_model: width of the residual stream.
        n_layer: blocks.
        vocab_size: V, the ids that exist.
        d_state: N, states a channel.
        d_conv: W, taps of the convolution.
        expand: ``d_inner = expand * d_model`` channels in a block.
        dt_rank: R, rank of the projection to the step sizes; "auto" is d_model / 16, rounded up.
        dt_min, dt_max: the steps at the start, drawn between them on a log scale.
        dt_init: "random" or "constant": the weights from R to the steps at the start.
        dt_scale: factor on those weights.
        dt_init_floor: no step starts below it.
        conv_bias: a bias in the convolution.
        bias: biases in the block's two outer projections.
        rms_norm: RMSNorm; False is LayerNorm.
        norm_epsilon: what the norms add under the root.
        residual_in_fp32: the residual stream stays float32 in a model of lower precision.
        tie_embeddings: the output layer is the embedding.
        pad_vocab_size_multiple: the embedding has rows up to a multiple of this. Rows past ``vocab_size`` have no id,
            no logit and no gradient.
        initializer_range: standard deviation of the embedding at the start.

    Raises:
        ValueError: a value that no model can have; the message names it.
    """

    d_model: int
    n_layer: int
    vocab_size: int
    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int | Literal["auto"] = "auto"
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init: str = "random"
    dt_scale: float = 1.0
    dt_init_floor: float = 1e-4
    conv_bias: bool = True
    bias: bool = False
    rms_norm: bool = True
    norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_embeddings: bool = True
    pad_vocab_size_multiple: int = 8
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        # Kept as Python's own numbers: NumPy's go into no JSON.
        for name in ("d_model", "n_layer", "vocab_size", "d_state", "d_conv", "expand", "pad_vocab_size_multiple"):
            object.__setattr__(self, name, as_int(getattr(self, name), name, minimum=1))
        for name, most in (("d_state", 256), ("d_conv", 256)):
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most}, which the operators take, got {getattr(self, name)}.")
        if self.dt_rank != "auto":
            if isinstance(self.dt_rank, str):
                raise ValueError(f"dt_rank must be 'auto' or an integer of at least 1, got {self.dt_rank!r}.")
            object.__setattr__(self, "dt_rank", as_int(self.dt_rank, "dt_rank", minimum=1))
        for name in ("dt_min", "dt_max", "dt_scale", "dt_init_floor", "norm_epsilon", "initializer_range"):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < math.inf:
                raise ValueError(f"{name} must be a positive number, got {shown(value)}.")
            object.__setattr__(self, name, float(value))
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min must not be above dt_max, got {self.dt_min} and {self.dt_max}. Swap them.")
        if self.dt_init not in ("random", "constant"):
            raise ValueError(f"dt_init must be 'random' or 'constant', got {shown(self.dt_init)}.")
        for name in ("conv_bias", "bias", "rms_norm", "residual_in_fp32", "tie_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {shown(getattr(self, name))}.")

    @property
    def d_inner(self) -> int:
        """Channels of a block."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """R: ``dt_rank`` as a number."""
        return -(-self.d_model // 16) if self.dt_rank == "auto" else self.dt_rank

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return -(-self.vocab_size // self.pad_vocab_size_multiple) * self.pad_vocab_size_multiple

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MambaConfig:
        """The configuration in a ``config.json``: mamba-ssm's, Hugging Face's, or ``to_dict``'s.

        Raises:
            ValueError: another model's configuration, or one with parts that this model does not have.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"config must be a dictionary, got {type(values).__name__}.")
        if "model_type" in values or "hidden_size" in values:
            return cls.from_huggingface(values)
        return cls.from_mamba_ssm(values)

    @classmethod
    def from_mamba_ssm(cls, values: Mapping[str, Any]) -> MambaConfig:
        """From mamba-ssm's ``config.json``. ``fused_add_norm`` names a kernel there and has no meaning here.

        Raises:
            ValueError: Mamba-2, attention or MLP layers; a missing or unknown field.
        """
        known = dict(values)
        given = known.pop("ssm_cfg", None)
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"ssm_cfg must be a dictionary, got {shown(given)}.")
        block = dict(given or {})
        layer = block.pop("layer", "Mamba1")
        if layer != "Mamba1":
            raise ValueError(f"ssm_cfg['layer'] is {layer!r}: only Mamba1 is built here.")
        if known.pop("attn_layer_idx", None) or known.pop("d_intermediate", 0):
            raise ValueError("attn_layer_idx and d_intermediate must be empty: there are no attention or MLP layers.")
        for kernel in ("attn_cfg", "fused_add_norm", "d_intermediate"):
            known.pop(kernel, None)
        block.pop("use_fast_path", None)
        known |= block
        return cls(**_only_known(cls, known, ("d_model", "n_layer", "vocab_size")))

    def to_mamba_ssm(self) -> dict[str, Any]:
        """mamba-ssm's ``config.json``.

        Raises:
            ValueError: a ``norm_epsilon`` that its file cannot say.
        """
        if self.norm_epsilon != 1e-5:
            raise ValueError(
                f"norm_epsilon is {self.norm_epsilon}, but mamba-ssm always uses 1e-5. Save as 'huggingface'."
            )
        return {
            "d_model": self.d_model,
            "d_intermediate": 0,
            "n_layer": self.n_layer,
            "vocab_size": self.vocab_size,
            "ssm_cfg": {"layer": "Mamba1"} | {name: getattr(self, name) for name in _BLOCK},
            "attn_layer_idx": [],
            "attn_cfg": {},
            "rms_norm": self.rms_norm,
            "residual_in_fp32": self.residual_in_fp32,
            "fused_add_norm": self.rms_norm,
            "pad_vocab_size_multiple": self.pad_vocab_size_multiple,
            "tie_embeddings": self.tie_embeddings,
        }

    @classmethod
    def from_huggingface(cls, values: Mapping[str, Any]) -> MambaConfig:
        """From the dictionary of ``transformers.MambaConfig``, absent fields at its defaults.

        Raises:
            ValueError: another ``model_type``, or an activation other than silu.
        """
        model_type = values.get("model_type", "mamba")
        if model_type != "mamba":
            raise ValueError(f"model_type is {model_type!r}, expected 'mamba': this is another architecture.")
        if values.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ValueError(f"hidden_act is {values['hidden_act']!r}: Mamba's gate here is silu.")
        hidden = as_int(values.get("hidden_size", 768), "hidden_size", minimum=1)
        expand = as_int(values.get("expand", 2), "expand", minimum=1)
        if values.get("intermediate_size", expand * hidden) != expand * hidden:
            raise ValueError(
                f"intermediate_size is {values['intermediate_size']}, expected expand * hidden_size, {expand * hidden}."
            )
        own = {ours: values[theirs] for theirs, ours in _HUGGINGFACE.items() if theirs in values}
        rows = values.get("vocab_size", 50280)
        start = {"d_model": 768, "n_layer": 32, "pad_vocab_size_multiple": 1, "initializer_range": 0.1}
        # Hugging Face counts the padding rows as ids. Where this package wrote the file it says how many are real.
        marked = values.get(_REAL_ROWS, (rows, 1))
        if not isinstance(marked, list | tuple) or len(marked) != 2:
            raise ValueError(f"{_REAL_ROWS} must be [ids, multiple], got {shown(marked)}. Remove it.")
        real, multiple = marked
        config = cls(**(start | own | {"vocab_size": real, "pad_vocab_size_multiple": multiple}))
        if config.padded_vocab_size != rows:
            raise ValueError(
                f"{_REAL_ROWS} is {[real, multiple]}, which makes {config.padded_vocab_size} rows, but vocab_size is "
                f"{rows}. Remove {_REAL_ROWS} if the embedding was resized."
            )
        return config

    def to_huggingface(self) -> dict[str, Any]:
        """Hugging Face's ``config.json``: there ``vocab_size`` counts the embedding's padding rows too.

        Raises:
            ValueError: LayerNorm, which Hugging Face's Mamba does not have.
        """
        if not self.rms_norm:
            raise ValueError("rms_norm is False, but Hugging Face's Mamba has RMSNorm only. Save as 'mamba_ssm'.")
        values = {theirs: getattr(self, ours) for theirs, ours in _HUGGINGFACE.items()}
        return {
            "architectures": ["MambaForCausalLM"],
            "model_type": "mamba",
            **values,
            "vocab_size": self.padded_vocab_size,
            "intermediate_size": self.d_inner,
            "time_step_rank": self.rank,
            "hidden_act": "silu",
            # True would be the truth about the start, but transformers 5.24 then divides the loaded out_proj again.
            "rescale_prenorm_residual": False,
            _REAL_ROWS: [self.vocab_size, self.pad_vocab_size_multiple],
        }


_BLOCK = (
    "d_state",
    "d_conv",
    "expand",
    "dt_rank",
    "dt_min",
    "dt_max",
    "dt_init",
    "dt_scale",
    "dt_init_floor",
    "conv_bias",
    "bias",
)
_REAL_ROWS = "mamba_lab_vocab"
_HUGGINGFACE = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "state_size": "d_state",
    "conv_kernel": "d_conv",
    "expand": "expand",
    "time_step_rank": "dt_rank",
    "time_step_min": "dt_min",
    "time_step_max": "dt_max",
    "time_step_init_scheme": "dt_init",
    "time_step_scale": "dt_scale",
    "time_step_floor": "dt_init_floor",
    "use_conv_bias": "conv_bias",
    "use_bias": "bias",
    "layer_norm_epsilon": "norm_epsilon",
    "residual_in_fp32": "residual_in_fp32",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "initializer_range",
}


def _only_known(cls: type[MambaConfig], values: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    missing = [name for name in required if name not in values]
    unknown = sorted(set(values) - {field.name for field in fields(cls)})
    if missing or unknown:
        parts = [f"{' and '.join(missing)} missing"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(
            unknown
        )
        raise ValueError(f"config: {'; '.join(parts)}. Is this the config.json of a Mamba-1 model?")
    return values
