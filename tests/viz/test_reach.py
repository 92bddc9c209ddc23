import pytest

from mamba_lab.viz.colours import LEAK
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.reach import reach_grid


def colours(fig, row: int, n: int) -> list[str]:
    from matplotlib.colors import to_hex

    return [to_hex(patch.get_facecolor()).upper() for patch in fig.axes[0].patches[row * n : (row + 1) * n]]


def test_what_crosses_the_start_is_red_and_crossed() -> None:
    heard = {"scan": [False, True, True, True], "scan with reset": [False, True, False, False]}
    fig = reach_grid(heard, 1, start=2)
    check_labels(fig)
    assert [c == LEAK.upper() for c in colours(fig, 0, 4)] == [False, False, True, True]
    assert LEAK.upper() not in colours(fig, 1, 4)
    assert [text.get_text() for text in fig.axes[0].texts] == ["×", "×"]


def test_without_a_start_nothing_is_a_leak() -> None:
    assert LEAK.upper() not in colours(reach_grid({"scan": [True, True]}, 0), 0, 2)


def test_rows_must_have_one_length_and_the_token() -> None:
    with pytest.raises(ValueError, match=r"lengths \[1, 2\]"):
        reach_grid({"a": [True], "b": [True, False]}, 0)
    with pytest.raises(ValueError, match="that have token 2"):
        reach_grid({"a": [True, False]}, 2)
