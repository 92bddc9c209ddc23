import pytest

from mamba_lab.viz.dots import dots
from mamba_lab.viz.figure import check_labels


def test_every_pair_is_a_dot_and_kinds_are_named() -> None:
    fig = dots(
        {"packs": ([1, 2, 3000], [0.5, 0.6, 0.7]), "batches": ([4], [0.1])}, xlabel="targets", ylabel="agreement"
    )
    check_labels(fig)
    (ax,) = fig.axes
    drawn = [[tuple(point) for point in kind.get_offsets().tolist()] for kind in ax.collections]
    assert drawn == [[(1, 0.5), (2, 0.6), (3000, 0.7)], [(4, 0.1)]]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["packs", "batches"]
    one, other = ax.collections
    assert one.get_facecolor().tolist() != other.get_facecolor().tolist()
    assert one.get_paths()[0].vertices.shape != other.get_paths()[0].vertices.shape
    assert ax.xaxis.get_major_formatter()(3000, 0) == "3,000"


def test_one_kind_needs_no_legend() -> None:
    assert not dots({"only": ([1], [2])}, xlabel="x", ylabel="y").legends


def test_what_does_not_fit_together_is_named() -> None:
    with pytest.raises(ValueError, match="kinds is empty"):
        dots({}, xlabel="x", ylabel="y")
    for x, y in (([1, 2], [1]), ([], [])):
        with pytest.raises(ValueError, match=r"kinds\['a'\] has . x and . y values"):
            dots({"a": (x, y)}, xlabel="x", ylabel="y")
