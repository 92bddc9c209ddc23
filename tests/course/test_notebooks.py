from __future__ import annotations

from pathlib import Path

import pytest
from notebook_samples import md, write_course

from mamba_lab.course import notebooks as module
from mamba_lab.course.notebooks import Header, find_notebooks, notebooks_dir, parse_header, read, select


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_course(tmp_path, n05_packing=[md("a")], n00_start=[md("b")], n10_ssm_pack=[md("c")])
    write_course(tmp_path / "solutions", n05_packing=[md("s")])
    return tmp_path


def test_notebooks_come_in_course_order_and_solutions_after_them(folder: Path) -> None:
    (folder / "notes.txt").touch()
    assert [str(n) for n in find_notebooks(folder)] == ["00_start.ipynb", "05_packing.ipynb", "10_ssm_pack.ipynb"]
    assert [str(n) for n in find_notebooks(folder, solutions=True)][3:] == ["solutions/05_packing.ipynb"]


@pytest.mark.parametrize("name", ["5", "05", "packing", "05_packing", "05_packing.ipynb", "notebooks/05_packing.ipynb"])
def test_a_notebook_is_chosen_by_number_or_name(folder: Path, name: str) -> None:
    assert [n.name for n in select(find_notebooks(folder), [name])] == ["05_packing"]


def test_several_keep_the_courses_order(folder: Path) -> None:
    assert [n.number for n in select(find_notebooks(folder), ["10", "0"])] == ["00", "10"]


@pytest.mark.parametrize("name", ["7", "pack", "", "٥"])
def test_an_unknown_name_lists_what_exists(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="there are: 00_start, 05_packing, 10_ssm_pack"):
        select(find_notebooks(folder), [name])


def test_a_badly_named_file_and_a_second_number_are_errors(folder: Path) -> None:
    write_course(folder, n05_again=[md("a")])
    with pytest.raises(ValueError, match=r"05_again.ipynb and 05_packing.ipynb have the same number"):
        find_notebooks(folder)
    (folder / "05_again.ipynb").rename(folder / "Untitled.ipynb")
    with pytest.raises(ValueError, match=r"Untitled.ipynb: a notebook is called"):
        find_notebooks(folder)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "00_start.ipynb"
    path.write_text('{"cells": [')
    with pytest.raises(ValueError, match=r"00_start\.ipynb: not a readable notebook"):
        read(path)


def test_the_first_cell_is_read_with_and_without_links() -> None:
    facts = "35 minutes · needs: [00](00_a.ipynb), 01 · next: [03](03_c.ipynb)"
    head = parse_header(f"# 02 Some Title\n\n> What is this?\n\n{facts}\n")
    assert head == Header("02", "Some Title", "What is this?", 35, ("00", "01"), "03")
    alone = parse_header("# 00 A\n\n> B?\n\n5 minutes · needs: nothing · next: nothing")
    assert (alone.needs, alone.next) == ((), None)


def test_without_a_checkout_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "checkout_root", lambda: None)
    with pytest.raises(FileNotFoundError, match="Clone the repository"):
        notebooks_dir()
