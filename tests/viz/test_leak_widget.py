"""The leak map's widget: its numbers come from autograd; its parts work without a browser."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from mamba_lab.viz.leak_map import count_leaks
from mamba_lab.viz.leak_widget import block_leaks, explore, leak_explorer

LENGTHS = (4, 2, 3, 7)


@pytest.mark.parametrize(
    ("convolution", "scan", "blocks", "leaks"),
    [
        (False, False, 1, 89),
        (True, False, 1, 89),
        (False, True, 1, 36),
        (True, True, 1, 0),
        (False, True, 2, 68),
        (False, True, 3, 89),
        (True, True, 3, 0),
    ],
)
def test_how_many_pairs_leak(convolution: bool, scan: bool, blocks: int, leaks: int) -> None:
    sizes = block_leaks(LENGTHS, reset_convolution=convolution, reset_scan=scan, blocks=blocks)
    assert count_leaks(sizes, LENGTHS) == (leaks, 89)
    assert (sizes[torch.ones(16, 16).triu(1).bool().numpy()] == 0).all(), "nobody hears the future"
    assert (sizes.diagonal() > 1).all(), "each block is added to its input, so a token hears itself loudly"


@pytest.mark.parametrize(("taps", "leaks"), [(1, 0), (2, 12), (4, 36)])
def test_the_convolution_leaks_as_far_as_it_looks(taps: int, leaks: int) -> None:
    sizes = block_leaks(LENGTHS, reset_convolution=False, reset_scan=True, taps=taps)
    assert count_leaks(sizes, LENGTHS)[0] == leaks


def test_a_map_leaves_the_readers_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = block_leaks((2, 1), reset_convolution=False, reset_scan=False)
    assert torch.equal(torch.rand(2), expected)
    assert (first == block_leaks((2, 1), reset_convolution=False, reset_scan=False)).all()


def test_the_sentence_names_who_is_heard() -> None:
    assert explore(LENGTHS, False, True, 1, 4, 9)[1] == ("36 of 89 forbidden pairs leak. Output D0 (framed) hears C.")
    assert explore(LENGTHS, False, True, 1, 4, 6)[1].endswith("Output C0 (framed) hears A and B.")
    assert explore(LENGTHS, True, True, 1, 4, 15)[1].endswith("Output D6 (framed) hears no other document.")


@pytest.mark.parametrize("lengths", [[], [41]])
def test_a_pack_must_fit_the_picture(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="expected 1 to 40 tokens"):
        explore(lengths, True, True, 1, 4, 0)


def test_boxes_and_sliders_change_picture_and_text() -> None:
    parts = leak_explorer().parts
    assert parts["text"].value.startswith("36 of 89")
    before = parts["image"].value
    parts["convolution"].value = True
    assert parts["text"].value.startswith("0 of 89")
    assert parts["image"].value != before
    assert Image.open(io.BytesIO(parts["image"].value)).format == "PNG"
    parts["convolution"].value = False
    parts["blocks"].value = 2
    assert parts["text"].value.startswith("68 of 89")
    parts["taps"].value = 1
    assert parts["text"].value.startswith("0 of 89")


def test_own_lengths_and_bad_ones() -> None:
    parts = leak_explorer([2, 3]).parts
    assert parts["output"].max == 4
    good = parts["image"].value
    parts["own"].value = "2, <b>"
    assert parts["text"].value.startswith("<b>✗</b> lengths has '&lt;b>'")
    assert parts["image"].value == good, "the last good picture stays"
    parts["output"].value = 4
    parts["own"].value = "1, 1"
    assert "Output B0" in parts["text"].value, "the output moves into the shorter pack"
