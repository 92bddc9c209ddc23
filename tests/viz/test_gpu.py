import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.gpu import Kernel, Timed, memory_spaces, roofline, times_and_floors, warp_lanes


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


def test_kernels_under_the_two_limits() -> None:
    kernels = [
        Kernel("ours", "forward", 4.0, 6e12),
        Kernel("theirs", "forward", 4.0, 2e12),
        Kernel("ours", "backward", 1.0, 1e12),
    ]
    fig = roofline(kernels, bytes_per_second=4e12, operations_per_second=8e12)
    check_labels(fig)
    (ax,) = fig.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    roof, *points = ax.lines
    xs, ys = [float(x) for x in roof.get_xdata()], [float(y) for y in roof.get_ydata()]
    assert (xs[1], ys[1]) == (2.0, 8e12), "the roof bends where both limits are met"
    assert ys[0] == xs[0] * 4e12
    assert ys[2] == 8e12
    assert [(p.get_xdata()[0], p.get_ydata()[0]) for p in points] == [(4.0, 6e12), (4.0, 2e12), (1.0, 1e12)]
    marks = [(p.get_marker(), p.get_color()) for p in points]
    assert marks[0][0] == marks[1][0] != marks[2][0], "a mark for each part"
    assert marks[0][1] == marks[2][1] != marks[1][1], "a colour for each name"
    labels = [text.get_text() for text in ax.texts]
    assert labels == [
        "exponentials: 8.00 · 10¹² a second",
        "memory: 4.00 TB a second",
        "ours, forward: 75%",
        "theirs, forward: 25%",
        "ours, backward: 25%",
    ]
    low, high = ax.get_ylim()
    assert low < 1e12
    assert high > 8e12


@pytest.mark.parametrize("kernels", [[], [Kernel("ours", "forward", 0.0, 1.0)], [Kernel("ours", "forward", 1.0, 0.0)]])
def test_kernels_without_a_place_are_refused(kernels: list[Kernel]) -> None:
    with pytest.raises(ValueError, match="expected at least one, with per_byte and per_second above 0"):
        roofline(kernels, bytes_per_second=1.0, operations_per_second=1.0)


@pytest.mark.parametrize("limits", [(0.0, 1.0), (1.0, 0.0)])
def test_limits_of_nothing_are_refused(limits: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        roofline([Kernel("ours", "forward", 1.0, 1.0)], bytes_per_second=limits[0], operations_per_second=limits[1])
