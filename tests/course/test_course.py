from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from notebook_samples import code, md, printed, write_course

from mamba_lab.cli import main
from mamba_lab.course import course as module
from mamba_lab.course import notebooks as found
from mamba_lab.course.course import Outcome, prepare, run_course, table
from mamba_lab.course.notebooks import find_notebooks, read
from mamba_lab.course.offline import requests_of
from mamba_lab.course.run import Execution

HEAD = "# 02 Chunks\n\n> What do chunks of a fixed length cost?\n\n30 minutes · needs: 00 · next: 03"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "notebooks"
    monkeypatch.setattr(found, "notebooks_dir", lambda: folder)
    write_course(
        folder,
        n00_start=[md("# Free form with $x_1$"), code("print('zero')")],
        n02_chunks=[
            md(HEAD),
            code("print('two')", printed("stale\n"), count=7),
            code("1 / 0"),
            code("4", printed("leftover\n")),
        ],
        n03_later=[md("# 03"), code("print('three')")],
    )
    write_course(folder / "solutions", n00_start=[md("# solved"), code("print('solved')")])
    return tmp_path


def test_a_failing_cell_stops_the_course_and_everything_up_to_it_is_there(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = list((checkout / "notebooks").glob("*.ipynb"))
    before = {path.name: path.read_bytes() for path in sources}
    assert main(["course"]) == 1
    out, bar = capsys.readouterr()
    assert "02_chunks.ipynb stopped in cell 2: ZeroDivisionError: division by zero\n\n    1 / 0\n" in out
    rows = [line.split() for line in out[out.index("notebook ") :].splitlines()]
    assert [row[:2] + row[-1:] for row in rows[1:3]] == [
        ["00_start.ipynb", "1/1", "ok"],
        ["02_chunks.ipynb", "2/3", "FAILED"],
    ]
    assert rows[3] == ["03_later.ipynb", "not", "run"]
    assert rows[4][:2] == ["total", "3/4"]
    assert "02_chunks" in bar
    built = checkout / "build" / "course"
    assert sorted(path.name for path in built.iterdir()) == [
        "00_start.html",
        "00_start.ipynb",
        "02_chunks.html",
        "02_chunks.ipynb",
        "index.html",
    ]
    assert read(built / "02_chunks.ipynb").cells[1].outputs[0].text == "two\n"
    index = (built / "index.html").read_text()
    for shown in ("What do chunks of a fixed length cost?", "30", "failed", "not run", "ok, ", 'href="00_start.html"'):
        assert shown in index
    assert 'href="03_later.html"' not in index
    failed = (built / "02_chunks.html").read_text()
    assert "ZeroDivisionError" in failed
    assert "stale" not in failed
    assert "leftover" not in failed  # a cell that did not run shows nothing
    for path in built.glob("*.html"):
        assert requests_of(path.read_text()) == []
    assert {path.name: path.read_bytes() for path in sources} == before


def test_one_notebook_alone_keeps_the_others_earlier_pages(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["course", "--only", "0"]) == 0
    assert main(["course", "--only", "03"]) == 0
    index = (checkout / "build" / "course" / "index.html").read_text()
    assert 'href="00_start.html"' in index
    assert "earlier run" in index
    page = (checkout / "build" / "course" / "03_later.html").read_text()
    assert "← 00_start" in page  # 02 has no page, so no link to it
    assert "02_chunks.html" not in page


def test_solutions_run_when_asked_for(checkout: Path) -> None:
    out = checkout / "elsewhere"
    assert main(["course", "--only", "00", "--solutions", "--output", str(out)]) == 0
    assert 'href="../index.html"' in (out / "solutions" / "00_start.html").read_text()
    assert 'href="solutions/00_start.html"' in (out / "index.html").read_text()


def test_in_place_stores_outputs_in_a_form_that_lasts(checkout: Path) -> None:
    path = checkout / "notebooks" / "00_start.ipynb"
    assert main(["course", "--only", "00", "--in-place"]) == 0
    stored = read(path)
    assert stored.cells[1].outputs[0].text == "zero\n"
    assert stored.cells[1].execution_count == 1
    assert stored.cells[1].metadata == {}
    assert stored.metadata.language_info == {"name": "python"}
    before = path.read_bytes()
    assert main(["course", "--only", "00", "--in-place"]) == 0
    assert path.read_bytes() == before


def test_in_place_leaves_a_notebook_that_failed(checkout: Path) -> None:
    path = checkout / "notebooks" / "02_chunks.ipynb"
    before = path.read_bytes()
    assert main(["course", "--only", "02", "--in-place"]) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(("cuda", "kept"), [(False, "from a GPU\n"), (True, "fallback\n")])
def test_outputs_recorded_on_a_gpu_survive_a_machine_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: bool, kept: str
) -> None:
    monkeypatch.setattr(module, "_has_cuda", lambda: cuda)
    tags = ("gpu", "nbval-ignore-output")

    def notebook(*texts: str) -> NotebookNode:
        """A cell for the GPU and one for every machine; a cell that never ran has no text."""
        cells = [code("go()", tags=tags, count=1), code("walk()", count=2)]
        for cell, text in zip(cells, texts, strict=False):
            cell.outputs = [printed(text)]
        return nbformat.v4.new_notebook(cells=cells)

    def after(stored: NotebookNode) -> list[str]:
        module.store(notebook("fallback\n", "new\n"), stored, tmp_path / "00_a.ipynb")
        return [cell.outputs[0].text for cell in read(tmp_path / "00_a.ipynb").cells]

    assert after(notebook("from a GPU\n", "old\n")) == [kept, "new\n"]
    assert after(notebook()) == ["fallback\n", "new\n"]


