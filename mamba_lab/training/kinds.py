"""Arguments that are of another kind than the function takes: said first, with what they are and how to make one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike

import torch

from mamba_lab.batching._checks import shown
from mamba_lab.models import MambaLM

from .config import TrainConfig, TrainingConfig


def require_config(config: object) -> None:
    """Refuse settings that are no TrainConfig.

    Raises:
        ValueError: what they are, and how to make one.
    """
    if not isinstance(config, TrainConfig):
        raise ValueError(
            f"config must be a TrainConfig, got {type(config).__name__}. Make one of a dictionary with "
            f"TrainConfig(**values), of a file with TrainConfig.from_toml(path)."
        )


def require_training(training: object) -> None:
    """Refuse settings of training alone that are no TrainingConfig.

    Raises:
        ValueError: what they are, and how to make one.
    """
    if not isinstance(training, TrainingConfig):
        how = (
            "Pass config.training." if isinstance(training, TrainConfig) else "Make one with TrainingConfig(**values)."
        )
        raise ValueError(f"training must be a TrainingConfig, got {type(training).__name__}. {how}")


def require_model(model: object) -> None:
    """Refuse a model of another kind, if there is one.

    Args:
        model: may be None, or in a wrapper that hands its attributes on, such as that of ``torch.compile`` or PEFT.

    Raises:
        ValueError: what it is, and how to make one.
    """
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    own = next((part for part in parts if isinstance(part, MambaLM)), None)
    if model is not None and (own is None or getattr(model, "config", None) is not own.config):
        raise ValueError(
            f"model must be a MambaLM, got {type(model).__name__}. Make one with MambaLM(config); for one that is on "
            f'disk leave model out and name its folder in TrainConfig(model={{"from_pretrained": folder}}).'
        )
    if own is not None and any(parameter.is_meta for parameter in own.parameters()):
        raise ValueError("model is on meta and has no values. Call to_empty(device=...) and load its weights first.")


def require_gradients() -> None:
    """Refuse to train where PyTorch was told to keep no gradients.

    Raises:
        ValueError: gradients are off.
    """
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise ValueError(
            "training was called where gradients are off: inside torch.no_grad() or torch.inference_mode(). Call it "
            "outside."
        )


def require_documents(documents: object) -> None:
    """Refuse documents that are no list of them, if there are any. Each of them is looked at when it is read.

    Raises:
        ValueError: what they are, and where a file or a text belongs.
    """
    if isinstance(documents, str | bytes | PathLike | Mapping) or not isinstance(documents, Iterable | None):
        raise ValueError(
            f"documents must be a list of Document(text, id, source), got {shown(documents)}. A file or a folder goes "
            f'into TrainConfig(data={{"corpus": path}}).'
        )


def require_function(value: object, name: str, takes: str) -> None:
    """Refuse what cannot be called, unless it is None.

    Args:
        name: of the argument.
        takes: what it is called with, in words.

    Raises:
        ValueError: what it is.
    """
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function of {takes}, or None, got {shown(value)}.")
