"""Checkpoints in mamba-ssm's and Hugging Face's layouts, both ways, with a report of what does not match."""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mamba_lab.log import logger

from .config import MambaConfig
from .layouts import EMBEDDING, FILE_OF, HEAD, LAYOUTS, Layout, from_huggingface, layout_of, to_huggingface
from .mamba import MambaLM
from .weight_files import Fetch, read_config, read_weights, source, write_checkpoint

_SHOWN = 8


@dataclass
class LoadReport:
    """How a checkpoint's weights fitted a model.

    Attributes:
        loaded: names of the parameters that were set.
        missing: parameters that no file has; they keep their starting values.
        unexpected: names in the files that the model does not have.
        wrong_shape: name -> (shape in the file, shape in the model); not loaded.
    """

    loaded: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong_shape: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether every parameter was set and nothing was left over."""
        return not (self.missing or self.unexpected or self.wrong_shape)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} parameters loaded"]
        near = [(name, difflib.get_close_matches(name, self.unexpected, 1, 0.8)) for name in self.missing]
        lines += _listed("missing", [f"{name} (did it mean {hits[0]}?)" if hits else name for name, hits in near])
        lines += _listed("unexpected", self.unexpected)
        shapes = [
            f"{name}: {there} in the file, {here} in the model" for name, (there, here) in self.wrong_shape.items()
        ]
        lines += _listed("wrong shape", shapes)
        return "\n".join(lines)


def from_pretrained(
    path_or_hub_id: str | os.PathLike[str], *, revision: str | None = None, strict: bool = True, backend: str = "auto"
) -> MambaLM:
    """The model in a local folder or on the Hub, float32 on the CPU.

    ``config.json`` says which layout it is, mamba-ssm's or Hugging Face's. Weights may be safetensors or ``.bin``, in
    one file or in shards; a ``.bin`` is read as tensors only.

    Args:
        path_or_hub_id: a folder, or "owner/name"; only the second needs huggingface_hub and a network.
        revision: the Hub's branch, tag or commit.
        strict: raise where something does not match; False logs the report and loads the rest.
        backend: as for MambaLM.

    Raises:
        ValueError: no checkpoint there, another architecture, a damaged file, or (``strict``) weights that do not fit,
            with the report as its message.
    """
    fetch = source(path_or_hub_id, revision)
    values = read_config(fetch)
    model = MambaLM(MambaConfig.from_dict(values), backend=backend)
    report = load_weights(model, fetch, layout_of(values))
    if not report.fits:
        message = f"{os.fspath(path_or_hub_id)}: the weights do not fit the model of its config.json.\n{report}"
        if strict:
            raise ValueError(f"{message}\nstrict=False loads what fits.")
        logger.log(logging.WARNING, message)
    return model


@torch.no_grad()
def load_weights(model: MambaLM, fetch: Fetch, layout: Layout) -> LoadReport:
    """Set ``model``'s parameters from a checkpoint's files, one file in memory at a time.

    The embedding may have been padded to another multiple: rows that stand for ids must all be there, padding rows are
    dropped, or set to 0 where the file has none.
    """
    own = dict(model.named_parameters())
    tied = model.config.tie_embeddings
    report = LoadReport()
    for _, tensors in read_weights(fetch):
        for there, tensor in tensors.items():
            name = from_huggingface(there) if layout == "huggingface" else there
            if tied and name == HEAD:
                # Saved twice, or saved under this name alone.
                if EMBEDDING in report.loaded:
                    continue
                name = EMBEDDING
            if name not in own:
                report.unexpected.append(there)
            elif _copy(own[name], tensor, model.config.vocab_size if name in (EMBEDDING, HEAD) else None):
                report.loaded.add(name)
            else:
                report.wrong_shape[name] = (list(tensor.shape), list(own[name].shape))
    report.missing = [name for name in own if name not in report.loaded and name not in report.wrong_shape]
    return report


def save_pretrained(model: MambaLM, folder: str | os.PathLike[str], *, format: Layout = "mamba_ssm") -> None:
    """Write ``config.json`` and the weights, beside their places first and then renamed.

    Args:
        folder: made where it is missing; other files in it stay.
        format: "mamba_ssm" writes ``pytorch_model.bin``, the only file that mamba-ssm reads; "huggingface" writes
            ``model.safetensors``.

    Raises:
        ValueError: another format; a model that the format cannot say; a folder with weights in another file; a model
            with adapters, which would not load.
    """
    if format not in LAYOUTS:
        raise ValueError(f"format must be one of {', '.join(LAYOUTS)}, got {format!r}.")
    there = format == "huggingface"
    config = model.config.to_huggingface() if there else model.config.to_mamba_ssm()
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with torch.device("meta"):
        known = set(MambaLM(model.config).state_dict())
    if set(weights) != known:
        raise ValueError(
            f"the model has weights of another kind, such as {min(set(weights) ^ known)}. "
            f"Merge or remove adapters first."
        )
    if there:
        # safetensors refuses two names for one tensor; transformers ties the output layer by itself.
        if model.config.tie_embeddings:
            del weights[HEAD]
        weights = {to_huggingface(name): value for name, value in weights.items()}
    write_checkpoint(Path(folder), config, weights, FILE_OF[format])


def _copy(parameter: Tensor, tensor: Tensor, vocab_size: int | None) -> bool:
    """Whether ``tensor`` fitted ``parameter`` and was copied; with ``vocab_size`` rows from there on are padding."""
    if vocab_size is not None and tensor.dim() == 2 and tensor.shape[1:] == parameter.shape[1:]:
        rows = min(tensor.shape[0], parameter.shape[0])
        if rows >= vocab_size:
            parameter[:rows].copy_(tensor[:rows])
            parameter[rows:].zero_()
            return True
        return False
    if tensor.shape != parameter.shape:
        return False
    parameter.copy_(tensor)
    return True


def _listed(title: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = [f"    and {len(names) - _SHOWN} more"] * (len(names) > _SHOWN)
    return [f"  {title} ({len(names)}):", *(f"    {name}" for name in names[:_SHOWN]), *more]
