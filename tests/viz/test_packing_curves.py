import numpy as np
import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.packing_curves import how_far, padding_by_buffer, places


def test_padding_is_drawn_against_the_buffer_with_the_reference_across() -> None:
    fig = padding_by_buffer([64, 256], {"a": [0.1, 0.01], "b": [0.2, 0.05]}, reference=("published", 0.0046))
    check_labels(fig)
    ax = fig.axes[0]
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.1, 0.01], [0.2, 0.05], [0.0046, 0.0046]]
    assert list(ax.lines[0].get_xdata()) == [64, 256]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["a", "b", "published"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["64", "256"]


@pytest.mark.parametrize("rates", [{}, {"a": [0.1]}, {"a": [0.1, 0.0]}])
def test_rates_that_a_logarithm_cannot_show_are_refused(rates: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="rates"):
        padding_by_buffer([64, 256], rates)


def test_the_share_that_moved_at_most_so_far() -> None:
    fig = how_far({"64": [3, 0, 1, 2], "all": [10, 20]})
    check_labels(fig)
    first, second = fig.axes[0].lines
    assert list(first.get_xdata()) == [1, 1, 2, 3]  # a logarithm has no 0: unmoved stands with moved by one
    assert list(first.get_ydata()) == [0.25, 0.5, 0.75, 1.0]
    assert list(second.get_ydata()) == [0.5, 1.0]


def test_many_documents_make_few_points() -> None:
    fig = how_far({"all": np.arange(50_000)})
    x, y = fig.axes[0].lines[0].get_data()
    assert len(x) <= 4000
    assert (x[-1], y[-1]) == (49_999, 1.0)


@pytest.mark.parametrize("moves", [{}, {"a": []}, {"a": [-1]}, {"a": [float("nan")]}])
def test_moves_must_be_distances(moves: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="moves"):
        how_far(moves)


def test_places_in_data_and_in_training() -> None:
    fig = places({"64": [0, 2, 1], "all": [2, 1, 0]})
    check_labels(fig)
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["64", "all"]
    diagonal, points = fig.axes[0].lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 3]
    assert list(points.get_xdata()) == [0, 2, 1]
    assert list(points.get_ydata()) == [0, 1, 2]
    assert len(places({"all": np.arange(9000)}, most=100).axes[0].lines[1].get_xdata()) == 100


@pytest.mark.parametrize("orders", [{}, {"a": []}, {"a": [0, 0]}, {"a": [1, 2]}])
def test_an_order_has_every_place_once(orders: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match="orders"):
        places(orders)
