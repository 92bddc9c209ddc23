import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.loss_panels import loss_panels


def test_a_panel_a_part_with_shared_axes() -> None:
    fig = loss_panels({"one": {"right": [3.0, 2.0], "wrong": [3.0, 0.0]}, "two": {"right": [1.0]}, "three": {"a": [1]}})
    check_labels(fig)
    assert [ax.get_title(loc="left") for ax in fig.axes if ax.axison] == ["one", "two", "three"]
    assert [list(line.get_ydata()) for line in fig.axes[0].lines] == [[3.0, 2.0], [3.0, 0.0]]
    assert len({ax.get_ylim() for ax in fig.axes if ax.axison}) == 1
    first, second = fig.axes[0].lines
    assert first.get_linestyle() != second.get_linestyle()


@pytest.mark.parametrize("parts", [{}, {"one": {}}, {"one": {"right": []}}])
def test_nothing_to_draw_is_refused(parts: dict[str, dict[str, list[float]]]) -> None:
    with pytest.raises(ValueError, match="parts: expected panels"):
        loss_panels(parts)
