"""Rules about what is stored: outputs that hold on any machine, figures with caption and alt text, known tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .findings import Finding, Sheet, tags, text

if TYPE_CHECKING:
    from nbformat import NotebookNode

ALLOWED_TAGS = frozenset(
    {
        "nbval-ignore-output",
        "gpu",
        "raises-exception",
        "prediction",
        "exercise",
        "exercise-warm-up",
        "exercise-core",
        "exercise-stretch",
        "solution",
    }
)
MAX_BYTES = 2_000_000
SHORTEST_ALT = 20
_WIDGET = "application/vnd.jupyter.widget-view+json"
_TIMES = re.compile(r"\b(perf_counter|process_time|thread_time|monotonic|timeit|time\.time)\b")
_REASON = re.compile(_TIMES.pattern + r"|\bdoctor\b|\bcuda\b|widget|painter|interact", re.IGNORECASE)
_BOUNDS = re.compile(r"^\s*assert\b.*<", re.MULTILINE)
_TIME_SHOWN = re.compile(r"\d\s?(ms|µs|μs|us|ns|seconds?|secs?|minutes?|it/s|tokens/s|tokens per second)\b")
_PATH = re.compile(r"(?<![\w.])/(?:home|root|usr|tmp|opt|var|Users|private|mnt)/|\b[A-Za-z]:\\|site-packages")
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
_CAPTION = re.compile(r"Figure (\d+)\. \S")
_PICTURES = ("image/svg+xml", "image/jpeg", "image/gif", "application/pdf", "application/javascript")


def known_tags(sheet: Sheet) -> Iterator[Finding]:
    """Only the tags that mean something here; nothing is skipped, and lax spellings do not pass for the strict ones."""
    for index, cell in enumerate(sheet.cells):
        for tag in tags(cell):
            if tag not in ALLOWED_TAGS:
                yield sheet.at(index, f"the tag {tag!r} is not known", f"Use one of {', '.join(sorted(ALLOWED_TAGS))}")
        if "gpu" in tags(cell) and "nbval-ignore-output" not in tags(cell):
            yield sheet.at(index, "tagged gpu alone", "Add nbval-ignore-output")


def ignored_for_a_reason(sheet: Sheet) -> Iterator[Finding]:
    """An output is compared unless the cell times something, asks the machine, shows a widget or needs a GPU.

    Or it asserts bounds for what it prints: a trained model's numbers differ a little from machine to machine.
    """
    for index, cell in sheet.code:
        ignored = "nbval-ignore-output" in tags(cell)
        reason = _REASON.search(cell.source) or _BOUNDS.search(cell.source)
        if ignored and "gpu" not in tags(cell) and not reason:
            yield sheet.at(
                index,
                "its output is not compared, for no reason that shows",
                "Untag it and print what holds on any machine, or assert bounds for the trained model's numbers",
            )
        if ignored or not _compared(cell):
            continue
        if re.search(r"\bdoctor\b", cell.source):
            yield sheet.at(index, "shows this machine", "Tag it nbval-ignore-output")
        elif _TIMES.search(cell.source) or any(_TIME_SHOWN.search(shown) for shown in _texts(cell)):
            yield sheet.at(index, "shows a time that differs from run to run", "Tag it nbval-ignore-output")
        if any(_WIDGET in output.get("data", {}) for output in cell.outputs):
            yield sheet.at(index, "shows a widget, whose text differs between versions", "Tag it nbval-ignore-output")


def no_errors(sheet: Sheet) -> Iterator[Finding]:
    """No stored error, except where the cell is tagged ``raises-exception``; there, one must be stored."""
    for index, cell in sheet.code:
        errors = [output for output in cell.outputs if output.output_type == "error"]
        expected = "raises-exception" in tags(cell)
        if errors and not expected:
            yield sheet.at(index, f"ends in {errors[0].ename}: {errors[0].evalue}", "Mend it and run make notebooks")
        if expected and not errors:
            yield sheet.at(index, "tagged raises-exception, and nothing was raised", "Remove the tag or mend the cell")


def no_machine(sheet: Sheet) -> Iterator[Finding]:
    """No output carries a path or an address of the machine that made it."""
    for index, cell in sheet.code:
        for shown in _texts(cell):
            if match := _PATH.search(shown) or _ADDRESS.search(shown):
                around = shown[max(0, match.start() - 20) : match.end() + 20].replace("\n", " ")
                yield sheet.at(index, f"its output has {around!r}", "Print names, not paths or addresses")
                break


def figures(sheet: Sheet) -> Iterator[Finding]:
    """Every figure is a PNG with alt text and a caption ``Figure n. ...``, numbered from 1."""
    remedy = "Use mamba_lab.viz.figure.show(fig, caption=..., alt=...)"
    number = 0
    for index, cell in sheet.code:
        for output in cell.outputs:
            data = output.get("data", {})
            for kind in _PICTURES:
                if kind in data:
                    yield sheet.at(index, f"an output of type {kind}", f"Only PNG. {remedy}")
            if re.search(r"<(img|svg|script|iframe)\b", text(data.get("text/html", "")), re.IGNORECASE):
                yield sheet.at(index, "a picture or script inside HTML output", remedy)
            if "image/png" not in data:
                continue
            number += 1
            alt = output.get("metadata", {}).get("image/png", {}).get("alt") or ""
            if len(alt.strip()) < SHORTEST_ALT:
                yield sheet.at(index, f"a figure with alt text {alt!r}, at least {SHORTEST_ALT} characters", remedy)
            caption = _CAPTION.match(text(data.get("text/plain", "")))
            if not caption:
                yield sheet.at(index, "a figure without a caption 'Figure n. ...'", remedy)
            elif int(caption[1]) != number:
                yield sheet.at(index, f"Figure {caption[1]} is the {number}. figure", "Number them from 1 in order")


def size(sheet: Sheet) -> Iterator[Finding]:
    """A notebook, and so its page, opens at once."""
    import nbformat

    n_bytes = len(nbformat.writes(sheet.content).encode())
    if n_bytes > MAX_BYTES:
        yield sheet.whole(f"{n_bytes:,} bytes, at most {MAX_BYTES:,}", "Draw fewer or smaller figures")


def stubs_unsolved(sheet: Sheet) -> Iterator[Finding]:
    """In a notebook each exercise shows its check's ✗, in a solution its ✓: cards begin with that mark."""
    for index, cell in sheet.code:
        if sheet.is_solution and "solution" in tags(cell):
            expected, other, what = "✓", "✗", "a solution's check did not pass"
        elif not sheet.is_solution and any(tag.startswith("exercise-") for tag in tags(cell)):
            expected, other, what = "✗", "✓", "an exercise does not show as unsolved"
        else:
            continue
        marks = [shown[0] for shown in map(str.lstrip, _texts(cell)) if shown[:1] in ("✓", "✗")]
        if expected not in marks or other in marks:
            yield sheet.at(index, what, "See what its check says, mend it and run make notebooks")


def _compared(cell: NotebookNode) -> bool:
    """Whether nbval compares anything of this cell but a figure's constant caption."""
    return any("image/png" not in output.get("data", {}) for output in cell.outputs)


def _texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "stream":
            yield text(output.text)
        elif output.output_type == "error":
            yield "\n".join(output.traceback)
        else:
            yield from (text(value) for kind, value in output.data.items() if kind.startswith("text/"))
