"""Text from a MambaLM: prompts of different lengths read as one pack, then one token at a time in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.batching._checks import as_host_ints, as_int, shown

from .mixer import MixerState
from .sampling import Sampler

if TYPE_CHECKING:
    from .mamba import MambaLM

Prompts: TypeAlias = "Tensor | Sequence[Sequence[int] | Tensor]"


def generate(
    model: MambaLM,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    stop: Iterable[int] = (),
    on_token: Callable[[int, int], object] | None = None,
) -> list[list[int]]:
    """Continue every prompt.

    Args:
        model: its device is where the work is done.
        prompts: lists or tensors of ids, at least one id each, of any lengths; or a tensor [B, L].
        max_new_tokens: at most so many for each prompt.
        temperature, top_k, top_p, seed, generator: as for ``Sampler``. Temperature 0 takes the likeliest token.
        stop: ids after which a prompt's text ends; the id itself is kept.
        on_token: called with (prompt's number, id) as soon as an id is chosen.

    Returns:
        The new ids of each prompt, without the prompt.

    Raises:
        ValueError: an empty prompt, an id outside the vocabulary, or a value out of range.
    """
    steps = stream(
        model,
        prompts,
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        generator=generator,
        stop=stop,
    )
    texts: list[list[int]] = [[] for _ in range(len(prompts))]
    for step in steps:
        for row, token in step.items():
            texts[row].append(token)
            if on_token is not None:
                on_token(row, token)
    return texts


def stream(
    model: MambaLM,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    stop: Iterable[int] = (),
) -> Iterator[dict[int, int]]:
    """``generate`` step by step: each item has the next id of every prompt that goes on, by the prompt's number.

    Arguments are checked at the call, before the first step.
    """
    sampler = Sampler(temperature, top_k, top_p, seed, generator)
    limit = as_int(max_new_tokens, "max_new_tokens", minimum=0)
    if not isinstance(stop, Iterable):
        raise ValueError(f"stop must be ids, got {shown(stop)}. Put a single id in a list.")
    ends = {as_int(token, "stop", minimum=0) for token in stop}
    rows = _checked(prompts, model.config.vocab_size)
    return _steps(model, rows, limit, sampler, ends)


def _steps(
    model: MambaLM, rows: list[list[int]], limit: int, sampler: Sampler, ends: set[int]
) -> Iterator[dict[int, int]]:
    live = list(range(len(rows)))
    states: list[MixerState] | None = None
    feed = rows
    for _ in range(limit):
        if not live:
            return
        logits, states = read(model, feed, states)
        # Every prompt draws at every step, ended or not: no prompt's text hangs on when another one ends.
        chance = sampler.draw(len(rows))
        chosen = sampler.choose(logits, None if chance is None else chance[live]).tolist()
        yield dict(zip(live, chosen, strict=True))
        goes_on = [place for place, token in enumerate(chosen) if token not in ends]
        if len(goes_on) < len(live):
            keep = torch.tensor(goes_on, dtype=torch.int64, device=logits.device)
            states = [MixerState(state.conv[keep], state.ssm[keep]) for state in states]
        live, feed = [live[place] for place in goes_on], [[chosen[place]] for place in goes_on]


# Around one step and not around the iterator: its caller computes between two steps, and may want gradients.
@torch.no_grad()
def read(
    model: MambaLM, sequences: list[list[int]], states: list[MixerState] | None = None
) -> tuple[Tensor, list[MixerState]]:
    """Let ``model`` read ids as one pack, each sequence going on from its state.

    Args:
        sequences: R lists of at least one id.
        states: of each block; None at the start.

    Returns:
        The scores of each sequence's next token [R, V], and each block's states after it: d_inner * (W - 1 + N)
        numbers a sequence and block, however long it is.
    """
    device = model.lm_head.weight.device
    tokens = torch.tensor([token for ids in sequences for token in ids], dtype=torch.int64, device=device)
    boundaries = Boundaries.from_lengths([len(ids) for ids in sequences], device=device)
    scores, after = model(tokens[None], boundaries, states=states, return_states=True)
    return scores, after


def _checked(prompts: Prompts, vocab_size: int) -> list[list[int]]:
    if not isinstance(prompts, Tensor | list | tuple) or (isinstance(prompts, Tensor) and prompts.dim() != 2):
        raise ValueError("prompts must be a list of lists of ids, or a tensor [B, L]. Put a single prompt in a list.")
    rows = []
    for number, prompt in enumerate(prompts):
        name = f"prompts[{number}]"
        if isinstance(prompt, int):
            raise ValueError(f"{name} is the number {prompt}, expected a list of ids. Put a single prompt in a list.")
        ids: list[int] = as_host_ints(prompt.cpu() if isinstance(prompt, Tensor) else prompt, name).tolist()
        if not ids:
            raise ValueError(f"{name} is empty: there is nothing to go on from. Start it with an end-of-text id.")
        wrong = [token for token in ids if not 0 <= token < vocab_size]
        if wrong:
            raise ValueError(f"{name} has the id {wrong[0]}, the vocabulary runs from 0 to {vocab_size - 1}.")
        rows.append(ids)
    return rows
