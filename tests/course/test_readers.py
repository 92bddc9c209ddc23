from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from notebook_samples import code, md, printed, write_course

from mamba_lab.cli import main
from mamba_lab.course import notebooks as module
from mamba_lab.course.notebooks import read


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with notebooks 00 and 05, 05 with a solution."""
    folder = tmp_path / "notebooks"
    cells = [md("# 05"), code("import mamba_lab\nprint(1)", printed("1\n"), count=1)]
    write_course(folder, n00_start=[md("# 00")], n05_packing=cells)
    write_course(folder / "solutions", n05_packing=[md("# solved")])
    monkeypatch.setattr(module, "notebooks_dir", lambda: folder)
    return tmp_path


def update(checkout: Path, name: str = "05_packing", source: str = "# 05, better") -> None:
    path = checkout / "notebooks" / f"{name}.ipynb"
    notebook = read(path)
    notebook.cells[0].source = source
    nbformat.write(notebook, path)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.ipynb"))


def test_my_copies_what_is_missing_without_outputs(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["my"]) == 0
    my = checkout / "my"
    assert names(my) == ["00_start.ipynb", "05_packing.ipynb"]
    copy = read(my / "05_packing.ipynb")
    assert copy.cells[1].outputs == []
    assert copy.cells[1].execution_count is None
    assert copy.cells[1].source == "import mamba_lab\nprint(1)"
    assert "copied: 00_start.ipynb, 05_packing.ipynb" in capsys.readouterr().out


def test_my_never_overwrites(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = checkout / "my" / "05_packing.ipynb"
    mine.parent.mkdir()
    mine.write_text("my own work")
    assert main(["my"]) == 0
    out = capsys.readouterr().out
    assert "copied: 00_start.ipynb" in out
    assert "kept yours: 05_packing.ipynb" in out
    update(checkout)
    assert main(["my"]) == 0
    assert mine.read_text() == "my own work"


def test_my_does_not_write_through_a_dangling_link(checkout: Path) -> None:
    elsewhere = checkout / "elsewhere.ipynb"
    (checkout / "my").mkdir()
    (checkout / "my" / "00_start.ipynb").symlink_to(elsewhere)
    assert main(["my"]) == 0
    assert not elsewhere.exists()
    assert (checkout / "my" / "00_start.ipynb").is_symlink()


def test_an_update_of_the_course_is_told_and_the_readers_work_is_not(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["my"])
    mine = checkout / "my" / "05_packing.ipynb"
    notebook = read(mine)
    notebook.cells[1].source = "print(2)"
    nbformat.write(notebook, mine)
    capsys.readouterr()
    main(["my"])
    assert "changed" not in capsys.readouterr().out
    update(checkout)
    for _ in range(2):  # until it is reset
        main(["my"])
        out = capsys.readouterr().out
        assert "05_packing.ipynb has changed in the course since your copy" in out
        assert "`mamba-lab reset 05`" in out
    main(["reset", "05"])
    capsys.readouterr()
    main(["my"])
    assert "changed" not in capsys.readouterr().out


def test_new_stored_outputs_upstream_are_no_update(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["my"])
    path = checkout / "notebooks" / "05_packing.ipynb"
    notebook = read(path)
    notebook.cells[1].outputs = []
    nbformat.write(notebook, path)
    capsys.readouterr()
    main(["my"])
    assert "changed" not in capsys.readouterr().out


@pytest.mark.parametrize("argument", ["05", "5", "packing", "05_packing.ipynb"])
def test_reset_restores_one_and_keeps_the_old_one(
    checkout: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["my"])
    my = checkout / "my"
    (my / "05_packing.ipynb").write_text("first")
    (my / "00_start.ipynb").write_text("untouched")
    assert main(["reset", argument]) == 0
    assert "05_packing.ipynb is restored; yours is kept as 05_packing.kept-1.ipynb" in capsys.readouterr().out
    (my / "05_packing.ipynb").write_text("second")
    main(["reset", argument])
    assert (my / "05_packing.kept-1.ipynb").read_text() == "first"
    assert (my / "05_packing.kept-2.ipynb").read_text() == "second"
    assert read(my / "05_packing.ipynb").cells[1].source == "import mamba_lab\nprint(1)"
    assert (my / "00_start.ipynb").read_text() == "untouched"
    assert main(["my"]) == 0  # the kept ones lie in my/ and do not disturb


def test_reset_works_without_hard_links(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    main(["my"])
    my = checkout / "my"
    for text in ("first", "second"):
        (my / "05_packing.ipynb").write_text(text)
        assert main(["reset", "05"]) == 0
    assert (my / "05_packing.kept-1.ipynb").read_text() == "first"
    assert (my / "05_packing.kept-2.ipynb").read_text() == "second"


def test_reset_of_a_missing_copy_makes_it(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset", "05"]) == 0
    assert names(checkout / "my") == ["05_packing.ipynb"]
    assert "kept" not in capsys.readouterr().out


def test_reset_of_an_unknown_number_lists_what_exists(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset", "09"]) == 1
    assert "no notebook '09'; there are: 00_start, 05_packing" in capsys.readouterr().err
    assert not (checkout / "my").exists()


def test_solutions_come_only_when_asked_for(checkout: Path) -> None:
    main(["my"])
    assert "solutions/05_packing.ipynb" not in names(checkout / "my")
    assert main(["my", "--solutions"]) == 0
    assert "solutions/05_packing.ipynb" in names(checkout / "my")
    (checkout / "my" / "solutions" / "05_packing.ipynb").write_text("mine")
    main(["reset", "05"])
    assert "solutions/05_packing.kept-1.ipynb" in names(checkout / "my")


def test_another_folder_can_be_named(checkout: Path) -> None:
    main(["my", "--dir", str(checkout / "mine")])
    assert names(checkout / "mine") == ["00_start.ipynb", "05_packing.ipynb"]
    assert not (checkout / "my").exists()


def test_a_file_in_the_folders_place_and_a_broken_record_are_named(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "my").write_text("a file")
    assert main(["my"]) == 1
    assert "is a file; expected a folder" in capsys.readouterr().err
    (checkout / "my").unlink()
    main(["my"])
    record = checkout / "my" / ".copied.json"
    assert set(json.loads(record.read_text())) == {"00_start.ipynb", "05_packing.ipynb"}
    for broken in ("{", "[]"):
        record.write_text(broken)
        capsys.readouterr()
        assert main(["my"]) == 1
        assert ".copied.json cannot be read" in capsys.readouterr().err


def test_reset_of_an_untouched_copy_keeps_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["my"])
    my = checkout / "my"
    for _ in range(2):
        assert main(["reset", "05"]) == 0
    assert not list(my.glob("*.kept-*"))
    executed = read(my / "05_packing.ipynb")
    executed.cells[1].outputs = [nbformat.v4.new_output("stream", text="mine")]
    nbformat.write(executed, my / "05_packing.ipynb")
    assert main(["reset", "05"]) == 0
    assert [path.name for path in my.glob("*.kept-*")] == ["05_packing.kept-1.ipynb"]
