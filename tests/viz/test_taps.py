import pytest
from matplotlib.colors import to_hex

from mamba_lab.example import LENGTHS, WORDS
from mamba_lab.viz.colours import CARD, DOCUMENT_COLOURS, LEAK
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.taps import tap_table


def texts(fig) -> list[str]:
    return [text.get_text() for text in fig.axes[0].texts]


def cells(fig) -> list[tuple[str, bool]]:
    """Fill and whether it is cut, of each cell below the tokens."""
    patches = [p for p in fig.axes[0].patches if p.get_gid() == "cut" or to_hex(p.get_edgecolor()) != "#1a1a1a"]
    return [(to_hex(p.get_facecolor()).upper(), p.get_gid() == "cut") for p in patches]


def test_taps_behind_a_start_are_cut_and_beyond_the_row_there_are_none() -> None:
    fig = tap_table([2, 2], 3)
    check_labels(fig)
    a, b = DOCUMENT_COLOURS["A"], DOCUMENT_COLOURS["B"]
    assert cells(fig) == [
        *[(a, False), (a, False), (b, False), (b, False)],  # the tokens
        *[(a, False), (a, False), (b, False), (b, False)],
        *[(a, False), (CARD, True), (b, False)],
        *[(CARD, True), (CARD, True)],
    ]
    assert texts(fig) == [
        *["token", "A0", "A1", "B0", "B1"],
        *["itself", "A0", "A1", "B0", "B1"],
        *["1 back", "A0", "A1", "B0"],
        *["2 back", "A0", "A1"],
        *["position", "0", "1", "0", "1"],
    ]


def test_a_cut_word_stands_above_its_stroke() -> None:
    ax = tap_table([1, 1], 2).axes[0]
    strokes = [line for line in ax.lines if to_hex(line.get_color()).upper() == LEAK]
    assert len(strokes) == 1
    word = [text for text in ax.texts if text.get_text() == "A0"][-1]
    assert word.get_zorder() > strokes[0].get_zorder()
    assert to_hex(word.get_color()) == "#1a1a1a"


def test_ahead_the_table_has_the_readers() -> None:
    fig = tap_table([2, 2], 3, ahead=True)
    assert texts(fig)[10:] == [
        *["1 ahead", "A1", "B0", "B1"],
        *["2 ahead", "B0", "B1"],
        *["tokens left", "1", "0", "1", "0"],
    ]
    assert [cut for _, cut in cells(fig)][8:] == [False, True, False, True, True]


def test_arrows_of_a_token_are_red_where_they_are_cut() -> None:
    plain, marked = tap_table([2, 2], 3), tap_table([2, 2], 3, token=3)
    arrows = marked.axes[0].patches[len(plain.axes[0].patches) :]
    assert [arrow.get_gid() for arrow in arrows] == [None, "cut"]
    assert [to_hex(arrow.get_edgecolor()).upper() == LEAK for arrow in arrows] == [False, True]
    behind = tap_table([2, 2], 3, token=0, ahead=True).axes[0].patches[len(plain.axes[0].patches) :]
    assert [arrow.get_gid() for arrow in behind] == [None, "cut"]


def test_a_wall_stands_at_each_start() -> None:
    walls = [line for line in tap_table([2, 1, 2], 1).axes[0].lines if line.get_linewidth() > 2]
    assert [line.get_xdata()[0] for line in walls] == [2, 3]


def test_words_stand_in_cells_that_have_room() -> None:
    assert texts(tap_table(LENGTHS[:3], 4, words=WORDS[:3]))[1:5] == ["They", "eat", "fresh", "fish"]
    assert texts(tap_table(LENGTHS, 4, words=WORDS))[1:5] == ["A0", "A1", "A2", "A3"]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 to 24 tokens"):
        tap_table([20, 5], 4)
    with pytest.raises(ValueError, match="expected 1 to 24 tokens"):
        tap_table([0], 4)
    with pytest.raises(ValueError, match="expected 1 to 24 tokens"):
        tap_table([3, -1], 4)
    with pytest.raises(ValueError, match="width is 0"):
        tap_table([2], 0)
    with pytest.raises(ValueError, match=r"lists of \[1\] words, expected \[2\]"):
        tap_table([2], 4, words=[["We"]])
    with pytest.raises(ValueError, match="token is 2: expected 0 to 1"):
        tap_table([2], 4, token=2)
