"""The model's measurements on a GPU as a table for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from mamba_lab.bench.operator_table import aligned


def table(payload: Mapping[str, Any]) -> str:
    """The tables of ``model_cuda.measure``'s payload."""
    rows = [("step", "precision", "tokens", "tokens/s", "ms", "peak GiB", "of concat's speed", "of its memory")]
    for one in payload["timed"]:
        sizes = (f"{one['package']}, {one['step']}", one["precision"], f"{one['tokens']:,}")
        if one["failed"]:
            rows.append((*sizes, one["failed"], "-", "-", "-", "-"))
            continue
        seconds = statistics.median(one["seconds"])
        peak = one["peak_bytes"]
        concat = found(payload, "concat", one["precision"], one["tokens"])
        faster = "-" if concat is None else f"{statistics.median(concat['seconds']) / seconds:.2f}"
        larger = "-" if concat is None or peak is None else f"{peak / concat['peak_bytes']:.3f}"
        said = "-" if peak is None else f"{peak / 2**30:.1f}"
        rows.append((*sizes, f"{one['tokens'] / seconds:,.0f}", f"{seconds * 1e3:.1f}", said, faster, larger))
    lines = [*aligned(rows), *padded_lines(payload)]
    for profile in payload["profiles"]:
        if not profile["busy_seconds"]:
            continue
        what = f"{profile['package']}, {profile['step']}, {profile['precision']}, {profile['tokens']:,} tokens"
        # The rest of a step the GPU waits, for the processor that queues its work.
        timed = found(payload, profile["step"], profile["precision"], profile["tokens"])
        whole = "" if timed is None else f" of {statistics.median(timed['seconds']) * 1e3:.1f} ms"
        lines += ["", f"{what}: the GPU works {profile['busy_seconds'] * 1e3:.1f} ms of a step{whole}"]
        shares = [("kind", "ms", "share of the GPU's time")]
        for kind, taken in profile["kinds"].items():
            shares.append((kind, f"{taken * 1e3:.2f}", f"{taken / profile['busy_seconds']:.1%}"))
        lines += aligned(shares)
    lines += [f"{name}: skipped, {why}" for name, why in payload["skipped"].items()]
    return "\n".join(lines)


def padded_lines(payload: Mapping[str, Any]) -> list[str]:
    """Packed against padding, draw by draw and over all: what padding costs depends on the lengths it meets."""
    lines = []
    for padded in payload["timed"]:
        packed = found(payload, "packed", padded["precision"], padded["tokens"])
        if padded["step"] != "padding" or packed is None:
            continue
        tokens, mine, theirs = padded["tokens"], 0.0, 0.0
        ours = {draw["seed"]: statistics.median(draw["seconds"]) for draw in packed["draws"]}
        rows = [("draw", "documents", "valid ratio", "packed, tokens/s", "padding, tokens/s", "times as fast")]
        for draw in padded["draws"]:
            fast = ours[draw["seed"]]
            said = (str(draw["seed"]), str(draw["sequences"]), f"{draw['valid_ratio']:.1%}", f"{tokens / fast:,.0f}")
            if draw["failed"]:
                rows.append((*said, draw["failed"], "-"))
                continue
            slow = statistics.median(draw["seconds"])
            rows.append((*said, f"{tokens / slow:,.0f}", f"{slow / fast:.2f}"))
            mine, theirs = mine + fast, theirs + slow
        if mine:
            times = f"packed is {theirs / mine:.2f} times as fast as padding over these draws"
            expected = payload["expected_valid_ratio"][str(tokens)]
            lines += ["", f"{tokens:,} tokens: {times}. Of many draws' padded batches {expected:.1%} are tokens."]
            lines += aligned(rows)
    return lines


def found(payload: Mapping[str, Any], step: str, precision: str, tokens: int) -> Mapping[str, Any] | None:
    """A part that was measured to its end, or None."""
    for one in payload["timed"]:
        if (one["step"], one["precision"], one["tokens"]) == (step, precision, tokens) and not one["failed"]:
            part: Mapping[str, Any] = one
            return part
    return None
