import numpy as np
import pytest
from matplotlib.colors import to_rgb

from mamba_lab.viz.curves import curves, panels, spread
from mamba_lab.viz.figure import check_labels


def test_lines_are_drawn_with_their_values_and_names() -> None:
    fig = panels([128, 256], {"docs": {"cut": [0.9, 0.5], "padding": [0.1, 0.2]}, "chat": {"cut": [0.4, 0.3]}},
                 xlabel="chunk (tokens)", ylabel="share", log=True, percent=True)  # fmt: skip
    check_labels(fig)
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["docs", "chat"]
    assert [list(line.get_ydata()) for line in fig.axes[0].lines] == [[0.9, 0.5], [0.1, 0.2]]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["cut", "padding"]
    assert fig.axes[0].get_xscale() == "log"


def test_one_line_needs_no_legend() -> None:
    assert not curves([1, 2], {"only": [3, 4]}, xlabel="x", ylabel="y").legends


def test_a_band_lies_behind_its_line_in_its_colour() -> None:
    fig = curves([1, 2], {"a": [3, 4], "b": [5, 6]}, xlabel="x", ylabel="y", bands={"b": ([4, 5], [7, 9])})
    (band,) = fig.axes[0].collections
    (path,) = band.get_paths()
    assert {tuple(point) for point in path.vertices} == {(1, 4), (2, 5), (2, 9), (1, 7)}
    assert band.get_zorder() < fig.axes[0].lines[1].get_zorder()
    assert np.allclose(band.get_facecolor()[0][:3], to_rgb(fig.axes[0].lines[1].get_color()))
    for wrong in ({"c": ([1, 2], [1, 2])}, {"a": ([1], [1, 2])}):
        with pytest.raises(ValueError, match="expected 2 lower and upper values of one of"):
            curves([1, 2], {"a": [3, 4]}, xlabel="x", ylabel="y", bands=wrong)


def test_lines_of_another_length_are_named() -> None:
    with pytest.raises(ValueError, match=r"lines\['b'\] has 1 values, expected 2"):
        curves([1, 2], {"a": [1, 2], "b": [1]}, xlabel="x", ylabel="y")
    with pytest.raises(ValueError, match="at least one line"):
        curves([1, 2], {}, xlabel="x", ylabel="y")


def test_the_spread_marks_the_value_and_the_guess_dashed() -> None:
    values = np.geomspace(1, 100, 50)
    without = spread(values, xlabel="x", ylabel="y", mark=10, mark_name="median")
    with_guess = spread(values, xlabel="x", ylabel="y", mark=10, mark_name="median", prediction=30)
    check_labels(with_guess)
    assert len(without.axes[0].lines) == 1
    marks = with_guess.axes[0].lines
    assert [line.get_xdata()[0] for line in marks] == [10, 30]
    assert [line.get_linestyle() for line in marks] == ["-", "--"]
    assert sum(patch.get_height() for patch in with_guess.axes[0].patches) == 50


@pytest.mark.parametrize("values", [[], [0.0, 1.0], [1.0, float("nan")]])
def test_the_spread_refuses_what_a_logarithm_cannot_show(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite numbers above 0"):
        spread(values, xlabel="x", ylabel="y", mark=1, mark_name="m")
    with pytest.raises(ValueError, match="prediction is 0"):
        spread([1.0], xlabel="x", ylabel="y", mark=1, mark_name="m", prediction=0)
