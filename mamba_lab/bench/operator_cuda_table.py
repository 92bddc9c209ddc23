"""The operators' measurements on a GPU as tables for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from mamba_lab.bench.operator_table import aligned

RIVALS = {"ssm_pack": "selective_scan_fn", "conv1d_pack": "causal_conv1d_fn_seq_idx"}
"""The peer's function that ours is compared with: the scan on tokens without boundaries, the convolution with them."""


def table(payload: Mapping[str, Any]) -> str:
    """The tables of ``operators_cuda.measure``'s payload: times beside the ceilings, then ours against the peers."""
    ceilings = payload["ceilings"]
    copy, exp2 = ceilings["copy_bytes_per_second"], ceilings["exp2_per_second"]
    said = "not measured (no Triton)" if exp2 is None else f"{exp2 / 1e12:.2f} T/s"
    lines = [f"ceilings: copy {copy / 1e12:.2f} TB/s (read and written), exp2 {said}", ""]
    rows = [("operator", "tokens", "channels", "part", "pass", "ms", "TB/s", "T exp/s", "of the nearer ceiling")]
    for one in payload["timed"]:
        for name, part in one["parts"].items():
            for direction, samples in part["seconds"].items():
                seconds = statistics.median(samples)
                rate = one["bytes"][direction] / seconds
                exps = None if one["exponentials"] is None else one["exponentials"] / seconds
                share = max(rate / copy, 0 if exps is None or exp2 is None else exps / exp2)
                words = (f"{seconds * 1e3:.3f}", f"{rate / 1e12:.2f}", "-" if exps is None else f"{exps / 1e12:.2f}")
                sizes = (f"{one['tokens']:,}", f"{one['channels']:,}")
                rows.append((one["operator"], *sizes, name, direction, *words, f"{share:.0%}"))
    lines += [*aligned(rows), "", *against(payload)]
    lines += [f"{name}: skipped, {why}" for name, why in payload["skipped"].items()]
    return "\n".join(lines)


def against(payload: Mapping[str, Any]) -> list[str]:
    """How many times faster ours is, packed, than the peer and than ours on one sequence; how large its errors are."""
    head = (
        "packed, times as fast",
        "tokens",
        "channels",
        "than",
        "forward",
        "backward",
        "both",
        "L2 error, worst ratio",
    )
    rows = [head]
    for one in payload["timed"]:
        parts, sizes = one["parts"], (f"{one['tokens']:,}", f"{one['channels']:,}")
        for rival in (RIVALS[one["operator"]], "one_sequence"):
            if rival in parts:
                mine, theirs = medians(parts["packed"]), medians(parts[rival])
                ratios = [theirs[direction] / mine[direction] for direction in ("forward", "backward", "both")]
                name, worst = ("-", 0.0) if rival == "one_sequence" else worst_ratio(one, rival)
                said = "-" if name == "-" else f"{worst:.3f} ({name})"
                rows.append((one["operator"], *sizes, rival, *(f"{ratio:.2f}" for ratio in ratios), said))
    return aligned(rows) if len(rows) > 1 else []


def medians(part: Mapping[str, Any]) -> dict[str, float]:
    """Median seconds of forward, of backward, and their sum."""
    found = {direction: statistics.median(samples) for direction, samples in part["seconds"].items()}
    return found | {"both": sum(found.values())}


def worst_ratio(one: Mapping[str, Any], rival: str) -> tuple[str, float]:
    """The tensor whose relative L2 error is largest in parts of the rival's on the same task, and that ratio."""
    mine = one["relative_l2"]["packed" if rival.endswith("seq_idx") else "one_sequence"]
    theirs = one["relative_l2"][rival]
    ratios = {name: mine[name] / max(theirs[name], 1e-300) for name in mine}
    name = max(ratios, key=lambda name: ratios[name])
    return ("y" if name == "y" else f"d{name}"), ratios[name]
