"""The row painter draws what plans and batches hold: cells, padding, cuts, walls, leaks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from mamba_lab.batching import PackingPlan, chunk_fixed, pack_collate, pad_collate
from mamba_lab.viz.colours import DOCUMENT_COLOURS, PADDING
from mamba_lab.viz.layout import rows_of, valid_ratio
from mamba_lab.viz.rows import draw_rows

LENGTHS = [4, 2, 3, 7]
SEQUENCES = [np.arange(n) + 10 * i for i, n in enumerate(LENGTHS, 1)]
WORDS = (
    ("The", "dog", "is", "hungry"),
    ("Read", "books"),
    ("People", "love", "music"),
    ("We", "walk", "to", "the", "beach", "every", "summer"),
)
PACK = PackingPlan.from_bins([[0, 1, 2, 3]], LENGTHS, 20)
STREAM = chunk_fixed(LENGTHS, 8, across=True)


def cells(ax) -> Counter:
    return Counter(to_hex(p.get_facecolor()).upper() for p in ax.patches if isinstance(p, Rectangle))


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def leaks(ax) -> int:
    return sum(patch.get_gid() == "leak" for patch in ax.patches)


def test_one_cell_a_token_and_hatched_padding() -> None:
    ax = draw_rows(PACK)
    expected = dict(zip(DOCUMENT_COLOURS.values(), LENGTHS, strict=True)) | {PADDING: 4}
    assert cells(ax) == expected
    hatched = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert {to_hex(p.get_facecolor()).upper() for p in hatched} == {PADDING}


def test_walls_with_boundaries_leaks_without() -> None:
    with_walls, without = draw_rows(PACK), draw_rows(PACK, boundaries=False)
    assert (texts(with_walls).count("reset"), leaks(with_walls)) == (3, 0)
    assert (texts(without).count("reset"), leaks(without)) == (0, 3)
    assert leaks(draw_rows(PACK, boundaries=False, leaks=False)) == 0


def test_a_cut_document_leaks_nothing_at_the_cut() -> None:
    """C goes on at the start of row 2; only A to B, B to C and C to D cross between documents."""
    first, second = rows_of(STREAM)[0]
    assert [(a.document, b.document) for a, b in first.leaks()] == [(0, 1), (1, 2)]
    assert [(a.document, b.document) for a, b in second.leaks()] == [(2, 3)]


def test_two_passages_of_one_document_side_by_side_are_a_leak() -> None:
    plan = PackingPlan.from_bins([[(3, 0, 3), (3, 5, 7)]], LENGTHS, 8)
    assert len(rows_of(plan)[0][0].leaks()) == 1
    follows_on = PackingPlan.from_bins([[(3, 0, 3), (3, 3, 7)]], LENGTHS, 8)
    assert not rows_of(follows_on)[0][0].leaks()


def torn(ax) -> int:
    return sum(len(line.get_xdata()) > 5 for line in ax.lines)


def test_torn_edges_on_both_sides_of_a_cut() -> None:
    assert torn(draw_rows(STREAM)) == 2
    assert torn(draw_rows(PACK)) == 0
    first_half = PackingPlan.from_bins([[(3, 0, 4)]], LENGTHS, 4)
    assert torn(draw_rows(first_half, lengths=LENGTHS)) == 1, "the other half lies in no row"


def test_words_where_they_fit_else_positions_else_letters() -> None:
    plan = chunk_fixed(LENGTHS, 7)
    assert "hungry" in texts(draw_rows(plan, words=WORDS))
    pack = draw_rows(PackingPlan.from_bins([[0, 1, 2, 3]], LENGTHS, 16), words=WORDS)
    assert [t for t in texts(pack) if t != "reset"][:6] == ["A0", "A1", "A2", "A3", "B0", "B1"]
    narrow = draw_rows(PackingPlan.from_bins([[0]], [40], 40))
    assert set(texts(narrow)) == {"A"}
    assert all(t.get_fontsize() >= 9 for ax in (pack, narrow) for t in ax.texts)


def test_a_cut_word_list_goes_on_in_the_next_row() -> None:
    ax = draw_rows(chunk_fixed(LENGTHS, 4), words=WORDS)
    assert texts(ax) == [word for document in WORDS for word in document]


def test_long_rows_are_bars() -> None:
    plan = PackingPlan.from_bins([[0, 1]], [300, 500], 1000)
    ax = draw_rows(plan)
    assert sum(isinstance(p, Rectangle) for p in ax.patches) == 3
    assert texts(ax)[:2] == ["A", "B"]


def test_groups_have_their_own_row_length() -> None:
    groups = [PackingPlan.from_bins([[1], [2]], LENGTHS, 3), PackingPlan.from_bins([[0], [3]], LENGTHS, 7)]
    assert [[row.length for row in group] for group in rows_of(groups)] == [[3, 3], [7, 7]]
    assert valid_ratio(groups) == 16 / 20
    assert cells(draw_rows(groups))[PADDING] == 4


def test_max_rows_draws_the_first_and_keeps_cuts() -> None:
    ax = draw_rows(STREAM, max_rows=1)
    assert sum(cells(ax).values()) == 8
    assert torn(ax) == 1


@pytest.mark.parametrize("plan", [PACK, chunk_fixed(LENGTHS, 7), chunk_fixed(LENGTHS, 3)])
def test_a_batch_is_drawn_as_its_plan(plan: PackingPlan) -> None:
    batch = pack_collate(plan, SEQUENCES, pad_id=0)
    assert cells(draw_rows(batch)) == cells(draw_rows(plan))
    assert texts(draw_rows(batch)) == texts(draw_rows(plan))
    assert valid_ratio(batch) == pytest.approx(1 - plan.padding_rate)


def test_words_from_token_ids() -> None:
    batch = pad_collate(SEQUENCES, pad_id=0)
    assert texts(draw_rows(batch, words=str))[:4] == ["10", "11", "12", "13"]
    with pytest.raises(ValueError, match="words is a function of token ids"):
        draw_rows(PACK, words=str)


def test_pad_id_inside_a_document_is_not_padding() -> None:
    batch = pad_collate([np.array([0, 0, 5]), np.array([7])], pad_id=0)
    assert [row.n_tokens for row in rows_of(batch)[0]] == [3, 1]


def test_nothing_to_draw() -> None:
    assert valid_ratio([]) == 1.0
    assert not draw_rows([]).patches
    with pytest.raises(ValueError, match="rows is a str"):
        draw_rows("rows")
