"""What a notebook stores: one output each for a picture and for a check, the same in every run."""

from __future__ import annotations

import base64
import os

import nbclient
import nbformat
import pytest

CELLS = (
    "from mamba_lab.exercises import Exercise, case\n"
    "from mamba_lab.viz.figure import show\n"
    "from mamba_lab.viz.plots import prediction_bar\n"
    "check = Exercise('Double', reference=lambda x: 2 * x, cases=[case(x=1)], hints=['Add.'])",
    "show(prediction_bar(0.5, None, what='valid ratio'), "
    "caption='Figure 1. A bar.', alt='One bar that reaches one half.')",
    "def double(x):\n    return None\n\ncheck(double)",
    "_ = check(lambda x: 3 * x)",
    "check.hint()",
    "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.set(xlabel='x', ylabel='y')\n"
    "show(fig, caption='Figure 2. An empty one.', alt='Two axes without anything.')",
)


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    client = nbclient.NotebookClient(nb, timeout=120, kernel_name="python3")
    client.create_kernel_manager()
    with client.setup_kernel(env=env):
        for index, cell in enumerate(nb.cells):
            client.execute_cell(cell, index)
    return nb


@pytest.mark.parametrize(("index", "caption"), [(1, "Figure 1. A bar."), (5, "Figure 2. An empty one.")])
def test_a_picture_is_one_display(notebook: nbformat.NotebookNode, index: int, caption: str) -> None:
    (output,) = notebook.cells[index].outputs
    assert output.output_type == "display_data"
    assert set(output.data) == {"image/png", "text/plain"}
    assert output.data["text/plain"] == caption
    assert set(output.metadata["image/png"]) == {"alt", "width"}
    assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")


@pytest.mark.parametrize(("index", "says"), [(2, "Not solved yet"), (3, "the answer is not the expected one")])
def test_a_check_is_one_display(notebook: nbformat.NotebookNode, index: int, says: str) -> None:
    (output,) = notebook.cells[index].outputs
    assert output.output_type == "display_data"
    assert set(output.data) == {"text/html", "text/plain"}
    assert says in output.data["text/plain"]
    assert says in output.data["text/html"]


def test_a_hint_is_text(notebook: nbformat.NotebookNode) -> None:
    (output,) = notebook.cells[4].outputs
    assert output.text == "Hint 1 of 1: Add.\n"
