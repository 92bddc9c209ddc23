"""Look at batches' targets before training on them: which known mistake they show, how often, and where first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ._checks import as_int, as_share, shown
from .batch import IGNORE, Batch
from .targets import BoolsLike, as_bools

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class TargetReport:
    """What :func:`check_targets` found.

    Attributes:
        n_batches: how many batches were looked at.
        n_tokens: their tokens, padding left out.
        n_padding: their padding positions.
        n_targets: positions that have a target, right or wrong.
        counts: how many positions show each mistake, by its name.
        findings: one line a mistake: its name, the count, the first place, the remedy.
        notes: what is no mistake but worth knowing: sequences, or whole batches, that teach nothing.
    """

    n_batches: int
    n_tokens: int
    n_padding: int
    n_targets: int
    counts: dict[str, int]
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True where no mistake was found. Notes are no mistakes."""
        return not self.findings

    def __str__(self) -> str:
        share = f" ({self.n_targets / self.n_tokens:.0%} of the tokens)" if self.n_tokens else ""
        lines = [f"{_n(self.n_batches, 'batch')}, {_n(self.n_tokens, 'token')}, {_n(self.n_targets, 'target')}{share}"]
        lines += [f"- {finding}" for finding in self.findings or ("nothing found",)]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def check_targets(
    batches: Batch | Iterable[Batch],
    *,
    pad_id: int | None = None,
    cut: BoolsLike | Sequence[BoolsLike] | None = None,
    min_target_share: float = 0.01,
) -> TargetReport:
    """Check that every target is the next token of its own sequence. A GPU batch is copied to the host, once.

    Mistakes and their names:

    - *padding as target*: a padding position has a target, or padding is the target of a sequence's last token.
    - *shifted twice*, *not shifted*, *not the next token*: inside a sequence, a target that is not the next token.
    - *unmasked boundary*: a sequence's last token has the first token of its neighbour in the row as target.
    - *all masked*, *nearly all masked*: no target at all, or for fewer than ``min_target_share`` of the tokens.
    - *miscounted*: ``n_target_tokens``, by which the loss is divided, is not the number of targets, and
      nothing above explains it.

    What is certain: padding is known from the boundaries, so a target there is a mistake, and so is one inside a
    sequence that is not the next token: repeated tokens never look shifted. What is statistical: the *name* of a wrong
    shift is what most of the wrong targets show. And the end of a sequence. A piece that goes on in another row or
    batch has a right target there, which can equal the neighbour's first token by chance. Pieces of which the rest is
    in these batches are recognised, others only by ``cut``; with ``cut``, this is certain too. Without it, padding
    after a last token counts as its target only where most of such ends show it.

    What no batch can show: a model that shifts labels itself, as Hugging Face's do, and so shifts twice what was
    shifted here. Give those ``batch.to_huggingface()``.

    Args:
        batches: one batch, or several that are counted together, such as a stream's first ones.
        pad_id: the token id of padding, for the message; known from the batch where it has padding.
        cut: bool [S], which sequences of the batch are pieces that go on elsewhere; for several batches one each.
        min_target_share: targets over tokens, under which the report says that nearly all is masked.

    Raises:
        ValueError: no batch, an entry that is no Batch, a ``cut`` that does not fit, a bad share or pad id.
    """
    share = as_share(min_target_share, "min_target_share")
    pad = None if pad_id is None else as_int(pad_id, "pad_id", minimum=0)
    found = _Found()
    for batch, pieces in _with_cuts(batches, cut):
        _look(batch, pieces, found)
    if not found.n_batches:
        raise ValueError("batches is empty: there is nothing to check. Give at least one batch.")
    return _report(found, pad, share)


class _Found:
    """Counts over all batches, and the first place of each kind."""

    def __init__(self) -> None:
        self.n_batches = self.n_tokens = self.n_padding = self.n_targets = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.padding_targets: Counter[int] = Counter()
        self.padding_ids: Counter[int] = Counter()

    def add(self, kind: str, positions: Ints, batch: Batch, sequence_at: Ints) -> None:
        self.counts[kind] += len(positions)
        if len(positions) and kind not in self.first:
            at, width = int(positions[0]), batch.input_ids.shape[1]
            where = f"batch {self.n_batches}, " if self.n_batches else ""
            owner = "padding" if sequence_at[at] < 0 else f"sequence {sequence_at[at]}"
            self.first[kind] = f"{where}row {at // width}, position {at % width} ({owner})"


