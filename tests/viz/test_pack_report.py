import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.pack_report import pack_report


def test_lengths_above_and_padding_below() -> None:
    fig = pack_report([0, 5, 9, 900], {"padded": 0.75, "packed": 0.01}, capacity=64)
    check_labels(fig)
    top, bottom = fig.axes
    assert top.get_title(loc="left") == "3 documents, 914 tokens"
    assert sum(bar.get_height() for bar in top.patches) == 3
    assert list(top.lines[0].get_xdata()) == [64, 64]
    assert [bar.get_width() for bar in bottom.patches] == [0.75, 0.01]
    assert [label.get_text() for label in bottom.get_yticklabels()] == ["padded", "packed"]
    assert {text.get_text() for text in bottom.texts} == {"75.0%", "1.0%"}


def test_one_length_and_a_capacity_beyond_it_can_be_drawn() -> None:
    assert len(pack_report([7], {"packed": 0.5}, capacity=4096).axes) == 2


@pytest.mark.parametrize(("lengths", "padding"), [([], {"a": 0.1}), ([0], {"a": 0.1}), ([3], {})])
def test_nothing_to_draw_is_refused(lengths: list[int], padding: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least one length"):
        pack_report(lengths, padding, capacity=8)
