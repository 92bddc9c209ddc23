"""`mamba-lab bench gpu-tests`: run every test that needs a GPU and record what came out, with machine and versions."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

from mamba_lab.bench.record import write_record
from mamba_lab.paths import checkout_root

SLOWEST = 5


def run(output: Path | None = None) -> int:
    """Run ``pytest -m gpu``, write the record ``gpu-tests``. Returns 0 when nothing failed, 1 otherwise.

    Args:
        output: the record's folder, ``data/results`` when None.

    Raises:
        ValueError: there is no GPU, no checkout, or pytest did not come to its end.
    """
    import torch

    root = checkout_root()
    if root is None:
        raise ValueError("the tests are in a checkout, and this package was installed from a wheel: clone the project")
    if not torch.cuda.is_available():
        raise ValueError("no CUDA GPU here: run this on a GPU host (mamba-lab doctor says what PyTorch sees)")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-n", "auto"] if _has_xdist() else []
        subprocess.run([*command, *files_with_gpu_tests(root)], cwd=root, check=False)
        if not report.exists():
            raise ValueError("pytest wrote no report: see what it printed above")
        found = summary(report)
    found["gpu"] = torch.cuda.get_device_name()
    print(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped on {found['gpu']}")
    if found["not_imported"]:
        print(f"not imported, so not looked at: {', '.join(found['not_imported'])}; pip install 'mamba-lab[dev]'")
    path = write_record("gpu-tests", found, folder=output)
    print(f"record: {path.parent.name}/{path.name}")
    return 0 if found["passed"] and not found["failed"] and not found["not_imported"] else 1


def files_with_gpu_tests(root: Path) -> list[str]:
    """The test files that use the mark "gpu": a GPU host need not have what all the others import."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in files if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]


def summary(report: Path) -> dict[str, Any]:
    """What a JUnit report says: counts by outcome and by file, what failed, why something was skipped.

    A file that could not be imported is no failed test: it is named under ``not_imported``.

    Raises:
        ValueError: the report is no JUnit XML.
    """
    try:
        found = list(ElementTree.parse(report).getroot().iter("testcase"))
    except ElementTree.ParseError as error:
        raise ValueError(f"{report.name} is no JUnit report: {error}") from None
    cases = [case for case in found if case.get("classname")]
    outcomes = [_outcome(case) for case in cases]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in cases]
    reasons = Counter(_reason(case) for case, outcome in zip(cases, outcomes, strict=True) if outcome == "skipped")
    files: dict[str, Counter[str]] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        files.setdefault(str(case.get("classname")), Counter())[outcome] += 1
    slowest = sorted(zip((float(case.get("time", 0)) for case in cases), names, strict=True), reverse=True)[:SLOWEST]
    return {
        **{outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")},
        "files": {name: dict(counts) for name, counts in sorted(files.items())},
        "not_imported": sorted(str(case.get("name")) for case in found if not case.get("classname")),
        "failures": [name for name, outcome in zip(names, outcomes, strict=True) if outcome == "failed"],
        "skip_reasons": dict(reasons),
        "slowest_s": {name: seconds for seconds, name in slowest},
    }


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def _reason(case: ElementTree.Element) -> str:
    found = case.find("skipped")
    return (found.get("message") or "no reason given") if found is not None else ""


def _has_xdist() -> bool:
    from importlib.util import find_spec

    return find_spec("xdist") is not None
