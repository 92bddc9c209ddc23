import math

import numpy as np
import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.four_numbers import NUMBERS, four_numbers

CALM = [(8.0 - i, 0.9, 900 + i, 1.0) for i in range(5)]


def test_a_row_a_run_and_a_panel_a_number() -> None:
    fig = four_numbers({"one": CALM, "two": CALM[:3]})
    check_labels(fig)
    assert [ax.get_ylabel() for ax in fig.axes[:4]] == list(NUMBERS)
    assert [fig.axes[i].get_title(loc="left") for i in (0, 4)] == ["one", "two"]
    assert list(fig.axes[0].lines[0].get_ydata()) == [8, 7, 6, 5, 4]
    assert list(fig.axes[6].lines[0].get_ydata()) == [900, 901, 902]


def test_a_line_marks_eighty_percent() -> None:
    (line,) = four_numbers({"one": CALM}).axes[1].lines[1:]
    assert list(line.get_ydata()) == [0.8, 0.8]


def test_a_jump_of_the_gradient_has_a_logarithmic_axis_and_what_is_no_number_a_cross() -> None:
    rows = [(math.nan if i == 3 else 1.0, 0.9, 10, 500.0 if i == 2 else 1.0) for i in range(5)]
    loss, _, _, norm = four_numbers({"one": rows}).axes
    assert norm.get_yscale() == "log"
    assert loss.get_yscale() == "linear"
    assert np.asarray(loss.collections[0].get_offsets())[:, 0].tolist() == [4]
    assert not norm.collections


@pytest.mark.parametrize(
    ("runs", "message"),
    [({}, "expected at least one run"), ({"a": []}, "at least one step"), ({"a": [(1, 2, 3)]}, "rows of 4 numbers")],
)
def test_what_cannot_be_drawn_is_refused(runs: dict[str, list[tuple[float, ...]]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        four_numbers(runs)  # type: ignore[arg-type]
