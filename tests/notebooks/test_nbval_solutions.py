"""Each solution, executed anew, gives what is stored in it: its checks pass (test_rules.py sees the stored ticks)."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbval_run import SOLUTIONS, nbval


@pytest.mark.parametrize("notebook", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])
def test_the_stored_outputs_are_those_of_a_new_run(notebook: Path) -> None:
    verdict = nbval(notebook)
    assert verdict.ok, f"\n{verdict.report}"
