"""The batch painter: its picture is a pure function; its parts work without a browser."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from mamba_lab.batching import PackingPlan
from mamba_lab.viz import schemes
from mamba_lab.viz.schemes import SCHEMES, Scheme
from mamba_lab.viz.widgets import batch_painter, batch_painter_static, paint, parse_lengths

LENGTHS = (4, 2, 3, 7)


@pytest.mark.parametrize(
    ("scheme", "capacity", "buffer", "text"),
    [
        ("padded", 8, 1, "16 of 28 positions are valid: 57%. 12 positions of padding."),
        ("bucketed", 8, 2, "16 of 20 positions are valid: 80%. 4 positions of padding."),
        ("bucketed", 8, 1, "16 of 28 positions are valid: 57%. 12 positions of padding."),
        ("fixed chunks", 4, 1, "16 of 20 positions are valid: 80%. 4 positions of padding, 1 document cut."),
        ("joined stream", 8, 1, "16 of 16 positions are valid: 100%. 3 leaks, 1 document cut."),
    ],
)
def test_paint_says_what_the_rows_hold(scheme: str, capacity: int, buffer: int, text: str) -> None:
    figure, said = paint(scheme, capacity, buffer, LENGTHS)
    assert said == text
    assert figure.axes


def test_paint_is_pure() -> None:
    lengths = [5, 3]
    assert paint("padded", 1, 1, lengths)[1] == paint("padded", 1, 1, lengths)[1]
    assert lengths == [5, 3]


def test_paint_draws_some_rows_and_counts_all() -> None:
    _, said = paint("padded", 8, 1, [3] * 40)
    assert said.startswith("120 of 120 positions")
    assert said.endswith("The picture shows the first 16 of 40 rows.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("magic", 8, 1, LENGTHS), "scheme is 'magic': expected one of 'padded'"),
        (("padded", 0, 1, LENGTHS), "capacity is 0"),
        (("padded", 8, 0, LENGTHS), "buffer is 0"),
        (("padded", 8, 1, []), "lengths has no document"),
        (("padded", 8, 1, [0, 0]), "lengths has no document"),
        (("padded", 8, 1, [3, -1]), "-1"),
    ],
)
def test_paint_names_what_is_wrong(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paint(*arguments)


def test_parse_lengths() -> None:
    assert parse_lengths("4, 2 3;7\n") == [4, 2, 3, 7]
    assert parse_lengths("") == []
    for bad in ("4, -2", "4, two", "4, 0", "1.5", "²"):
        with pytest.raises(ValueError, match="lengths has"):
            parse_lengths(bad)
    with pytest.raises(ValueError, match="at most 2,000"):
        parse_lengths("1 " * 2001)


def test_sliders_change_picture_and_text() -> None:
    parts = batch_painter().parts
    before = parts["image"].value, parts["text"].value
    parts["scheme"].value = "joined stream"
    parts["capacity"].value = 5
    after = parts["image"].value, parts["text"].value
    assert after[0] != before[0]
    assert Image.open(io.BytesIO(after[0])).format == "PNG"
    assert "leaks" in after[1]


def test_only_the_numbers_a_scheme_uses_can_be_moved() -> None:
    parts = batch_painter().parts
    for name, scheme in SCHEMES.items():
        parts["scheme"].value = name
        assert parts["capacity"].disabled == (scheme.capacity is None), name
        assert parts["buffer"].disabled == (scheme.buffer is None), name


def test_own_lengths_and_bad_ones() -> None:
    parts = batch_painter([10, 1]).parts
    assert parts["text"].value.startswith("11 of 20")
    good = parts["image"].value
    parts["own"].value = "10, <b>"
    assert parts["text"].value.startswith("<b>✗</b> lengths has '&lt;b>'")
    assert parts["image"].value == good, "the last good picture stays"
    parts["source"].value = "the running example"
    assert parts["text"].value.startswith("16 of 28")
    assert parts["own"].disabled


def test_a_new_scheme_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs(lengths: list[int], capacity: int, buffer: int) -> list[PackingPlan]:
        bins = [list(range(i, min(i + buffer, len(lengths)))) for i in range(0, len(lengths), buffer)]
        return [PackingPlan.from_bins(bins, lengths, max(sum(lengths[i] for i in b) for b in bins))]

    monkeypatch.setitem(schemes.SCHEMES, "pairs", Scheme(pairs, capacity=None, buffer="documents"))
    parts = batch_painter().parts
    parts["scheme"].value = "pairs"
    assert (parts["buffer"].description, parts["buffer"].disabled) == ("documents", False)
    assert parts["text"].value.startswith("16 of 20")
    assert batch_painter_static().axes[-1].patches, "and the static figure has it too"
    assert len(batch_painter_static().axes) == len(schemes.SCHEMES)