def _look(batch: Batch, cut: Bools | None, found: _Found) -> None:
    ids, targets, cu, sequence = _on_host(batch)
    width = batch.input_ids.shape[1]
    lengths = np.diff(cu)
    piece = np.repeat(np.arange(len(sequence)), lengths)
    own = sequence[piece]
    has, padding = targets != IGNORE, own < 0
    after, second = np.append(ids[1:], -1)[: len(ids)], np.append(ids[2:], [-1, -1])[: len(ids)]
    last = np.zeros(len(ids), bool)
    last[cu[1:][lengths > 0] - 1] = True

    in_padding = np.flatnonzero(has & padding)
    found.add("padding as target", in_padding, batch, own)
    found.padding_targets.update(targets[in_padding].tolist())
    found.padding_ids.update(ids[padding].tolist())

    inside = has & ~padding & ~last
    wrong = inside & (targets != after)
    found.add("wrong", np.flatnonzero(wrong), batch, own)
    found.counts["inside"] += int(inside.sum())
    # A target in the same place is told from one two to the right at the last token too, where nothing follows.
    found.counts["same"] += int((targets == ids)[wrong | (last & has & ~padding)].sum())
    found.counts["second"] += int((targets == second)[wrong].sum())

    ends = np.flatnonzero(last & ~padding)
    in_row = ends[(ends + 1) % max(width, 1) != 0]
    before_padding = in_row[padding[in_row + 1]]
    joints = in_row[~padding[in_row + 1]]
    found.counts["joints"] += len(joints)
    goes_on = _goes_on(ids, targets, cu, sequence, lengths, ends[has[ends]], piece)
    if cut is None:
        hits = joints[has[joints] & (targets[joints] == after[joints]) & ~goes_on[joints]]
        found.add("unmasked boundary", hits, batch, own)
        into = before_padding[(targets == after)[before_padding] & ~goes_on[before_padding]]
        found.add("perhaps padding", into, batch, own)
        found.counts["ends before padding"] += len(before_padding)
    else:
        open_ends = ends[has[ends] & ~cut[piece[ends]] & ~goes_on[ends]]
        into = np.isin(open_ends, before_padding[(targets == after)[before_padding]])
        found.add("padding as target", open_ends[into], batch, own)
        found.padding_targets.update(targets[open_ends[into]].tolist())
        found.add("unmasked boundary", open_ends[~into], batch, own)

    n_targets = int(has.sum())
    if n_targets != batch.n_target_tokens and "miscounted" not in found.first:
        found.first["miscounted"] = (
            f"batch {found.n_batches} says n_target_tokens={batch.n_target_tokens} and holds {n_targets} targets"
        )
    found.counts["miscounted"] += n_targets != batch.n_target_tokens
    # A sequence of one token has nothing to predict, whole or cut off: only longer ones are masked.
    per_piece = np.bincount(piece[has], minlength=len(sequence))
    silent = np.flatnonzero((sequence >= 0) & (lengths > 1) & (per_piece == 0))
    found.add("silent", cu[silent], batch, own)
    found.counts["long enough"] += int(((sequence >= 0) & (lengths > 1)).sum())
    if n_targets == 0 and not padding.all():
        found.counts["batches without"] += 1
        found.first.setdefault("batches without", f"batch {found.n_batches}")
    found.n_tokens += int((~padding).sum())
    found.n_padding += int(padding.sum())
    found.n_targets += n_targets
    found.n_batches += 1


def _goes_on(ids: Ints, targets: Ints, cu: Ints, sequence: Ints, lengths: Ints, ends: Ints, piece: Ints) -> Bools:
    """At which last tokens the target begins another piece of the same sequence in this batch: a legal cut."""
    full = np.flatnonzero((lengths > 0) & (sequence >= 0))
    begins = Counter(zip(sequence[full].tolist(), ids[cu[full]].tolist(), strict=True))
    legal = np.zeros(len(ids), bool)
    for end in ends.tolist():
        own = piece[end]
        key = (int(sequence[own]), int(targets[end]))
        legal[end] = begins[key] > (ids[cu[own]] == targets[end])
    return legal


