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


def test_the_figures_come_from_the_record() -> None:
    record = read_record("batching")
    chat = record["results"]["lengths"]["chat"]
    code = record["results"]["lengths"]["code"]
    sampler = record["results"]["sampler"]
    (joined,) = [c for c in code["fixed_chunks"] if c["capacity"] == 512 and c["across"]]

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    assert code["statistics"]["median"] < 70
    for claim in (
        f"{median(chat['padded_random']['valid_ratio']):.0%} → {median(chat['token_budget']['valid_ratio']):.0%}",
        f"{joined['documents_cut']:.0%} of functions",
        f"{median(sampler['epoch_s']):.1f} s",
        record["machine"]["cpu"],
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
