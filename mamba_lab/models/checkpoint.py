"""Checkpoints in mamba-ssm's and Hugging Face's layouts, both ways, with a report of what does not match."""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mamba_lab.log import logger

from .config import MambaConfig
from .layouts import EMBEDDING, FILE_OF, HEAD, LAYOUTS, Layout, from_huggingface, layout_of, to_huggingface
from .mamba import MambaLM
from .plain import same_values
from .weight_files import Fetch, as_path, read_config, read_weights, source, write_checkpoint

_SHOWN = 8
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class LoadReport:
    """How a checkpoint's weights fitted a model.

    Attributes:
        loaded: names of the parameters that were set.
        missing: parameters that no file has; they keep their starting values.
        unexpected: names in the files that the model does not have.
        wrong_shape: name -> (shape in the file, shape in the model); not loaded.
        untied: output layers in the files that differ from the embedding, which the model has in their place.
    """

    loaded: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong_shape: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    untied: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether every parameter was set and nothing was left over."""
        return not (self.missing or self.unexpected or self.wrong_shape or self.untied)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} parameters loaded"]
        near = [(name, difflib.get_close_matches(name, self.unexpected, 1, 0.8)) for name in self.missing]
        lines += _listed("missing", [f"{name} (did it mean {hits[0]}?)" if hits else name for name, hits in near])
        lines += _listed("unexpected", self.unexpected)
        shapes = [
            f"{name}: {there} in the file, {here} in the model" for name, (there, here) in self.wrong_shape.items()
        ]
        lines += _listed("wrong shape", shapes)
        untied = [f"{name} is not the embedding, but tie_embeddings is true" for name in self.untied]
        lines += _listed("untied", untied)
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
    dropped, or set to 0 where the file has none. Where the model ties its output layer, the embedding is what counts.

    Raises:
        ValueError: a damaged file, or a weight that is no floating-point tensor.
    """
    own = dict(model.named_parameters())
    tied, vocab = model.config.tie_embeddings, model.config.vocab_size
    report = LoadReport()
    head: Tensor | None = None
    for _, tensors in read_weights(fetch):
        for there, tensor in tensors.items():
            name = from_huggingface(there) if layout == "huggingface" else there
            if (name in own or name == HEAD) and tensor.dtype not in _DTYPES:
                raise ValueError(
                    f"{there} is {tensor.dtype} in the file, expected {', '.join(map(str, _DTYPES))}. "
                    f"Fetch the checkpoint that was not quantised."
                )
            if tied and name == HEAD:
                head = tensor
            elif name not in own:
                report.unexpected.append(there)
            elif _copy(own[name], tensor, vocab if name in (EMBEDDING, HEAD) else None):
                report.loaded.add(name)
            else:
                report.wrong_shape[name] = (list(tensor.shape), list(own[name].shape))
    if head is not None:
        embedding = own[EMBEDDING]
        if EMBEDDING in report.loaded or EMBEDDING in report.wrong_shape:  # saved twice
            read = embedding.clone()
            same = _copy(read, head, vocab) and same_values(read[:vocab], embedding[:vocab])
            if EMBEDDING in report.loaded and not same:
                report.untied.append(HEAD)
        elif _copy(embedding, head, vocab):  # saved under this name alone
            report.loaded.add(EMBEDDING)
        else:
            report.wrong_shape[EMBEDDING] = (list(head.shape), list(embedding.shape))
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
            with adapters, of other sizes than its configuration's, without values, or with an output layer that is no
            longer the embedding, which would not load as it is; a folder that cannot be made.
    """
    if format not in LAYOUTS:
        raise ValueError(f"format must be one of {', '.join(LAYOUTS)}, got {format!r}.")
    where, there = as_path(folder, "folder"), format == "huggingface"
    config = model.config.to_huggingface() if there else model.config.to_mamba_ssm()
    weights = _weights_to_save(model)
    if there:
        # safetensors refuses two names for one tensor; transformers ties the output layer by itself.
        if model.config.tie_embeddings:
            del weights[HEAD]
        weights = {to_huggingface(name): value for name, value in weights.items()}
    write_checkpoint(where, config, weights, FILE_OF[format])


def _weights_to_save(model: MambaLM) -> dict[str, Tensor]:
    state = model.state_dict()
    with torch.device("meta"):
        known = {name: value.shape for name, value in MambaLM(model.config).state_dict().items()}
    if set(state) != set(known):
        raise ValueError(
            f"the model has weights of another kind, such as {min(set(state) ^ set(known))}. "
            f"Merge or remove adapters first."
        )
    for name, value in state.items():
        if value.is_meta:
            raise ValueError(f"{name} is on meta and has no values to save. Use to_empty and load weights first.")
        if value.shape != known[name]:
            raise ValueError(
                f"{name} is {list(value.shape)}, but config makes it {list(known[name])}. Build a model of the new "
                f"size and copy the weights into it."
            )
    if model.config.tie_embeddings:
        if not same_values(state[HEAD], state[EMBEDDING]):
            raise ValueError(
                f"{HEAD} differs from {EMBEDDING}, but config.tie_embeddings is True: a file has room for one of them. "
                f"Call tie_weights() to keep the embedding alone, or keep both with "
                f"model.config = dataclasses.replace(model.config, tie_embeddings=False)."
            )
        del state[HEAD]
    weights = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    return weights | {HEAD: weights[EMBEDDING]} if model.config.tie_embeddings else weights


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
