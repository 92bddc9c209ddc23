import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.shares import share_rows


def test_pieces_are_parts_of_their_bar_and_named_where_they_fit() -> None:
    fig = share_rows({"token mean": [3, 1, 2, 6], "sequence mean": [1, 1, 1, 0]}, names=["A", "B", "C", "D"])
    check_labels(fig)
    ax = fig.axes[0]
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == pytest.approx([1 / 4, 1 / 12, 1 / 6, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 0])
    assert [patch.get_x() for patch in ax.patches[:4]] == pytest.approx([0, 1 / 4, 1 / 3, 1 / 2])
    assert [text.get_text() for text in ax.texts][:4] == ["A 25%", "B 8%", "C 17%", "D 50%"]
    assert ax.texts[7].get_text() == ""
    assert [label.get_text() for label in ax.get_yticklabels()] == ["token mean", "sequence mean"]


def test_a_narrow_piece_has_its_name_above_its_share_or_nothing() -> None:
    texts = share_rows({"mean": [93, 6, 1]}, names=["one", "two", "three"]).axes[0].texts
    assert [text.get_text() for text in texts] == ["one 93%", "two\n6%", ""]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({}, "shares is empty"),
        ({"mean": [1, 2, 3]}, r"shares\['mean'\] has 3 entries and names 2"),
        ({"mean": [1, -1]}, "expected numbers from 0 on"),
        ({"mean": [0, 0]}, "not all 0"),
    ],
)
def test_bad_shares_are_refused(shares: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share_rows(shares, names=["A", "B"])
