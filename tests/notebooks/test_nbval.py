"""Each notebook, executed anew, gives what is stored in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbval_run import NOTEBOOKS, nbval


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_stored_outputs_are_those_of_a_new_run(notebook: Path) -> None:
    verdict = nbval(notebook)
    assert verdict.ok, f"\n{verdict.report}"
