"""A compiled run on a GPU: the same losses to rounding, and no batch is compiled for because its sequences differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compile_help import both, losses

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

PACKS = {"capacity": 96, "rows": 2, "buffer_size": 16, "workers": 0}


@pytest.mark.parametrize(
    ("bf16", "rel", "graphs", "more"),
    [
        (False, 1e-5, 2, {}),
        # One more: PyTorch 2.11 takes a number in a checkpointed block, here the longest sequence, for a constant until
        # it has seen another, and the first two batches may share it.
        (False, 1e-5, 3, {"gradient_checkpointing": True}),
        # Rounded at other places: a compiler joins what stands apart, and rounds at the end.
        (True, 1e-2, 2, {"gradient_accumulation_steps": 2}),
    ],
    ids=["float32", "checkpointing", "bfloat16"],
)
def test_packs_are_compiled_for_a_few_times_at_most(
    tmp_path: Path, bf16: bool, rel: float, graphs: int, more: dict[str, Any]
) -> None:
    found = both(
        tmp_path,
        packing=PACKS,
        training={"device": "cuda", "bf16": bf16, "warmup_steps": 3} | more,
        model={"d_model": 32, "n_layer": 2, "d_state": 16},
    )
    assert found.shapes >= 5
    assert len(found.graphs) >= 8
    assert found.graphs[-1] <= graphs, found.graphs
    assert losses(found.compiled) == pytest.approx(losses(found.plain), rel=rel)
    assert found.compiled.history[-1].loss < found.compiled.history[0].loss
