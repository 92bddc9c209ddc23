"""The colours stay apart for every reader, and text on them can be read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mamba_lab.viz.colours import (
    CARD,
    DOCUMENT_COLOURS,
    GOOD,
    INK,
    LEAK,
    MUTED,
    PADDING,
    SERIES,
    document_colour,
    document_name,
)

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio, 1 to 21."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
def test_documents_padding_and_leak_stay_apart(sight: str) -> None:
    # Under 10 two patches side by side begin to look alike; 2.3 is just noticeable.
    for a, b in itertools.combinations([*DOCUMENT_COLOURS.values(), PADDING, LEAK], 2):
        distance = np.linalg.norm(lab(SIGHT[sight] @ linear(a)) - lab(SIGHT[sight] @ linear(b)))
        assert distance > 15, f"{a} and {b} under {sight}: {distance:.1f}"


def test_the_simulation_knows_a_bad_pair() -> None:
    red, green = "#D05050", "#7C8A2E"
    usual, blind = (
        np.linalg.norm(lab(SIGHT[s] @ linear(red)) - lab(SIGHT[s] @ linear(green))) for s in ("usual", "deuteranopia")
    )
    assert usual > 50
    assert blind < 15


def test_text_can_be_read() -> None:
    for ground in (*DOCUMENT_COLOURS.values(), PADDING, CARD):
        assert contrast(INK, ground) >= 4.5, ground
    for text in (MUTED, LEAK, GOOD):
        assert contrast(text, CARD) >= 4.5, text


def test_colours_show_on_light_and_on_dark_pages() -> None:
    for colour in DOCUMENT_COLOURS.values():
        assert contrast(colour, "#111111") >= 3, colour
        assert contrast(INK, colour) >= 3, "the outline of a cell"
    for colour in SERIES:
        assert contrast(colour, CARD) >= 3, colour


def test_names_go_on_after_z() -> None:
    assert [document_name(i) for i in (0, 3, 25, 26, 53)] == ["A", "D", "Z", "A2", "B3"]
    assert [document_colour(i) for i in range(4)] == list(DOCUMENT_COLOURS.values())
    assert document_colour(4) == document_colour(0)
    with pytest.raises(ValueError, match="index is -1"):
        document_colour(-1)
    with pytest.raises(ValueError, match="index is -1"):
        document_name(-1)
