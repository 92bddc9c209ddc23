from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from mamba_lab.course.curriculum import CURRICULUM
from mamba_lab.viz.course_map import course_map


def test_a_box_a_notebook_an_arrow_a_need_and_dashes_for_what_is_not_written() -> None:
    ax = course_map().axes[0]
    boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert len(boxes) == len(CURRICULUM) == 16
    assert len(arrows) == sum(len(entry.needs) for entry in CURRICULUM)
    assert [box.get_linestyle() == "-" for box in boxes] == [entry.written for entry in CURRICULUM]
    words = " ".join(text.get_text() for text in ax.texts).replace("\n", " ")
    assert all(entry.number in words and f"{entry.minutes}'" in words for entry in CURRICULUM)


def test_no_two_boxes_share_a_place() -> None:
    ax = course_map().axes[0]
    corners = [(round(box.get_x(), 3), round(box.get_y(), 3)) for box in ax.patches if isinstance(box, FancyBboxPatch)]
    assert len(set(corners)) == len(corners)
