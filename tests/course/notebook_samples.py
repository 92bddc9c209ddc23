"""Small notebooks for the tests of the course's tools."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

# One transparent pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
assert base64.b64decode(PNG)[:4] == b"\x89PNG"


def md(source: str, *tags: str) -> NotebookNode:
    return new_markdown_cell(source, metadata={"tags": list(tags)} if tags else {})


def code(source: str, *outputs: NotebookNode, tags: tuple[str, ...] = (), count: int | None = None) -> NotebookNode:
    metadata = {"tags": list(tags)} if tags else {}
    return new_code_cell(source, outputs=list(outputs), metadata=metadata, execution_count=count)


def printed(text: str) -> NotebookNode:
    return new_output("stream", name="stdout", text=text)


def shown(data: dict[str, str], metadata: dict[str, object] | None = None) -> NotebookNode:
    return new_output("display_data", data=data, metadata=metadata or {})


def figure(caption: str = "Figure 1. Four documents.", alt: str = "Bars of height 4, 2, 3 and 7.") -> NotebookNode:
    return shown({"image/png": PNG, "text/plain": caption}, {"image/png": {"alt": alt, "width": 760}})


def card(mark: str) -> NotebookNode:
    return shown({"text/plain": f"{mark} count: said", "text/html": f"<div>{mark} count</div>"})


def numbered(cells: list[NotebookNode]) -> NotebookNode:
    """A notebook of ``cells``, executed in order."""
    count = 0
    for cell in cells:
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
    return new_notebook(cells=cells)


def lesson() -> NotebookNode:
    """A notebook that keeps every rule; its first cell is 02's."""
    return numbered(
        [
            md("# 02 Chunks\n\n> What do chunks of a fixed length cost?\n\n30 minutes · needs: 00 · next: 03"),
            code(
                "from mamba_lab import doctor\n\nprint(doctor.one_line())",
                printed("x\n"),
                tags=("nbval-ignore-output",),
            ),
            md("A **sequence** is the list of a text's tokens. Its state is $h_t = a_t h_{t-1}$, see `a[t]`."),
            code("print(1)", printed("1\n")),
            md("Here is the picture. What do you expect?"),
            code("my_prediction = None", tags=("prediction",)),
            code("draw()", figure()),
            md("## Exercise: warm-up (3 minutes)\n\nCount.", "exercise"),
            code("def count(n):\n    ...\n\n\n_ = check_count(count)", card("✗"), tags=("exercise-warm-up",)),
            md("## Exercise: core (10 minutes)\n\nAdd.", "exercise"),
            code("def add(n):\n    ...\n\n\n_ = check_add(add)", card("✗"), tags=("exercise-core",)),
            md("## Try your own text\n\nPut it in."),
            code("my_text = 'a b'"),
            md("## Next\n\nGo on with the next one."),
        ]
    )


def solved() -> NotebookNode:
    """The solutions of ``lesson``."""
    return numbered(
        [
            md("# 02 Chunks: solutions"),
            code(
                "def count(n):\n    return n\n\n\n_ = check_count(count)",
                card("✓"),
                tags=("solution", "exercise-warm-up"),
            ),
            md("The second one adds."),
            code(
                "def add(n):\n    return n + 1\n\n\n_ = check_add(add)", card("✓"), tags=("solution", "exercise-core")
            ),
        ]
    )


def write_course(folder: Path, **sources: list[NotebookNode]) -> Path:
    """A folder of notebooks; ``sources`` maps names such as ``n02_chunks`` to cells."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cells in sources.items():
        nbformat.write(new_notebook(cells=cells), folder / f"{name.removeprefix('n')}.ipynb")
    return folder
