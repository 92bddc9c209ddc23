"""The scan stepper: its sentences are those of the recurrence, and its parts work without a browser."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from mamba_lab.example import LENGTHS, WORDS
from mamba_lab.viz.scan_widget import scan_stepper, step

LETTERS = [len(word) for document in WORDS for word in document]


@pytest.mark.parametrize(
    ("rounds", "token", "said"),
    [
        (0, 8, "Before the first round. C2 is the pair (1/2, 5)."),
        (3, 8, "Round 3. C2 is in a left half: its pair (1/2, 5) stays."),
        (4, 8, "Round 4. C2 takes in C1: (1/2 · 0, 1/2 · 7 + 5) = (0, 8.5). The zero of C1 survives: C2 is finished."),
        (2, 15, "Round 2. D6 takes in D4: (1/4 · 1/4, 1/4 · 6.5 + 8.5) = (1/16, 10.1)."),
        (
            *(1, 9),
            "Round 1. D0 takes in C2: (0 · 1/2, 0 · 5 + 1) = (0, 1). "
            "Its piece holds a start already, so nothing of C2 arrives.",
        ),
    ],
)
def test_what_is_said_of_a_step(rounds: int, token: int, said: str) -> None:
    assert step(LENGTHS, LETTERS, rounds, token)[1] == said


def test_sliders_change_picture_and_text() -> None:
    parts = scan_stepper().parts
    assert (parts["round"].max, parts["token"].max) == (4, 15)
    assert parts["text"].value == "Before the first round. C2 is the pair (1/2, 5)."
    seen = {parts["image"].value}
    for value in (1, 2, 3, 4):
        parts["round"].value = value
        assert parts["text"].value.startswith(f"Round {value}. C2")
        seen.add(parts["image"].value)
    assert len(seen) == 5
    assert Image.open(io.BytesIO(parts["image"].value)).format == "PNG"
    parts["token"].value = 15
    assert "D6 takes in C1" in parts["text"].value


def test_own_lengths_move_the_sliders_and_bad_ones_are_named() -> None:
    parts = scan_stepper([3, 2]).parts
    assert (parts["round"].max, parts["token"].max) == (3, 4)
    good = parts["image"].value
    parts["own"].value = "2, <b>"
    assert parts["text"].value.startswith("<b>✗</b> lengths has '&lt;b>'")
    parts["own"].value = "10, 7"
    assert "lengths add up to 17: expected at most 16" in parts["text"].value
    assert parts["image"].value == good, "the last good picture stays"
    parts["round"].value = 3
    parts["own"].value = "1, 1"
    assert (parts["round"].max, parts["token"].max) == (1, 1)
    assert parts["text"].value.startswith("Round 1. B0")
