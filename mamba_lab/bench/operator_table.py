"""The operators' measurements on the CPU as a table for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def table(payload: Mapping[str, Any]) -> str:
    """The table of ``operators.measure``'s payload."""
    settings = payload["settings"]
    lines = [
        f"{settings['tokens']} tokens, {settings['channels']} channels, {settings['states']} states: milliseconds, "
        f"medians; in brackets against one sequence, round by round"
    ]
    for operator in ("ssm_pack", "conv1d_pack"):
        for dtype in dict.fromkeys(part["dtype"] for part in payload[operator]):
            lines += _operator(f"{operator}, {dtype}", [part for part in payload[operator] if part["dtype"] == dtype])
    rows: list[tuple[str, ...]] = [
        ("ssm_pack, published lengths", "sequences", "direction", "packed against one sequence", "again")
    ]
    for part in payload["published"]:
        against = [_ratio(part["against_one_sequence"][name]) for name in ("packed", "one_sequence_again")]
        direction = part["direction"].replace("_", "+")
        rows.append((f"{part['tokens']:,} tokens", str(len(part["lengths"])), direction, *against))
    lines += ["", *aligned(rows)]
    scale = payload["scale"]
    for form in ("one_sequence", "packed"):
        heads = ("against the smallest", "the same with pages kept")
        rows = [("tokens", "ns a token", *heads, "tensors, bytes a token", "process, bytes a token")]
        columns = (scale[form][name] for name in ("time", "time_with_pages_kept", "memory"))
        for time, kept, memory in zip(*columns, strict=True):
            tokens = time["tokens"]
            a_token = statistics.median(time["seconds"]) / (time["calls_a_sample"] * tokens)
            grown = memory["process_grew_by"]
            rows.append(
                (
                    f"{tokens:,}",
                    f"{a_token * 1e9:.0f}",
                    _ratio(time["seconds_a_token_against_the_smallest"]),
                    _ratio(kept["seconds_a_token_against_the_smallest"]),
                    f"{memory['peak_bytes'] / tokens:,.0f}",
                    "-" if grown is None else f"{grown / tokens:,.0f}",
                )
            )
        said = f"{scale['channels']} channels, {scale['threads']} threads, forward and backward"
        lines += ["", f"ssm_pack, {form.replace('_', ' ')}, {said}", *aligned(rows)]
    lines.append("")
    for name, peer in payload["peers"].items():
        if "skipped" in peer:
            lines.append(f"{name}: skipped, {peer['skipped']}")
            continue
        for one in peer["timed"]:
            median = {part: statistics.median(samples) for part, samples in one["seconds"].items()}
            lines.append(
                f"{name} {peer['version']}, {peer['function']}, {one['threads']} threads, "
                f"{one['direction'].replace('_', ' and ')}: {median['peer']:.3f} s, ours {median['ours']:.4f} s, "
                f"{_ratio(one['times_ours'], 1)} times ours"
            )
    if not payload["peers"]:
        lines.append("peers: not asked for")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([f"{row[0]:<{widths[0]}}", *(f"{word:>{w}}" for word, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _operator(title: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = [f"{part['direction'].replace('_', '+')}, {part['threads']} threads" for part in parts]
    rows = [(title, *heads)]
    for name in parts[0]["seconds"]:
        cells = [
            f"{statistics.median(part['seconds'][name]) * 1e3:.2f} ({_ratio(part['against_one_sequence'][name])})"
            for part in parts
        ]
        rows.append((name.replace("_", " "), *cells))
    return ["", *aligned(rows)]


def _ratio(quartiles: Mapping[str, float], digits: int = 3) -> str:
    low, middle, high = (quartiles[name] for name in ("lower_quartile", "median", "upper_quartile"))
    return f"{middle:.{digits}f}, {low:.{digits}f} to {high:.{digits}f}"
