"""The README's claims are executed: its code runs, its figures come from the record, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mamba_lab.bench.record import read_record
from mamba_lab.course.curriculum import CURRICULUM

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_fifteen_lines_run() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 15
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    losses = [float(found) for found in re.findall(r"loss (\S+),", result.stdout)]
    assert len(losses) > 5
    assert losses[-1] < losses[0] - 0.3


def test_the_figures_come_from_the_records() -> None:
    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    chat = read_record("batching")["results"]["lengths"]["chat"]
    packing = read_record("packing")["results"]
    (packs,) = [c for c in packing["lengths"]["published"]["capacities"] if c["capacity"] == 2048]
    (buffer,) = [g for g in packs["greedy"] if g["buffer_size"] == 1024]
    (took,) = [g for g in packing["seconds"]["published"]["greedy_s"] if g["buffer_size"] == 1024]
    scans = read_record("operators")["results"]["peers"]["mambapy"]["timed"]
    (scan,) = [t for t in scans if t["threads"] == 2 and t["direction"] == "forward_backward"]
    model = read_record("model")["results"]
    ours, mambapy = model["ours"]["2048"]["packed"], model["peers"]["mambapy"]["2048"]
    short, theirs = model["ours"]["512"]["packed"], model["peers"]["transformers"]["512"]
    scans = read_record("operators-cuda")["results"]["timed"]
    (large,) = [t["parts"] for t in scans if (t["operator"], t["tokens"], t["channels"]) == ("ssm_pack", 65_536, 4096)]

    def scan_faster(direction: str) -> float:
        theirs, ours = (large[part]["seconds"][direction] for part in ("selective_scan_fn", "packed"))
        return median(theirs) / median(ours)

    steps = read_record("model-cuda")["results"]["timed"]

    def on_gpu(package: str, step: str) -> float:
        wanted = (package, step, "autocast", 16_384)
        keys = ("package", "step", "precision", "tokens")
        (found,) = [t for t in steps if tuple(t[key] for key in keys) == wanted]
        return 1 / median(found["seconds"])

    packed_step = on_gpu("mamba-lab", "packed")
    step_times = packed_step / on_gpu("mamba-ssm", "concat")
    for claim in (
        f"**{scan_faster('forward'):.1f} times** | faster than mamba-ssm's scan on 65,536 tokens forward, "
        f"{scan_faster('backward'):.1f} times backward",
        f"**{step_times:.1f} times** | the tokens per second of mamba-ssm's leaky concat",
        f"{packed_step / on_gpu('mamba-ssm', 'padding'):.0f} times those of padding",
        f"{packed_step / on_gpu('mamba-ssm', 'one_by_one'):.0f} times those of one sequence at a time",
        f"{median(chat['padded_random']['valid_ratio']):.0%} → {median(chat['token_budget']['valid_ratio']):.0%}",
        f"{packs['sequential']['padding_rate']:.1%} → {buffer['padding_rate']:.2%}",
        f"a million are packed in {median(took['seconds']):.2f} s",
        f"**{scan['times_ours']['median']:.0f} times** | faster than mambapy's parallel scan",
        f"**{median(mambapy['seconds']) / median(ours['seconds']):.1f} times** | faster than mambapy in a whole",
        f"{median(theirs['seconds']) / median(short['seconds']):.0f} times faster than Hugging Face's",
        *(read_record(name)["machine"]["cpu"] for name in ("batching", "packing", "operators", "model")),
    ):
        assert claim in README, claim


def test_the_map_agrees_with_the_curriculum() -> None:
    for entry in CURRICULUM:
        line = f"| [{entry.number} {entry.title}](notebooks/{entry.filename}) | {entry.question} | {entry.minutes} |"
        assert (line in README) == entry.written, line


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", README)
    paths = [first or second for first, second in targets]
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    anchors = re.findall(r"\]\(#([^)]+)\)", README)
    headings = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"(?m)^#+ (.+)$", README)}
    assert set(anchors) <= headings


def test_the_picture_says_what_it_shows() -> None:
    from mamba_lab.viz.schemes import alt_text

    assert f'alt="{alt_text()}"' in README