def pretend(run: Callable[[], Execution], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "execute", lambda *args, **kwargs: run())


def test_after_ctrl_c_the_table_and_the_contents_are_still_there(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = iter([Execution(1, 1.0, [1.0])])

    def run() -> Execution:
        for result in results:
            return result
        raise KeyboardInterrupt

    pretend(run, monkeypatch)
    assert main(["course"]) == 130
    assert "02_chunks.ipynb" in capsys.readouterr().out
    assert "not run" in (checkout / "build" / "course" / "index.html").read_text()


def test_a_page_that_would_not_show_offline_is_a_failure(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_course(checkout / "notebooks", n03_later=[md("$\\nosuch$")])
    pretend(lambda: Execution(0), monkeypatch)
    outcomes = prepare(find_notebooks(checkout / "notebooks"))
    run_course(outcomes, checkout / "out", stream=io.StringIO())
    assert [outcome.ok for outcome in outcomes] == [True, True, False]
    assert "its page: 03_later" in str(outcomes[2].execution and outcomes[2].execution.failure)


@pytest.mark.parametrize(
    ("number", "cells", "warned"),
    [
        ("02", [19.0, 19.0], []),
        ("02", [21.0], ["cell 1 took 21 s, over 20 s"]),
        ("02", [15.0, 15.0, 15.0], ["the notebook took 45 s, over 40 s"]),
        ("11", [21.0, 90.0], []),
        ("11", [121.0], ["cell 1 took 121 s, over 120 s", "the notebook took 121 s, over 120 s"]),
    ],
)
def test_the_table_warns_of_what_takes_too_long(
    tmp_path: Path, number: str, cells: list[float], warned: list[str]
) -> None:
    write_course(tmp_path, **{f"n{number}_x": [md("a")]})
    outcome = Outcome(find_notebooks(tmp_path)[0], None, Execution(len(cells), sum(cells), cells))
    assert "warning" not in table([outcome])
    lines = [line for line in table([outcome], ledger=True).splitlines() if line.startswith("warning")]
    assert lines == [f"warning: {number}_x.ipynb: {text}" for text in warned]


def test_lint_lists_findings_and_executes_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["course", "--lint"]) == 1
    out = capsys.readouterr().out
    assert "02_chunks.ipynb: cell 2: execution count 7, expected 1." in out
    assert "03_later.ipynb: no solution notebook" in out
    assert not (checkout / "build").exists()


@pytest.mark.parametrize(
    "arguments", [["--only", "9"], ["--timeout", "-1"], ["--timeout", "soon"], ["--timeout", "nan"]]
)
def test_bad_arguments_are_named(checkout: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code_ = main(["course", *arguments])
    except SystemExit as error:
        code_ = int(str(error.code))
    assert code_ in (1, 2)
    assert arguments[1] in capsys.readouterr().err


def test_an_empty_course_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(found, "notebooks_dir", lambda: tmp_path)
    assert main(["course"]) == 1
    assert "there is no notebook in" in capsys.readouterr().err
