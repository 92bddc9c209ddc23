from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_notebook, new_output
from notebook_samples import code, md, printed

from mamba_lab.course.normalise import normalise, source_hash, without_outputs, write


def messy() -> nbformat.NotebookNode:
    result = new_output("execute_result", data={"text/plain": "3"}, execution_count=17)
    notebook = new_notebook(
        cells=[
            md("# A"),
            code("print(1)", printed("1"), printed("\n2\n"), tags=("gpu",), count=9),
            code("3", result, count=17),
            code(""),
        ],
        metadata={
            "kernelspec": {"name": "mine", "display_name": "Mine", "language": "python"},
            "language_info": {"name": "python", "version": "3.11.7"},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        },
    )
    notebook.cells[1].metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    notebook.cells[1].metadata["collapsed"] = True
    return notebook


def test_what_differs_between_machines_and_runs_is_gone() -> None:
    notebook = normalise(messy())
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    printing, naming, empty = notebook.cells[1:]
    assert printing.metadata == {"tags": ["gpu"]}
    assert [output.text for output in printing.outputs] == ["1\n2\n"]
    assert (printing.execution_count, naming.execution_count, empty.execution_count) == (1, 2, None)
    assert naming.outputs[0].execution_count == 2
    nbformat.validate(notebook)


def test_it_changes_nothing_the_second_time() -> None:
    once = normalise(messy())
    assert normalise(deepcopy(once)) == once


def test_ids_last_and_copied_ones_are_replaced_the_same_way_each_time() -> None:
    notebook = messy()
    ids = [cell.id for cell in notebook.cells]
    assert [cell.id for cell in normalise(deepcopy(notebook)).cells] == ids
    notebook.cells[2].id = notebook.cells[1].id
    del notebook.cells[3]["id"]
    first, second = (normalise(deepcopy(notebook)).cells for _ in range(2))
    assert [cell.id for cell in first] == [cell.id for cell in second]
    assert len({cell.id for cell in first}) == 4
    assert [cell.id for cell in first][:2] == ids[:2]


def test_a_copy_for_the_reader_has_no_outputs() -> None:
    notebook = without_outputs(messy())
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells[1:])
    nbformat.validate(notebook)


def test_the_hash_is_of_what_an_author_writes() -> None:
    assert source_hash(messy()) == source_hash(without_outputs(messy()))
    for change in ("source", "tags", "order"):
        other = messy()
        if change == "source":
            other.cells[0].source += "."
        elif change == "tags":
            other.cells[1].metadata.tags = []
        else:
            other.cells.reverse()
        assert source_hash(other) != source_hash(messy()), change


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00_a.ipynb"
    write(normalise(messy()), path)
    before = path.read_text()

    def full(self: Path, *args: object, **kwargs: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write(without_outputs(messy()), path)
    monkeypatch.undo()
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["00_a.ipynb"]
