"""Plots draw the numbers they are given, and say what is wrong with numbers they cannot draw."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from mamba_lab.viz import diagrams, plots


def bars(fig) -> list[Rectangle]:
    return [p for p in fig.axes[0].patches if isinstance(p, Rectangle)]


def words(fig) -> list[str]:
    return [t.get_text() for ax in fig.axes for t in ax.texts]


def test_prediction_none_draws_the_measurement_only() -> None:
    fig = plots.prediction_bar(0.57, None, what="valid ratio", percent=True)
    assert [bar.get_width() for bar in bars(fig)] == [0.57]
    assert "your prediction" not in [t.get_text() for t in fig.axes[0].get_yticklabels()]


def test_prediction_is_dashed_and_hollow() -> None:
    fig = plots.prediction_bar(0.57, 0.8, what="valid ratio", percent=True)
    measured, predicted = bars(fig)
    assert (measured.get_width(), predicted.get_width()) == (0.57, 0.8)
    assert measured.get_linestyle() in ("-", "solid")
    assert predicted.get_linestyle() not in ("-", "solid")
    assert predicted.get_facecolor()[3] == 0
    assert words(fig) == ["57%", "80%"]


def test_a_spread_is_a_line_over_the_end_of_its_bar_and_the_number_stands_behind_it() -> None:
    fig = plots.prediction_bar({"a": 0.5, "b": 1.0}, 0.7, what="times", spread={"a": (0.4, 2.0)})
    ax = fig.axes[0]
    (line,) = ax.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.4, 2.0], [0, 0])
    number = next(text for text in ax.texts if text.get_text() == "0.5")
    assert number.xy == (2.0, 0)
    assert ax.get_xlim()[1] > 2
    with pytest.raises(ValueError, match="spread has 'c', which is none of measured: a, b"):
        plots.prediction_bar({"a": 0.5, "b": 1.0}, what="times", spread={"c": (1, 2)})


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (1.003, "1.00"), (0.9996, "1.00"), (-12.01, "-12.0"), (99.96, "100"), (0.505, "0.505")],
)
def test_a_number_that_is_rounded_to_an_integer_keeps_its_zeros(value: float, text: str) -> None:
    assert words(plots.prediction_bar(value, what="times")) == [text]


def test_a_wild_prediction_still_fits() -> None:
    fig = plots.prediction_bar(0.57, 80, what="valid ratio", percent=True)
    assert fig.axes[0].get_xlim()[1] > 80
    fig = plots.prediction_bar(5, -3, what="tokens")
    assert fig.axes[0].get_xlim()[0] <= -3
    with pytest.raises(ValueError, match="prediction is nan"):
        plots.prediction_bar(5, float("nan"), what="tokens")
    with pytest.raises(ValueError, match="measured is empty"):
        plots.prediction_bar({}, what="tokens")


def test_histogram_counts_each_document_once_and_marks_median_and_longest() -> None:
    lengths = [1, 5, 5, 80, 3000, 0]
    fig = plots.length_histogram(lengths, capacity=100)
    assert sum(bar.get_height() for bar in bars(fig)) == 5
    assert fig.axes[0].get_title(loc="left") == "6 documents, 1 of them empty"
    assert words(fig) == ["median 5", "longest 3,000", "capacity 100"]
    assert fig.axes[0].get_xscale() == "log"
    with pytest.raises(ValueError, match=r"lengths\['code'\]"):
        plots.length_histogram({"docs": [3], "code": []})


def test_grouped_bars_keep_heights_names_and_gaps() -> None:
    fig = plots.grouped_bars(
        {"padded": {"docs": 0.5, "code": 0.25}, "packed": {"code": 1.0}}, what="valid", percent=True
    )
    assert [bar.get_height() for bar in bars(fig)] == [0.5, 0.25, 1.0]
    assert len({bar.get_hatch() for bar in bars(fig)}) == 2, "the series differ without colour"
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["docs", "code"]
    with pytest.raises(ValueError, match="values is empty"):
        plots.grouped_bars({}, what="valid")


def test_next_token_bars_take_the_top_of_either() -> None:
    before = {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0}
    after = {"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.7}
    fig = plots.next_token_bars(before, after, top=1)
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["a", "d"]
    assert [bar.get_width() for bar in bars(fig)] == [0.5, 0.0, 0.1, 0.7]
    with pytest.raises(ValueError, match="before has no probability for 'c'"):
        plots.next_token_bars({"b": 1.0}, {"c": 1.0})


def test_loss_curves_smooth_with_the_mean_of_the_last() -> None:
    fig = plots.loss_curves({"run": [4.0, 2.0, 3.0, 5.0]}, smooth=2)
    pale, smooth = fig.axes[0].lines
    assert list(pale.get_ydata()) == [4.0, 2.0, 3.0, 5.0]
    np.testing.assert_allclose(smooth.get_ydata(), [4.0, 3.0, 2.5, 4.0])
    assert list(smooth.get_xdata()) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="curves"):
        plots.loss_curves({"run": []})


def test_a_loss_that_is_no_number_ends_its_line() -> None:
    fig = plots.loss_curves({"run": [4.0, 3.0, float("nan"), 2.0]}, smooth=2)
    smooth = fig.axes[0].lines[1].get_ydata()
    np.testing.assert_allclose(smooth[:2], [4.0, 3.5])
    assert np.isnan(smooth[2:]).all()


def test_state_strip_checks_its_lengths() -> None:
    fig = plots.state_strip({"a": [1.0, 2.0, 3.0]}, lengths=(1, 2))
    assert fig.axes[0].images[0].get_array().tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(ValueError, match="lengths add up to 4"):
        plots.state_strip([1.0, 2.0, 3.0], lengths=(2, 2))
    with pytest.raises(ValueError, match="runs of one length"):
        plots.state_strip({"a": [1.0], "b": [1.0, 2.0]})
    with pytest.raises(ValueError, match="words holds 1"):
        plots.state_strip([1.0, 2.0], words=[["one"]])


def test_recurrence_computes_each_state() -> None:
    fig = diagrams.recurrence([0.5, 0.5, 0], 2, [1, 3, -1])
    assert words(fig) == [
        "0.5 · 0 + 2 · 1 = 2",
        "0.5 · 2 + 2 · 3 = 7",
        "0 · 7 + 2 · (−1) = −2",
    ]
    dots = [line.get_xdata()[0] for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert dots == [2.0, 7.0, -2.0]
    with pytest.raises(ValueError, match="a has 2 numbers"):
        diagrams.recurrence([1, 2], 1, [1])
    with pytest.raises(ValueError, match="x is empty"):
        diagrams.recurrence(1, 1, [])


def test_block_marks_exactly_the_two_parts_that_look_back() -> None:
    said = words(diagrams.block_diagram())
    assert said.count("needs boundaries") == 2
    assert {"conv1d", "selective scan", "element-wise", "token-wise", "sequence-wise"} <= set(said)


def test_tokens_that_say_nothing_are_left_out_and_the_axis_can_be_fixed() -> None:
    before = {"a": 0.95, "b": 0.03, "c": 0.005, "d": 0.0}
    after = {"a": 0.004, "b": 0.03, "c": 0.005, "d": 0.96}
    ax = plots.next_token_bars(before, after, top=4).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "d"]
    assert ax.get_xlim()[1] < 1.09
    faint = plots.next_token_bars({"a": 0.001, "b": 0.002}, {"a": 0.001, "b": 0.002}).axes[0]
    assert [label.get_text() for label in faint.get_yticklabels()] == ["b"]
    fixed = plots.next_token_bars({"a": 0.2}, {"a": 0.1}, limit=1).axes[0]
    assert fixed.get_xlim() == (0, 1.09)
