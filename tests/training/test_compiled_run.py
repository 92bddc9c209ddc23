"""A compiled run: the same losses, and no batch is compiled for because its sequences differ in number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compile_help import both, losses

COMPILE = torch.compile


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C++ that the compiler writes at its end: its graphs and its guards are the same."""
    monkeypatch.setattr(torch, "compile", lambda model: COMPILE(model, backend="aot_eager"))


@pytest.mark.parametrize(
    "sections",
    [{}, {"loss": {"weighting": "sequence"}, "training": {"gradient_accumulation_steps": 2}}],
    ids=["token", "sequence"],
)
def test_packs_are_compiled_for_twice_at_most(tmp_path: Path, sections: dict[str, Any]) -> None:
    """Once as the first one is, once for any number of sequences, and never again."""
    found = both(tmp_path, packing={"capacity": 96, "rows": 2, "buffer_size": 16, "workers": 0}, **sections)
    assert found.shapes >= 5
    assert found.graphs[-1] <= 2
    assert len(found.graphs) >= 8
    assert losses(found.compiled) == pytest.approx(losses(found.plain), rel=1e-5)
    assert found.compiled.validation[0][1] == pytest.approx(found.plain.validation[0][1], rel=1e-5)
