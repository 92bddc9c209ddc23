"""Look at batches' targets before training on them: which known mistake they show, how often, and where first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill
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
        share = ""
        if self.n_targets > self.n_tokens:
            share = " (more targets than tokens)"
        elif self.n_tokens:
            share = f" ({self.n_targets / self.n_tokens:.0%} of the tokens)"
        lines = [f"{_n(self.n_batches, 'batch')}, {_n(self.n_tokens, 'token')}, {_n(self.n_targets, 'target')}{share}"]
        # Filled to the width of a page: a longer line breaks inside a word in some notebooks.
        lines += [fill(f"- {finding}", 76, subsequent_indent="  ") for finding in self.findings or ("nothing found",)]
        lines += [fill(f"note: {note}", 76, initial_indent="  ", subsequent_indent="  ") for note in self.notes]
        return "\n".join(lines)


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
    - *miscounted*: ``n_target_tokens``, by which the loss is divided, is not the number of targets, and padding
      as target does not explain it. Whoever replaces targets replaces both.

    What is certain: padding is known from the boundaries, so a target there is a mistake, and so is one inside a
    sequence that is not the next token: repeated tokens never look shifted. What is statistical: the *name* of a wrong
    shift is what most of the wrong targets show. And the end of a sequence. A piece that goes on in another row or
    batch has a right target there, which can equal the neighbour's first token by chance. Pieces of which the rest is
    in these batches are recognised, others only by ``cut``; with ``cut``, this is certain too. Without it, a last
    token that has the pad id as target counts only where padding itself has targets, or where most last tokens
    before padding show it.

    What looks right here: a batch made with ``isolate=False``. Its targets are those of the isolated one; what leaks
    over its joints is the state, and a joint inside a sequence is nothing that this check knows of.

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
        self.first_at: dict[str, tuple[int, int]] = {}  # batch and flat position, to tell which is earlier
        self.padding_targets: Counter[int] = Counter()
        self.padding_ids: Counter[int] = Counter()
        # What last tokens must predict where it is wrong, or perhaps so; which of it is padding is known in the end.
        self.open_ends: Counter[int] = Counter()
        self.perhaps_ends: Counter[int] = Counter()

    def add(self, kind: str, positions: Ints, batch: Batch, sequence_at: Ints) -> None:
        self.counts[kind] += len(positions)
        if len(positions) and kind not in self.first:
            at, width = int(positions[0]), batch.input_ids.shape[1]
            self.first_at[kind] = (self.n_batches, at)
            owner = "padding" if sequence_at[at] < 0 else f"sequence {sequence_at[at]}"
            self.first[kind] = f"batch {self.n_batches}, row {at // width}, position {at % width} ({owner})"

    def add_ends(self, certain: bool, positions: Ints, targets: Ints, batch: Batch, sequence_at: Ints) -> None:
        """Last tokens by what they must predict, each token with its first place."""
        tokens, first, counts = np.unique(targets[positions], return_index=True, return_counts=True)
        for token, at, count in zip(tokens.tolist(), first.tolist(), counts.tolist(), strict=True):
            (self.open_ends if certain else self.perhaps_ends)[token] += count
            self.add(_end(certain, token), positions[at : at + 1], batch, sequence_at)

    def earliest(self, kinds: Iterable[str]) -> str:
        """The first place of several kinds."""
        return self.first[min((kind for kind in kinds if kind in self.first_at), key=self.first_at.__getitem__)]


def _end(certain: bool, token: int) -> str:
    return f"{'open' if certain else 'perhaps'} end {token}"


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
    found.counts["ends before padding"] += len(before_padding)
    found.counts["ends into padding"] += int(((targets == after)[before_padding] & ~goes_on[before_padding]).sum())
    joined = np.isin(ends, joints[targets[joints] == after[joints]])
    wrong_end = has[ends] & ~goes_on[ends] & (True if cut is None else ~cut[piece[ends]])
    # Where most targets are wrong anyway, a neighbour's first token among them is chance: the shift explains it.
    shifted = cut is None and 2 * int(wrong.sum()) > int(inside.sum())
    found.add("unmasked boundary", ends[wrong_end & joined & (not shifted)], batch, own)
    found.add_ends(cut is not None, ends[wrong_end & ~joined], targets, batch, own)

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
    counts = found.counts
    if found.n_batches == 1:  # which batch is no question then
        found.first = {kind: place.removeprefix("batch 0, ") for kind, place in found.first.items()}
    first = found.first
    lines: dict[str, str] = {}
    if padding := _padding_as_target(found, pad_id):
        lines["padding as target"] = padding
    others = found.open_ends.keys() - _pad_tokens(found, pad_id)
    if others:
        counts["unmasked boundary"] += sum(found.open_ends[token] for token in others)
        first["unmasked boundary"] = found.earliest(["unmasked boundary", *(_end(True, token) for token in others)])
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
    if masked := masked_finding(found.n_tokens, found.n_targets, min_share):
        counts[masked.partition(":")[0]] = found.n_tokens - found.n_targets
        findings.append(masked)
    if counts["miscounted"] and "padding as target" not in lines:  # a Batch has no room for those in its count
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
    "unmasked boundary": "Shift before packing, not after. Where a sequence was cut and goes on elsewhere, such a "
    "target is right: name those sequences with cut=, one flag each, and they do not count.",
    "all masked": "The loss has nothing to learn from. Is the mask inverted, or the prompt's length the sequence's?",
    "nearly all masked": "Is the mask inverted? If prompts are that long, lower min_target_share.",
    "miscounted": "The loss divides by that count: let pad_collate or pack_collate build the batch, or replace both.",
}


def masked_finding(n_tokens: int, n_targets: int, min_share: float) -> str:
    """The finding where too few tokens have a target; "" where enough have one."""
    if n_tokens and not n_targets:
        kind, what = "all masked", f"none of {_n(n_tokens, 'token')} has a target"
    elif n_targets < min_share * n_tokens:
        kind, what = "nearly all masked", f"only {n_targets:,} of {n_tokens:,} tokens have a target"
    else:
        return ""
    return f"{kind}: {what}. {_REMEDY[kind]}"


def _shift(counts: Counter[str]) -> tuple[str, str]:
    """The name that most wrong targets show, and what they are."""
    if counts["same"] * 2 > counts["wrong"] and counts["same"] > counts["second"]:
        return "not shifted", "are the token they stand at"
    if counts["second"] * 2 > counts["wrong"]:
        return "shifted twice", "are not the next token but the one after it"
    return "not the next token", "are some other token"


def _pad_tokens(found: _Found, pad_id: int | None) -> set[int]:
    """The tokens that stand for padding: the pad id, what padding holds, and what it must predict if that is one."""
    taught = found.padding_targets.keys() if len(found.padding_targets) == 1 else ()
    return {*found.padding_ids, *taught, *(() if pad_id is None else (pad_id,))}


def _padding_as_target(found: _Found, pad_id: int | None) -> str:
    """How many targets are padding's, and which; their count and first place are noted. "" where there is none."""
    counts, tokens = found.counts, _pad_tokens(found, pad_id)
    shown = counts["padding as target"] or counts["ends into padding"] * 2 > counts["ends before padding"]
    ends = [(certain, token) for certain in (True, False) if certain or shown for token in tokens]
    at_ends = Counter(dict.fromkeys(tokens, 0))
    for certain, token in ends:
        at_ends[token] += (found.open_ends if certain else found.perhaps_ends)[token]
    parts = []
    if counts["padding as target"]:
        parts.append(f"{_n(counts['padding as target'], 'target')} on padding")
    if at_ends.total():
        parts.append(f"{_n(at_ends.total(), 'last token')} of a sequence with padding as target")
    if not parts:
        return ""
    found.first["padding as target"] = found.earliest(["padding as target", *(_end(*end) for end in ends)])
    counts["padding as target"] += at_ends.total()
    taught = {token for token, count in (found.padding_targets + at_ends).items() if count}
    if len(taught) > 1:
        return " and ".join(parts)
    (token,) = taught
    known = found.padding_ids.keys() if pad_id is None else {pad_id}
    return " and ".join(parts) + f", all of them {token}" + (" (the pad id)" if known == {token} else "")


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
