"""The rules of "What a notebook is" over the course's notebooks. tests/course shows that each rule can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from mamba_lab.course.curriculum import CURRICULUM
from mamba_lab.course.html import page
from mamba_lab.course.notebooks import Notebook, find_notebooks, read
from mamba_lab.course.offline import requests_of
from mamba_lab.course.outputs import MAX_BYTES
from mamba_lab.course.prose import blocks
from mamba_lab.course.rules import check_course, check_notebook

FOLDER = Path(__file__).parents[2] / "notebooks"
EVERY = find_notebooks(FOLDER, solutions=True)
LESSONS = [notebook for notebook in EVERY if not notebook.is_solution]


def listed(findings: list[object]) -> str:
    return "".join(f"\n{finding}" for finding in findings)


@pytest.mark.parametrize("notebook", EVERY, ids=str)
def test_the_notebook_keeps_the_rules(notebook: Notebook) -> None:
    findings = check_notebook(notebook)
    assert not findings, listed([*findings])


def test_the_course_as_a_whole_keeps_the_rules() -> None:
    findings = check_course(LESSONS)
    assert not findings, listed([*findings])


def test_the_notebooks_are_the_curriculums_first_ones_in_order() -> None:
    assert LESSONS, "notebooks/ is empty"
    planned = [entry.filename for entry in CURRICULUM]
    assert [notebook.path.name for notebook in LESSONS] == planned[: len(LESSONS)]


@pytest.mark.parametrize("notebook", EVERY, ids=str)
def test_the_page_opens_offline_and_is_small(notebook: Notebook) -> None:
    content = read(notebook.path)
    html = page(content, notebook.name)
    assert requests_of(html) == []
    assert len(html.encode()) <= MAX_BYTES
    written = [block for cell in content.cells if cell.cell_type == "markdown" for block in blocks(cell.source)]
    assert html.count("<math") == sum(len(block.formulas) for block in written)
