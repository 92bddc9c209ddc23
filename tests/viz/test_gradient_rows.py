from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex

from mamba_lab.example import LENGTHS, WORDS
from mamba_lab.viz.colours import CARD, DOCUMENT_COLOURS
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.gradient_rows import gradient_rows, states_and_gradients


def by_autograd(lengths, b, decay):
    a, leaves = torch.full((len(b),), decay, requires_grad=True), []
    end = 0
    for n in lengths:
        start, end = end, end + n
        h = torch.zeros(())
        for t in range(start, end):
            h = a[t] * h + b[t]
            h.retain_grad()
            leaves.append(h)
    torch.stack(leaves).sum().backward()
    return [h.item() for h in leaves], [h.grad.item() for h in leaves], a.grad.tolist()


@pytest.mark.parametrize("lengths", [(4, 2, 3), (1,), (2, 0, 1), (5, 1)])
def test_the_numbers_are_those_of_autograd(lengths) -> None:
    b = [1.0 + t % 4 for t in range(sum(lengths))]
    for mine, theirs in zip(states_and_gradients(lengths, b, 0.25), by_autograd(lengths, b, 0.25), strict=True):
        assert mine == pytest.approx(theirs)


def gids(fig, gid: str) -> int:
    return sum(thing.get_gid() == gid for thing in (*fig.axes[0].patches, *fig.axes[0].texts))


def test_arrows_stop_at_the_walls_in_both_directions() -> None:
    fig = gradient_rows(LENGTHS[:3], [1.0] * 9, words=WORDS[:3])
    check_labels(fig)
    assert (gids(fig, "right"), gids(fig, "left"), gids(fig, "stopped")) == (6, 6, 4)
    walls = [line for line in fig.axes[0].lines if line.get_linewidth() > 1.5]
    assert [line.get_xdata()[0] for line in walls] == [4, 6]


def test_arrows_point_the_way_they_are_called() -> None:
    patches = gradient_rows([2], [1.0, 1.0]).axes[0].patches
    left = next(p for p in patches if p.get_gid() == "left")
    assert left._posA_posB[0][0] > left._posA_posB[1][0]
    right = next(p for p in patches if p.get_gid() == "right")
    assert right._posA_posB[0][0] < right._posA_posB[1][0]


def test_the_framed_cells_are_a_product() -> None:
    def framed(token: int) -> list[tuple[int, float]]:
        ax = gradient_rows([2, 2], [4.0, 2.0, 6.0, 1.0], token=token).axes[0]
        return sorted((int(p.get_x()), round(p.get_y(), 2)) for p in ax.patches if p.get_gid() == "framed")

    (h, above), (g, middle), (da, below) = framed(1)
    assert (h, g, da) == (0, 1, 1)
    assert above < middle < below
    assert [t for t, _ in framed(2)] == [2, 2], "a first token found no state"


def test_cells_have_their_documents_colour_where_there_are_states() -> None:
    ax = gradient_rows([1, 1], [4.0, 2.0]).axes[0]
    fills = [to_hex(p.get_facecolor()).upper() for p in ax.patches if p.get_gid() == "cell"]
    a, b = DOCUMENT_COLOURS["A"], DOCUMENT_COLOURS["B"]
    assert fills == [a, b, a, b, CARD, CARD, CARD, CARD]


def test_words_stand_above_where_they_fit() -> None:
    def top(fig) -> list[str]:
        return [text.get_text() for text in fig.axes[0].texts][:3]

    assert top(gradient_rows([2], [1.0, 1.0], words=[["We", "cook"]])) == ["word", "We", "cook"]
    assert top(gradient_rows([2], [1.0, 1.0], words=[["We", "photosynthesise"]])) == ["token", "A0", "A1"]


def test_what_cannot_be_drawn_is_refused() -> None:
    for lengths in ([], [13], [2, -1]):
        with pytest.raises(ValueError, match="expected 1 to 12 tokens"):
            gradient_rows(lengths, [1.0] * max(0, sum(lengths)))
    with pytest.raises(ValueError, match="b has 1 numbers, expected 2"):
        gradient_rows([2], [1.0])
    with pytest.raises(ValueError, match=r"lists of \[1\] words, expected \[2\]"):
        gradient_rows([2], [1.0, 1.0], words=[["We"]])
    with pytest.raises(ValueError, match="token is 2: expected 0 to 1"):
        gradient_rows([2], [1.0, 1.0], token=2)
