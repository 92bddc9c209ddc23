"""MambaConfig: what it refuses, what it derives, and both foreign configurations there and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mamba_lab.models import MambaConfig

SMALL = MambaConfig(d_model=40, n_layer=2, vocab_size=50)


def test_what_is_derived() -> None:
    assert (SMALL.d_inner, SMALL.rank, SMALL.padded_vocab_size) == (80, 3, 56)
    odd = replace(SMALL, dt_rank=7, expand=3, vocab_size=56)
    assert (odd.d_inner, odd.rank, odd.padded_vocab_size) == (120, 7, 56)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("d_model", 0, "d_model must be at least 1, got 0"),
        ("n_layer", 2.0, "n_layer must be an integer of at least 1, got 2.0"),
        ("vocab_size", True, "vocab_size must be an integer"),
        ("d_state", 257, "d_state must be at most 256"),
        ("d_conv", 257, "d_conv must be at most 256"),
        ("dt_rank", "full", "dt_rank must be 'auto' or an integer"),
        ("dt_rank", 0, "dt_rank must be at least 1"),
        ("dt_min", 0.0, "dt_min must be a positive number"),
        ("dt_scale", float("inf"), "dt_scale must be a positive number"),
        ("norm_epsilon", "1e-5", "norm_epsilon must be a positive number"),
        ("dt_min", 0.2, "dt_min must not be above dt_max, got 0.2 and 0.1"),
        ("dt_init", "zeros", "dt_init must be 'random' or 'constant'"),
        ("bias", 1, "bias must be True or False, got 1"),
    ],
)
def test_what_no_model_can_have(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **{name: value})


ODD = MambaConfig(
    d_model=24,
    n_layer=3,
    vocab_size=50,
    d_state=8,
    d_conv=3,
    expand=3,
    dt_rank=5,
    dt_min=0.002,
    dt_max=0.2,
    dt_init="constant",
    dt_scale=0.5,
    dt_init_floor=1e-3,
    conv_bias=False,
    bias=True,
    residual_in_fp32=False,
    tie_embeddings=False,
    pad_vocab_size_multiple=16,
)


@pytest.mark.parametrize("config", [SMALL, ODD])
def test_there_and_back(config: MambaConfig) -> None:
    assert MambaConfig.from_dict(config.to_dict()) == config
    assert MambaConfig.from_dict(config.to_mamba_ssm()) == config
    # Hugging Face has no word for "auto".
    assert MambaConfig.from_dict(config.to_huggingface()) == replace(config, dt_rank=config.rank)


def test_a_published_file_of_mamba_ssm() -> None:
    published = {
        "d_model": 768,
        "n_layer": 24,
        "vocab_size": 50277,
        "ssm_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 8,
    }
    config = MambaConfig.from_dict(published)
    assert config == MambaConfig(768, 24, 50277)
    assert config.padded_vocab_size == 50280


def test_a_dictionary_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.MambaConfig(
        vocab_size=96, hidden_size=32, state_size=8, num_hidden_layers=3, conv_kernel=3, use_bias=True, expand=3
    )
    config = MambaConfig.from_dict(theirs.to_dict())
    assert (config.d_model, config.n_layer, config.vocab_size, config.padded_vocab_size) == (32, 3, 96, 96)
    assert (config.d_state, config.d_conv, config.expand, config.bias, config.rank) == (8, 3, 3, True, 2)
    back = transformers.MambaConfig(**config.to_huggingface())
    for name, value in theirs.to_dict().items():
        if name not in ("transformers_version", "architectures", "mamba_lab_vocab"):
            assert getattr(back, name) == value, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg.*'Mamba2': only Mamba1"),
        ({"attn_layer_idx": [1]}, "no attention or MLP layers"),
        ({"d_intermediate": 64}, "no attention or MLP layers"),
        ({"headdim": 64}, "unknown: headdim. Is this the config.json of a Mamba-1 model"),
        ({"model_type": "falcon_mamba"}, "model_type is 'falcon_mamba', expected 'mamba'"),
        ({"model_type": "mamba", "hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"model_type": "mamba", "hidden_size": 8, "intermediate_size": 20}, "intermediate_size is 20, expected .* 16"),
        ({"ssm_cfg": [1]}, r"ssm_cfg must be a dictionary, got \[1\]"),
        ({"ssm_cfg": "abc"}, "ssm_cfg must be a dictionary, got 'abc'"),
        ({"model_type": "mamba", "hidden_size": None}, "hidden_size must be an integer of at least 1, got None"),
        ({"model_type": "mamba", "hidden_size": "a"}, "hidden_size must be an integer of at least 1, got 'a'"),
        ({"model_type": "mamba", "expand": None}, "expand must be an integer of at least 1, got None"),
        ({"model_type": "mamba", "mamba_lab_vocab": 5}, r"mamba_lab_vocab must be \[ids, multiple\], got 5"),
        ({"model_type": "mamba", "mamba_lab_vocab": [1, 2, 3]}, r"mamba_lab_vocab must be \[ids, multiple\], got \[1"),
        ({"model_type": "mamba", "vocab_size": 60, "mamba_lab_vocab": [50, 8]}, "makes 56 rows, but vocab_size is 60"),
    ],
)
def test_another_models_configuration(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MambaConfig.from_dict({"d_model": 8, "n_layer": 1, "vocab_size": 9} | change)


def test_numbers_of_numpy_become_pythons_own() -> None:
    config = MambaConfig(np.int64(8), np.int32(1), np.uint8(9), dt_rank=np.int64(2), dt_min=np.float64(0.01), dt_max=1)
    assert config == MambaConfig(8, 1, 9, dt_rank=2, dt_min=0.01, dt_max=1.0)
    assert MambaConfig.from_dict(json.loads(json.dumps(config.to_mamba_ssm()))) == config


def test_what_a_format_cannot_say() -> None:
    with pytest.raises(ValueError, match="mamba-ssm always uses 1e-5"):
        replace(SMALL, norm_epsilon=1e-6).to_mamba_ssm()
    with pytest.raises(ValueError, match="RMSNorm only"):
        replace(SMALL, rms_norm=False).to_huggingface()
    with pytest.raises(ValueError, match=r"config: n_layer and vocab_size missing"):
        MambaConfig.from_dict({"d_model": 8})
    with pytest.raises(ValueError, match="config must be a dictionary, got list"):
        MambaConfig.from_dict([])  # type: ignore[arg-type]
