"""The target of every token of one sequence: the token that comes next, and -100 where none counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from ._checks import IntsLike, as_host_ints, as_int, refuse_masked, shown, tensor_on_host
from .batch import IGNORE

BoolsLike: TypeAlias = "Sequence[bool] | np.ndarray[Any, Any] | torch.Tensor"

TEACH = ("whole", "assistant", "prompt")


def make_targets(
    ids: IntsLike,
    teach: str = "whole",
    *,
    said: BoolsLike | None = None,
    prompt_length: int | None = None,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The targets of one whole sequence, shifted once: position i must predict token i + 1.

    Make them before anything is cut or packed, one call a sequence, and hand them to ``pad_collate`` or
    ``pack_collate`` as ``targets``: those move each target with its token, so a cut loses none and a boundary gains
    none.

    Args:
        ids: the token ids of one sequence, [n], on the host.
        teach: which tokens are targets. ``"whole"``: all but the first, which nothing precedes. ``"assistant"``: those
            that the assistant says, marked in ``said`` (LongAlign, arXiv 2401.18058, section 3.2, trains chat data
            so). ``"prompt"``: those after a prompt of ``prompt_length`` tokens, which is read but not taught.
        said: bool [n], True where the token is one the assistant says; with ``"assistant"`` only. ``Corpus.said_by``
            makes it. It marks tokens, not positions: the shift to positions is made here.
        prompt_length: tokens of the prompt, 0 to n; with ``"prompt"`` only. At n no token is a target.

    Returns:
        int64 [n], -100 at the last position and wherever the next token is no target.

    Raises:
        ValueError: ids that are no integers or negative, an unknown ``teach``, a mask or a prompt length that is
            missing, not used, or does not fit the sequence.
    """
    tokens = as_host_ints(ids, "ids").astype(np.int64)
    if (negative := np.flatnonzero(tokens < 0)).size:
        raise ValueError(f"ids[{negative[0]}] is {tokens[negative[0]]}: token ids are never negative.")
    if teach not in TEACH:
        raise ValueError(f"teach must be one of {', '.join(map(repr, TEACH))}, got {shown(teach)}.")
    for name, value, use in (("said", said, "assistant"), ("prompt_length", prompt_length, "prompt")):
        if value is not None and teach != use:
            raise ValueError(f'{name} is given, but teach is {teach!r}, which does not use it. Pass teach="{use}".')
        if value is None and teach == use:
            raise ValueError(f'teach="{use}" needs {name}: {_REMEDY[name]}')
    taught = np.ones(len(tokens), bool)
    if said is not None:
        taught = as_bools(said, "said", len(tokens), "token")
    elif prompt_length is not None:
        length = as_int(prompt_length, "prompt_length", minimum=0)
        if length > len(tokens):
            raise ValueError(
                f"prompt_length is {length}, but the sequence has {len(tokens)} tokens. Count the prompt in tokens of "
                f"this sequence, not in characters."
            )
        taught[:length] = False
    targets = np.full(len(tokens), IGNORE, np.int64)
    targets[:-1][taught[1:]] = tokens[1:][taught[1:]]
    return targets


_REMEDY = {
    "said": 'a bool for each token, True where the assistant says it; corpus.said_by("assistant") makes them.',
    "prompt_length": "the number of tokens that are read but not taught.",
}


def as_bools(values: BoolsLike, name: str, n: int, entry: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """``values`` as bool [n] on the host. Ones and zeros are refused: they are as likely to be token ids."""
    wanted = f"{name} must be bool [{n}], one entry a {entry}"
    array: np.ndarray[Any, Any]
    if isinstance(values, torch.Tensor):
        if values.dtype == torch.bool and tuple(values.shape) == (n,):
            return tensor_on_host(values, name)
        raise ValueError(f"{wanted}, got {values.dtype} {list(values.shape)}.")
    refuse_masked(values, name)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise ValueError(f"{wanted}, got {shown(values)}.") from None
    if array.size == 0 and isinstance(values, list | tuple):
        array = array.astype(bool)
    if array.shape != (n,) or array.dtype != np.bool_:
        raise ValueError(f"{wanted}, got {f'{array.dtype} {list(array.shape)}' if array.ndim else shown(values)}.")
    return array
