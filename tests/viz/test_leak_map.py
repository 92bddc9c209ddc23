import numpy as np
import pytest
from matplotlib.colors import to_rgb

from mamba_lab.viz.colours import DOCUMENT_COLOURS, LEAK
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.leak_map import count_leaks, forbidden, leak_maps

LENGTHS = (2, 0, 1)
CAUSAL = np.tri(3)


def cells(ax) -> dict:
    """Face colours of the filled cells by (output, input)."""
    found = [p for p in ax.patches if p.get_fill()]
    return {(int(p.get_y()), int(p.get_x())): p.get_facecolor()[:3] for p in found}


def test_forbidden_pairs_cross_documents_from_left_to_right() -> None:
    assert forbidden(LENGTHS).tolist() == [[False] * 3, [False] * 3, [True, True, False]]
    assert forbidden((4, 2, 3, 7)).sum() == 89


def test_leaks_are_counted_among_the_forbidden_pairs() -> None:
    assert count_leaks(CAUSAL, LENGTHS) == (2, 2)
    assert count_leaks(CAUSAL * [[1], [1], [0]], LENGTHS) == (0, 2)
    assert count_leaks(np.eye(3) * 1e-300, LENGTHS) == (0, 2)


def test_a_leak_is_red_and_crossed_and_a_zero_is_empty() -> None:
    ax = leak_maps({"scan": CAUSAL * [[1], [1], [1]]}, LENGTHS).axes[0]
    drawn = cells(ax)
    assert set(drawn) == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
    assert drawn[2, 0] == drawn[2, 1] == pytest.approx(to_rgb(LEAK))
    assert drawn[0, 0] == pytest.approx(to_rgb(DOCUMENT_COLOURS["A"]))
    crosses = [text.get_position() for text in ax.texts if text.get_text() == "×"]
    assert sorted((int(y), int(x)) for x, y in crosses) == [(2, 0), (2, 1)]
    assert ax.get_title(loc="left") == "scan: 2 of 2 leak"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["A", "C"], "an empty document has no place"


def test_weak_is_paler_and_never_invisible() -> None:
    sizes = np.array([[1.0, 0, 0], [1e-2, 1, 0], [0, 0, 1e-30]])
    drawn = cells(leak_maps({"m": sizes}, LENGTHS).axes[0])
    red = {place: colour[0] for place, colour in drawn.items()}
    assert red[0, 0] < red[1, 0] < 0.95, "document A is blue: more red is paler"
    assert drawn[2, 2] != pytest.approx(to_rgb("white"), abs=0.05)


def test_a_line_explains_the_shades() -> None:
    fig = leak_maps({"m": CAUSAL}, LENGTHS)
    (text,) = (text.get_text() for text in fig.texts)
    assert "logarithmic" in text
    assert "1/10,000" in text


def test_every_map_gets_a_square_of_its_own() -> None:
    names = ["one", "two", "three", "four"]
    fig = leak_maps(dict.fromkeys(names, CAUSAL), LENGTHS)
    check_labels(fig)
    assert [ax.get_title(loc="left").split(":")[0] for ax in fig.axes] == names
    boxes = [ax.get_position() for ax in fig.axes]
    assert all(0 < b.x0 < b.x1 < 1 and 0 < b.y0 < b.y1 < 1 for b in boxes)
    assert boxes[0].x1 < boxes[1].x0
    assert boxes[2].y1 < boxes[0].y0


def test_the_picked_output_is_framed() -> None:
    plain, framed = (leak_maps({"m": CAUSAL}, LENGTHS, picked=p).axes[0] for p in (None, 1))
    extra = [p for p in framed.patches if not p.get_fill() and p.get_width() == 3]
    assert [(p.get_y(), p.get_height()) for p in extra] == [(1, 1)]
    assert len(framed.patches) == len(plain.patches) + 1


@pytest.mark.parametrize(
    ("maps", "picked", "message"),
    [
        ({}, None, "maps is empty"),
        ({"m": np.eye(2)}, None, r"maps\['m'\] has shape \[2, 2\], expected \[3, 3\]"),
        ({"m": np.full((3, 3), np.nan)}, None, "negative size or NaN"),
        ({"m": -np.eye(3)}, None, "negative size or NaN"),
        ({"m": np.eye(3)}, 3, "picked is 3: expected an output from 0 to 2"),
    ],
)
def test_what_is_wrong_is_named(maps: dict, picked: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        leak_maps(maps, LENGTHS, picked=picked)
