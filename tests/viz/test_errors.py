import pytest

from mamba_lab.viz.errors import errors_by_length
from mamba_lab.viz.figure import check_labels


def test_each_line_is_drawn_and_named_at_its_end() -> None:
    fig = errors_by_length([4, 16], {"float32": [0.001, 0.0], "bfloat16": [0.001, 0.5]}, what="error")
    check_labels(fig)
    ax = fig.axes[0]
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.001, 1e-7], [0.001, 0.5]], "0 has no logarithm"
    assert [(text.get_text(), text.xy) for text in ax.texts] == [("float32", (16, 1e-7)), ("bfloat16", (16, 0.5))]
    assert [text.get_color() for text in ax.texts] == [line.get_color() for line in ax.lines]


def test_axes_are_logarithmic_and_in_percent() -> None:
    ax = errors_by_length([4, 16], {"a": [0.001, 0.5]}, what="error").axes[0]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == ("log", "log", "error")
    assert ax.yaxis.get_major_formatter()(0.01, 0) == "1%"


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="errors is empty"):
        errors_by_length([4], {}, what="error")
    with pytest.raises(ValueError, match=r"errors\['a'\] has 2 values, expected 1"):
        errors_by_length([4], {"a": [0.1, 0.2]}, what="error")
