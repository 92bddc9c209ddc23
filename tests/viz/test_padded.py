import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.padded import padded_rows


def test_bars_are_to_scale_and_the_title_counts() -> None:
    fig = padded_rows([4, 2, 0, 7])
    check_labels(fig)
    ax = fig.axes[0]
    assert ax.get_title(loc="left") == "13 real tokens in 28 positions: 46% valid"
    real, padding = ([bar.get_width() for bar in container] for container in ax.containers)
    assert real == [4, 2, 0, 7]
    assert padding == [3, 5, 7, 0]
    assert all(bar.get_hatch() for bar in ax.containers[1])


@pytest.mark.parametrize("lengths", [[], [0, 0], [-1, 2]])
def test_nothing_to_draw_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths: expected at least one row"):
        padded_rows(lengths)
