import pytest
from matplotlib.patches import FancyArrowPatch

from mamba_lab.batching import PackingPlan
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.holes import holes


def plan(bins: list[list[int]], lengths: list[int]) -> PackingPlan:
    return PackingPlan.from_bins(bins, lengths, 9)


def outlines(fig):
    return [(p.get_x(), p.get_y(), p.get_width()) for p in fig.axes[0].patches if p.get_linewidth() == 2]


def arrows(fig):
    return [patch for patch in fig.axes[0].patches if isinstance(patch, FancyArrowPatch) and patch.get_gid() == "fits"]


def test_the_arrow_leads_from_a_later_document_to_the_hole_it_fits() -> None:
    fig = holes(plan([[0, 1], [2], [3]], [4, 2, 7, 3]))
    check_labels(fig)
    ax = fig.axes[0]
    assert ax.get_title(loc="left") == "16 tokens in 27 positions: 41% padding"
    assert outlines(fig) == [(6, 0.1, 3), (0, 2.1, 3)]
    assert len(arrows(fig)) == 1
    hatched = [(p.get_x(), p.get_width()) for p in ax.patches if p.get_hatch()]
    assert hatched == [(6, 3), (7, 2), (3, 6)]


def test_the_largest_document_that_fits_is_chosen() -> None:
    fig = holes(plan([[0], [1], [2], [3]], [8, 5, 1, 4]))
    assert outlines(fig) == [(5, 1.1, 4), (0, 3.1, 4)]


def test_a_filler_in_the_next_row_or_too_large_gets_no_arrow() -> None:
    assert not arrows(holes(plan([[0], [1]], [5, 4])))
    assert not arrows(holes(plan([[0], [1], [2]], [5, 9, 5])))


def test_only_the_first_rows_are_drawn_and_counted() -> None:
    fig = holes(plan([[0], [1], [2]], [9, 8, 1]), rows=2)
    assert fig.axes[0].get_title(loc="left") == "17 tokens in 18 positions: 6% padding"
    assert not arrows(fig)


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one of each"):
        holes(plan([], []))
    with pytest.raises(ValueError, match="rows is 0"):
        holes(plan([[0]], [4]), rows=0)
