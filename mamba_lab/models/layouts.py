"""The two layouts of a Mamba checkpoint: what the files and the parameters are called in each."""

from __future__ import annotations

from typing import Literal, get_args

Layout = Literal["mamba_ssm", "huggingface"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
BIN = "pytorch_model.bin"
WEIGHTS = (SAFETENSORS, f"{SAFETENSORS}.index.json", BIN, f"{BIN}.index.json")
"""The files a checkpoint's weights can be in; the first that is there is read."""

# What each layout's own library looks for: mamba-ssm reads a .bin only.
FILE_OF: dict[str, str] = {"mamba_ssm": BIN, "huggingface": SAFETENSORS}

EMBEDDING, HEAD = "backbone.embedding.weight", "lm_head.weight"
_EMBEDDING_THERE = "backbone.embeddings.weight"


def from_huggingface(name: str) -> str:
    """A parameter's name here, from Hugging Face's."""
    return EMBEDDING if name == _EMBEDDING_THERE else name


def to_huggingface(name: str) -> str:
    """A parameter's name in Hugging Face's layout."""
    return _EMBEDDING_THERE if name == EMBEDDING else name


def layout_of(config: dict[str, object]) -> Layout:
    """Which layout a ``config.json`` belongs to."""
    return "huggingface" if "model_type" in config or "hidden_size" in config else "mamba_ssm"