def _report(found: _Found, pad_id: int | None, min_share: float) -> TargetReport:
    counts, first = found.counts, found.first
    if counts["perhaps padding"] * 2 > counts["ends before padding"]:
        first.setdefault("padding as target", first["perhaps padding"])
        counts["padding as target"] += counts["perhaps padding"]
    lines: dict[str, str] = {}
    if counts["padding as target"]:
        lines["padding as target"] = f"{_n(counts['padding as target'], 'target')}{_which_padding(found, pad_id)}"
    if counts["wrong"]:
        kind, what = _shift(counts)
        first[kind], counts[kind] = first["wrong"], counts["wrong"]
        lines[kind] = f"{counts['wrong']:,} of {_n(counts['inside'], 'target')} inside sequences {what}"
    if counts["unmasked boundary"]:
        lines["unmasked boundary"] = (
            f"{_n(counts['unmasked boundary'], 'last token')} of a sequence must predict the first of another "
            f"({_n(counts['joints'], 'boundary')} inside rows)"
        )
    findings = [f"{kind}: {what}; the first at {first[kind]}. {_REMEDY[kind]}" for kind, what in lines.items()]
    masked = ""
    if found.n_tokens and not found.n_targets:
        masked, what = "all masked", f"none of {_n(found.n_tokens, 'token')} has a target"
    elif found.n_targets < min_share * found.n_tokens:
        masked, what = "nearly all masked", f"only {found.n_targets:,} of {found.n_tokens:,} tokens have a target"
    if masked:
        counts[masked] = found.n_tokens - found.n_targets
        findings.append(f"{masked}: {what}. {_REMEDY[masked]}")
    if counts["miscounted"] and not findings:  # else it follows from what was found
        findings.append(
            f"miscounted: {_n(counts['miscounted'], 'batch')}; {first['miscounted']}. {_REMEDY['miscounted']}"
        )
    notes = []
    if counts["silent"] and found.n_targets:
        notes.append(
            f"{counts['silent']:,} of {_n(counts['long enough'], 'sequence')} teach nothing (no target, but real "
            f"tokens, not padding); the first at {first['silent']}"
        )
    if counts["batches without"] and found.n_targets:
        notes.append(f"{_n(counts['batches without'], 'batch')} without a target, first {first['batches without']}")
    names = [finding.partition(":")[0] for finding in findings]
    return TargetReport(
        found.n_batches,
        found.n_tokens,
        found.n_padding,
        found.n_targets,
        {name: counts[name] for name in names},
        tuple(findings),
        tuple(notes),
    )


_REMEDY = {
    "padding as target": "Padding teaches only padding: its target is -100.",
    "shifted twice": "Shift once, on whole sequences. A model that shifts by itself gets batch.to_huggingface().",
    "not shifted": "Position i must predict token i + 1: let make_targets shift.",
    "not the next token": "Make targets from the same ids, before anything is cut or packed.",
    "unmasked boundary": "Shift before packing, not after. Were sequences cut there, say which with cut.",
    "all masked": "The loss has nothing to learn from. Is the mask inverted, or the prompt's length the sequence's?",
    "nearly all masked": "Is the mask inverted? If prompts are that long, lower min_target_share.",
    "miscounted": "The loss divides by that count: let pad_collate or pack_collate build the batch.",
}


def _shift(counts: Counter[str]) -> tuple[str, str]:
    """The name that most wrong targets show, and what they are."""
    if counts["same"] * 2 > counts["wrong"] and counts["same"] > counts["second"]:
        return "not shifted", "are the token they stand at"
    if counts["second"] * 2 > counts["wrong"]:
        return "shifted twice", "are not the next token but the one after it"
    return "not the next token", "are some other token"


def _which_padding(found: _Found, pad_id: int | None) -> str:
    """What padding teaches, where that is one token; the pad id is known where padding holds one."""
    if len(found.padding_targets) != 1:
        return " on padding"
    (token,) = found.padding_targets
    known = found.padding_ids.keys() if pad_id is None else {pad_id}
    return f" on padding, all of them {token}" + (" (the pad id)" if known == {token} else "")


def _with_cuts(
    batches: Batch | Iterable[Batch], cut: BoolsLike | Sequence[BoolsLike] | None
) -> Iterator[tuple[Batch, Bools | None]]:
    single = isinstance(batches, Batch)
    if isinstance(batches, str | bytes | torch.Tensor | np.ndarray) or not (single or isinstance(batches, Iterable)):
        raise ValueError(f"batches must be a Batch or a list of them, got {shown(batches)}.")
    several = [batches] if isinstance(batches, Batch) else list(batches)
    cuts: list[Any] = [None] * len(several)
    if cut is not None:
        if not single and not (isinstance(cut, list | tuple) and len(cut) == len(several)):
            raise ValueError(f"cut must be a list of {len(several)} masks, one a batch, got {shown(cut)}.")
        cuts = [cut] if single else list(cut)
    for number, (batch, pieces) in enumerate(zip(several, cuts, strict=True)):
        if not isinstance(batch, Batch):
            raise ValueError(
                f"batches[{number}] must be a Batch, got {shown(batch)}. Let pad_collate or pack_collate build it."
            )
        name = "cut" if single else f"cut[{number}]"
        yield batch, None if pieces is None else as_bools(pieces, name, batch.boundaries.n_sequences, "sequence")


def _on_host(batch: Batch) -> list[Ints]:
    """ids, targets, cu_seqlens and sequence, fetched together: one wait for a GPU."""
    parts = [batch.input_ids, batch.targets, batch.boundaries.cu_seqlens, batch.sequence]
    both = torch.cat([part.flatten().long() for part in parts]).cpu().numpy()
    return np.split(both, np.cumsum([part.numel() for part in parts])[:-1])


def _n(count: int, what: str) -> str:
    plural = {"batch": "batches", "boundary": "boundaries"}.get(what, f"{what}s")
    return f"{count:,} {what if count == 1 else plural}"
