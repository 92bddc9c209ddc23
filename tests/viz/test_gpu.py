import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.gpu import Timed, memory_spaces, times_and_floors, warp_lanes


def test_memory_spaces_from_far_to_near() -> None:
    fig = memory_spaces()
    check_labels(fig)
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts[::3] == ["global memory", "L2 cache", "shared memory", "registers"]


def test_lanes_name_their_channel_and_their_states() -> None:
    texts = [text.get_text() for text in warp_lanes(4).axes[0].texts]
    assert len(texts) == 64
    assert texts[:10] == ["0: A", "h0–3", "1: A", "h4–7", "2: A", "h8–11", "3: A", "h12–15", "4: B", "h0–3"]
    assert [text.get_text() for text in warp_lanes(16).axes[0].texts][1] == "h0"
    assert [text.get_text() for text in warp_lanes(1).axes[0].texts][-2:] == ["31: F2", "h0–15"]


@pytest.mark.parametrize("lanes", [0, 3, 64])
def test_lanes_that_do_not_fit_are_refused(lanes: int) -> None:
    with pytest.raises(ValueError, match="expected a divisor of 16 and of 32"):
        warp_lanes(lanes)


def test_a_bar_a_kernel_and_a_line_at_its_floor() -> None:
    fig = times_and_floors(
        {"forward": [Timed("ours", 1.5, 1.0), Timed("theirs", 6.0, 1.0)], "backward": [Timed("a", 1, 0)]}
    )
    check_labels(fig)
    first = fig.axes[0]
    assert [patch.get_width() for patch in first.patches] == [1.5, 6.0]
    assert [line.get_xdata()[0] for line in first.lines] == [1.0, 1.0]
    assert [label.get_text() for label in first.get_yticklabels()] == ["ours", "theirs"]
    assert fig.axes[1].get_title(loc="left") == "backward"


@pytest.mark.parametrize("groups", [{}, {"forward": []}])
def test_nothing_to_draw_is_refused(groups: dict[str, list[Timed]]) -> None:
    with pytest.raises(ValueError, match="expected at least one kernel in each"):
        times_and_floors(groups)
