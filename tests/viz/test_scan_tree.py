from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from mamba_lab.example import LENGTHS, WORDS
from mamba_lab.viz.colours import DOCUMENT_COLOURS
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.scan_tree import fraction, number, pairs_of, scan_rounds, scan_tree

LETTERS = [len(word) for document in WORDS for word in document]


def states(lengths, x):
    out, t = [], 0
    for n in lengths:
        h = 0.0
        for _ in range(n):
            h = 0.5 * h + x[t]
            out.append(h)
            t += 1
    return out


def cells(fig, gid: str) -> list[tuple[int, float]]:
    return sorted((int(p.get_x()), round(p.get_y(), 2)) for p in fig.axes[0].patches if p.get_gid() == gid)


def arrows(fig, gid: str) -> list[int]:
    """The column of each."""
    return sorted(int(text.xyann[0]) for text in fig.axes[0].texts if text.get_gid() == gid)


@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (2, 0, 1), (5, 6), (7,), (1, 1, 1), (0, 16)])
def test_after_the_last_round_every_state_is_its_own_documents(lengths) -> None:
    x = [1.0 + t % 5 for t in range(sum(lengths))]
    rounds = scan_rounds(pairs_of(lengths, x))
    assert [b for _, b in rounds[-1]] == states(lengths, x), "powers of two: equal without rounding"
    assert all(a == 0 for a, _ in rounds[-1])
    assert len(rounds) - 1 == int(np.ceil(np.log2(len(x))))


def test_a_zero_stays_and_only_the_rest_of_a_document_is_open() -> None:
    rounds = scan_rounds(pairs_of(LENGTHS, LETTERS))
    assert [sum(a != 0 for a, _ in level) for level in rounds] == [12, 9, 5, 1, 0]
    for before, after in pairwise(rounds):
        for old, new in zip(before, after, strict=True):
            assert new == old or old[0] != 0, "a finished pair never changes"


def test_the_whole_tree_of_the_running_example() -> None:
    fig = scan_tree(LENGTHS, LETTERS)
    check_labels(fig)
    assert (len(cells(fig, "open")), len(cells(fig, "finished")), len(cells(fig, "empty"))) == (27, 53, 0)
    assert (len(arrows(fig, "carried")), len(arrows(fig, "stopped"))) == (18, 14)
    assert arrows(fig, "stopped").count(9) == 2, "D0 is offered C2 and then C1, and takes neither"
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts.count("×") == 14
    assert {"A0", "D6", "tokens", "round 4", "10.4", "×1/16"} <= set(texts)


@pytest.mark.parametrize("lengths", [LENGTHS, (2, 0, 1), (5, 6), (1, 1, 1), (3, 13)])
def test_no_arrow_that_carries_crosses_a_wall(lengths) -> None:
    owner = np.repeat(np.arange(len(lengths)), lengths)
    levels = scan_rounds(pairs_of(lengths, [1.0] * len(owner)))
    stopped = 0
    for k, before in enumerate(levels[:-1]):
        for t, (a, _) in enumerate(before):
            left = t // 2**k * 2**k - 1
            if t // 2**k % 2:
                assert a == 0 or owner[left] == owner[t]
                stopped += a == 0
    assert len(arrows(scan_tree(lengths, [1] * len(owner)), "stopped")) == stopped


def test_finished_cells_have_the_documents_colour_and_open_ones_are_paler() -> None:
    ax = scan_tree([2, 1], [1, 1, 1], rounds=0).axes[0]
    found = {(p.get_gid(), int(p.get_x())): p.get_facecolor()[:3] for p in ax.patches if p.get_gid() != "empty"}
    blue, orange = to_rgb(DOCUMENT_COLOURS["A"]), to_rgb(DOCUMENT_COLOURS["B"])
    assert found["finished", 0] == pytest.approx(blue)
    assert found["finished", 2] == pytest.approx(orange)
    assert all(pale > full for pale, full in zip(found["open", 1], blue, strict=True))


def test_later_rounds_stay_empty_and_the_token_is_framed() -> None:
    fig = scan_tree([2, 2], [1, 2, 3, 4], rounds=1, token=3)
    assert len(cells(fig, "empty")) == 4
    assert (arrows(fig, "carried"), arrows(fig, "stopped")) == ([1, 3], [])
    (left, above), (right, below) = cells(fig, "framed")
    assert (left, right) == (2, 3)
    assert above < below
    assert len(cells(scan_tree([2, 2], [1, 2, 3, 4], rounds=1, token=2), "framed")) == 1


def test_numbers_are_short() -> None:
    assert [fraction(a) for a in (0.0, 1.0, 0.75, 2.0**-15, 0.3)] == ["0", "1", "3/4", "1/32768", "0.3"]
    assert number(10.390625) == "10.4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "expected 1 to 16 tokens"),
        (([17], [1] * 17), "expected 1 to 16 tokens"),
        (([2, -1], [1]), "expected 1 to 16 tokens"),
        (([2], [1]), "x has 1 numbers, expected 2"),
    ],
)
def test_what_is_wrong_is_named(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        scan_tree(*arguments)


def test_no_such_round_or_token() -> None:
    with pytest.raises(ValueError, match="rounds is 2: expected 0 to 1"):
        scan_tree([2], [1, 1], rounds=2)
    with pytest.raises(ValueError, match="token is 2: expected 0 to 1"):
        scan_tree([2], [1, 1], token=2)
