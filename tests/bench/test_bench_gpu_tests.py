"""The record of a GPU test run: counted from pytest's own report, and never of a run that did not happen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mamba_lab.bench import gpu_tests
from mamba_lab.bench.record import read_record

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.ops.test_a" name="test_one[x]" time="1.5"/>
<testcase classname="tests.ops.test_a" name="test_two" time="0.5"><failure message="no"/></testcase>
<testcase classname="tests.ops.test_b" name="test_three" time="0"><skipped message="no kernel"/></testcase>
NOT_IMPORTED
<testcase classname="tests.ops.test_b" name="test_four" time="9"><error message="no"/></testcase>
</testsuite></testsuites>"""


NOT_IMPORTED = '<testcase classname="" name="tests.viz.test_c" time="0"><error message="no module"/></testcase>'
GREEN = f'<testsuites><testcase classname="tests.ops.test_a" name="test_one"/>{NOT_IMPORTED}</testsuites>'


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.xml"
    path.write_text(REPORT.replace("NOT_IMPORTED", NOT_IMPORTED))
    return path


def test_counts_names_and_reasons(report: Path) -> None:
    found = gpu_tests.summary(report)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
    assert found["files"] == {
        "tests.ops.test_a": {"passed": 1, "failed": 1},
        "tests.ops.test_b": {"skipped": 1, "failed": 1},
    }
    assert found["failures"] == ["tests.ops.test_a::test_two", "tests.ops.test_b::test_four"]
    assert found["not_imported"] == ["tests.viz.test_c"]
    assert found["skip_reasons"] == {"no kernel": 1}
    assert next(iter(found["slowest_s"].items())) == ("tests.ops.test_b::test_four", 9.0)


def test_files_without_a_gpu_test_are_not_imported(tmp_path: Path) -> None:
    mark = "pytest.mark." + "gpu"  # in one piece this file would be one of them
    (tmp_path / "tests" / "ops").mkdir(parents=True)
    texts = {"ops/test_a.py": f"pytestmark = {mark}", "test_b.py": "gpu", "ops/help.py": mark}
    for name, text in texts.items():
        (tmp_path / "tests" / name).write_text(text)
    assert gpu_tests.files_with_gpu_tests(tmp_path) == ["tests/ops/test_a.py"]


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text("<testsuites>")
    with pytest.raises(ValueError, match=r"report\.xml is no JUnit report"):
        gpu_tests.summary(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_nothing_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no CUDA GPU here"):
        gpu_tests.run(output=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("report_of", "code"), [(REPORT, 1), (GREEN, 1), (GREEN.replace(NOT_IMPORTED, ""), 0)])
def test_the_record_and_the_exit_code(
    report_of: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pytest_run(command: list[str], **_: object) -> None:
        (found,) = (word.partition("=")[2] for word in command if word.startswith("--junitxml="))
        Path(found).write_text(report_of)
        ran.extend(command[command.index(f"--junitxml={found}") :])

    ran: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a played GPU")
    with monkeypatch.context() as patched:
        patched.setattr(gpu_tests.subprocess, "run", pytest_run)
        patched.setattr(gpu_tests, "write_record", lambda name, found, folder: _kept(name, found, folder))
        assert gpu_tests.run(output=tmp_path) == code
    assert read_record("gpu-tests", folder=tmp_path)["results"]["gpu"] == "a played GPU"
    assert "tests/ops/test_kernels_gpu.py" in ran


def _kept(name: str, found: dict[str, object], folder: Path) -> Path:
    import json

    path = folder / f"{name}.json"
    path.write_text(json.dumps({"results": found}))
    return path
