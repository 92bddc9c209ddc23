from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from matplotlib.colors import to_hex

from mamba_lab.batching import PackingPlan, pack_collate
from mamba_lab.viz.colours import CARD, DOCUMENT_COLOURS, LEAK
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import SMALL
from mamba_lab.viz.target_rows import draw_targets, fitting

BATCH = pack_collate(PackingPlan.from_bins([[0, 1]], [2, 2], 5), [[1, 2], [3, 4]], pad_id=9)


def drawn(batch) -> list[tuple[str, str]]:
    """Fill and edge of each cell, in the order of drawing: an input, then its target."""
    patches = draw_targets(batch, str).axes[0].patches
    return [(to_hex(p.get_facecolor()).upper(), to_hex(p.get_edgecolor()).upper()) for p in patches]


def test_targets_have_their_documents_colour_and_no_target_is_hollow() -> None:
    cells = drawn(BATCH)
    a, b = DOCUMENT_COLOURS["A"], DOCUMENT_COLOURS["B"]
    assert [fill for fill, _ in cells[1::2]] == [a, CARD, b, CARD, CARD]
    assert [fill for fill, _ in cells[:8:2]] == [a, a, b, b]
    assert LEAK not in [edge for _, edge in cells]
    texts = [t.get_text() for t in draw_targets(BATCH, str).axes[0].texts]
    assert texts == ["input", "target", "1", "2", "2", "3", "4", "4"]


def test_wrong_targets_are_marked() -> None:
    targets = torch.tensor([[2, 3, 1, -100, 9]])
    cells = drawn(replace(BATCH, targets=targets))
    assert [edge == LEAK for _, edge in cells[1::2]] == [False, True, True, False, True]
    texts = [t.get_text() for t in draw_targets(replace(BATCH, targets=targets), str).axes[0].texts]
    assert [text for text in texts if text.startswith("×")] == ["× 3", "× 1", "× 9"]


def test_each_row_may_have_a_title() -> None:
    plain, titled = draw_targets(BATCH, str), draw_targets(BATCH, str, titles=["one row"])
    assert titled.axes[0].texts[0].get_text() == "one row"
    assert titled.get_figheight() > plain.get_figheight()
    with pytest.raises(ValueError, match="titles has 2 entries, expected 1"):
        draw_targets(BATCH, str, titles=["one", "two"])


def test_a_word_too_wide_is_cut() -> None:
    assert fitting("cook", 100) == "cook"
    short = fitting("conversation", 40)
    assert short.endswith("…")
    assert text_width(short, SMALL) <= 40 < text_width(short[:-1] + "vv…", SMALL)
    assert fitting("wide", 1) == ""
