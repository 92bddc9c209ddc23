"""A row and its forms: each value stands below its token, each edge below the edge that it counts."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from mamba_lab.batching import PackingPlan, pack_collate
from mamba_lab.example import LENGTHS, WORDS
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.forms import row_with_forms

PACK = PackingPlan.from_bins([[0, 1, 2, 3]], LENGTHS, 16)
PADDED = pack_collate(PackingPlan.from_bins([[0, 1]], [3, 2], 8), [[1, 2, 3], [4, 5]], pad_id=0)


def texts(ax: Axes) -> dict[str, tuple[float, float]]:
    """Where each text stands; of equal ones the last."""
    return {t.get_text(): t.get_position() for t in ax.texts}


def test_values_stand_below_their_tokens_and_edges_between_them() -> None:
    fig = row_with_forms(PACK, {"place": [f"p{t}" for t in range(16)]}, edges={"cu": [0, 4, 6, 9, 16]})
    check_labels(fig)
    ax = fig.axes[0]
    at = texts(ax)
    assert [at[f"p{t}"][0] for t in range(16)] == [t + 0.5 for t in range(16)]
    assert [at[str(place)][0] for place in (0, 4, 6, 9, 16)] == [0, 4, 6, 9, 16]
    assert at["A0"][1] < at["p0"][1] < at["16"][1], "the row, then the forms, then the edges"
    assert at["A0"][1] + 0.9 < at["p0"][1] < at["16"][1] - 0.9, "with room for a cell each"
    assert {"token", "place", "cu"} <= set(at)
    assert all(at[name][0] < 0 for name in ("token", "place", "cu"))


def test_everything_lies_on_the_page() -> None:
    for boundaries in (True, False):
        fig = row_with_forms(PACK, {"a": list(range(16))}, edges={"position_indices": [16]}, boundaries=boundaries)
        ax = fig.axes[0]
        bottom = ax.get_ylim()[0]
        assert max(t.get_position()[1] for t in ax.texts) < bottom - 0.3
        assert max(p.get_y() + p.get_height() for p in ax.patches if hasattr(p, "get_y")) <= bottom
        assert ax.get_position().x1 < 1
        assert ax.get_position().x0 > 0.1, "the names need room"


def walls(ax: Axes) -> list[float]:
    """The places of the lines across the lines below the row."""
    return [path.vertices[0][0] for lines in ax.collections for path in lines.get_paths()]


def test_walls_stand_at_starts_padding_too() -> None:
    assert walls(row_with_forms(PACK, {"a": [""] * 16}).axes[0]) == [4, 6, 9]
    assert walls(row_with_forms(PADDED, {"a": [""] * 8}).axes[0]) == [3, 5]
    assert walls(row_with_forms(PACK, {"a": [""] * 16}, boundaries=False).axes[0]) == []


def test_padding_begins_with_a_reset() -> None:
    resets = [text.get_position()[0] for text in row_with_forms(PADDED, {}).axes[0].texts if text.get_text() == "reset"]
    assert sorted(resets) == [3, 5]
    unknown = row_with_forms(PADDED, {}, boundaries=False).axes[0]
    assert "reset" not in [text.get_text() for text in unknown.texts]


def test_wrong_values_are_struck_out() -> None:
    fig = row_with_forms(PACK, {"a": list(range(16)), "b": list(range(16))}, crossed={"b": [3, 5]})
    cells = [p for p in fig.axes[0].patches if p.get_gid() == "crossed"]
    assert [p.get_x() for p in cells] == [3, 5]
    assert len({p.get_y() for p in cells}) == 1


def test_equal_edges_share_a_place() -> None:
    fig = row_with_forms(PACK, {}, edges={"cu": [0, 4, 4, 16]})
    assert texts(fig.axes[0])["4, 4"][0] == 4


def test_words_are_drawn_where_they_fit() -> None:
    short = PackingPlan.from_bins([[0, 1]], LENGTHS, 6)
    assert "fish" in texts(row_with_forms(short, {"a": [0] * 6}, words=WORDS).axes[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PackingPlan.from_bins([[0], [1]], [1, 1], 1), {}), "row holds 2 rows: expected one"),
        ((PackingPlan.from_bins([], [], 1), {}), "row holds 0 rows"),
        ((PACK, {"a": [0] * 15}), r"below\['a'\] has 15 values, expected 16"),
    ],
)
def test_wrong_input_is_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row_with_forms(*arguments)


@pytest.mark.parametrize("place", [-1, 17])
def test_an_edge_outside_the_row_is_named(place: int) -> None:
    with pytest.raises(ValueError, match=r"edges\['cu'\] is .* expected places from 0 to 16"):
        row_with_forms(PACK, {}, edges={"cu": [place]})


def test_arrows_go_where_they_are_asked_to() -> None:
    rows = row_with_forms(PACK, {"a": [""] * 16}, boundaries=False, arrows=[(3, 4), (3, 6)])
    check_labels(rows)
    gids = [p.get_gid() for p in rows.axes[0].patches]
    assert gids.count("arrow") == 2
    assert gids.count("leak") == 0
    without = row_with_forms(PACK, {"a": [""] * 16}, boundaries=False)
    assert [p.get_gid() for p in without.axes[0].patches].count("leak") == 3
    assert without.axes[0].get_ylim()[1] == 0
    assert rows.axes[0].get_ylim()[1] < 0, "room for the arrows"
    ends = [p._posA_posB for p in rows.axes[0].patches if p.get_gid() == "arrow"]
    assert [(a[0], b[0]) for a, b in ends] == [(3.5, 4.5), (3.5, 6.5)]
    with pytest.raises(ValueError, match=r"arrows has \(3, 16\): expected tokens from 0 to 15"):
        row_with_forms(PACK, {}, arrows=[(3, 16)])
