"""One rank's bins as a batch, and the check of a stream's first batches."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from mamba_lab.log import log_once

from ._stream_buffer import Bin
from .batch import IGNORE, Batch
from .collate import pack_collate
from .plan import PackingPlan
from .target_check import check_targets, masked_finding

# A batch, and which of its sequences are pieces that go on elsewhere.
Made: TypeAlias = "tuple[Batch, np.ndarray[Any, np.dtype[np.bool_]]]"


def collate_bins(
    bins: list[Bin], capacity: int, pad_id: int, pad_to_multiple_of: int | None, *, weighted: bool = False
) -> Made:
    """A row for each bin. ``batch.sequence`` has the documents' numbers in the data set."""
    pieces = [piece for one in bins for piece in one.pieces]
    place = {document: i for i, document in enumerate(dict.fromkeys(document for document, _, _ in pieces))}
    plan = PackingPlan(
        capacity,
        np.cumsum([0, *(len(one.pieces) for one in bins)], dtype=np.int64),
        np.array([place[document] for document, _, _ in pieces], np.int64),
        np.array([start for _, start, _ in pieces], np.int32),
        np.array([stop for _, _, stop in pieces], np.int32),
    )
    own_targets = any(document.targets is not None for document in place)
    batch = pack_collate(
        plan,
        [document.ids for document in place],
        pad_id=pad_id,
        targets=[document.all_targets() for document in place] if own_targets else None,
        weights=[document.all_weights() for document in place] if weighted else None,
        pad_to_multiple_of=pad_to_multiple_of,
    )
    real = batch.sequence >= 0
    sequence, cut = batch.sequence.clone(), np.zeros(len(real), bool)
    sequence[real] = torch.tensor([document.number for document, _, _ in pieces], dtype=torch.int64)
    cut[real.numpy()] = [stop < len(document.ids) for document, _, stop in pieces]
    return replace(batch, sequence=sequence), cut


@dataclass
class Taught:
    """What the steps looked at teach, on all ranks together: each rank counts the same and decides alike.

    Attributes:
        steps, tokens, targets: how many of each.
        wrong: the first target that is not the next token, in words; "" where there is none.
    """

    steps: int = 0
    tokens: int = 0
    targets: int = 0
    wrong: str = ""

    def add(self, ranks: list[list[Bin]]) -> None:
        """Count one step."""
        self.steps += 1
        for document, start, stop in (piece for bins in ranks for one in bins for piece in one.pieces):
            self.tokens += stop - start
            if document.targets is None:
                self.targets += stop - start - (stop == len(document.ids))
            else:
                part = document.targets[start:stop]
                after = np.append(document.ids[start + 1 : stop + 1], IGNORE)[: stop - start]
                self.targets += int(np.count_nonzero(part != IGNORE))
                bad = np.flatnonzero((part != IGNORE) & (part != after))
                if bad.size and not self.wrong:
                    self.wrong = f"document {document.number} has the target {part[bad[0]]} at {start + bad[0]}, " + (
                        f"where the next token is {after[bad[0]]}" if after[bad[0]] != IGNORE else "its last position"
                    )


def require_right_targets(made: list[Made], taught: Taught, pad_id: int, rank: int) -> None:
    """Check a rank's first batches, and so all other ranks', for targets that are wrong whatever the data.

    Raises:
        ValueError: ``check_targets`` found a mistake other than few targets, or finds one on another rank: a rank that
            went on alone would wait for that one for ever.
    """
    report = check_targets(
        [batch for batch, _ in made], pad_id=pad_id, cut=[cut for _, cut in made], min_target_share=0
    )
    findings = [finding for finding in report.findings if not finding.startswith("all masked")]
    if findings:
        first = "batch" if len(made) == 1 else f"{len(made)} batches"
        raise ValueError(
            f"check_targets finds mistakes in the first {first} of rank {rank}:\n{_listed(findings)}\n"
            f"If the targets are meant to be so, pass check_batches=0."
        )
    if taught.wrong:
        raise ValueError(
            f"check_targets finds mistakes in the first {_steps(taught)} of another rank: {taught.wrong}.\n"
            f"If the targets are meant to be so, pass check_batches=0."
        )


def require_targets(taught: Taught, min_share: float, *, whole: bool) -> None:
    """Check that the first steps teach something.

    Args:
        taught: of these steps.
        min_share: targets over tokens that are enough.
        whole: these are all that was to be looked at, from the start of the epoch. Otherwise they may be a stretch of
            long prompts, and a warning is all that they give.

    Raises:
        ValueError: too few targets in ``whole`` steps.
    """
    finding = masked_finding(taught.tokens, taught.targets, min_share)
    if not finding:
        return
    where = f"the first {_steps(taught)} of all ranks"
    if whole:
        raise ValueError(
            f"check_targets finds mistakes in {where}:\n{_listed([finding])}\n"
            f"If the targets are meant to be so, pass check_batches=0."
        )
    log_once(logging.WARNING, f"PackedStream: few targets in {where} after this start: {finding}")


def _steps(taught: Taught) -> str:
    return "step" if taught.steps == 1 else f"{taught.steps} steps"


def _listed(findings: list[str]) -> str:
    return "\n".join(f"- {finding}" for finding in findings)
