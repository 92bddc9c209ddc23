"""The batch painter: its picture is a pure function; its parts work without a browser."""

from __future__ import annotations

import io

import pytest
from matplotlib.figure import Figure
from PIL import Image

from mamba_lab.batching import PackingPlan
from mamba_lab.viz import schemes
from mamba_lab.viz.schemes import SCHEMES, Scheme
from mamba_lab.viz.widgets import batch_painter, batch_painter_static, lengths_field, paint, parse_lengths

LENGTHS = (4, 2, 3, 7)


@pytest.mark.parametrize(
    ("scheme", "capacity", "buffer", "text"),
    [
        ("padded", 8, 1, "16 of 28 positions are valid: 57%. 12 positions of padding."),
        ("bucketed", 8, 2, "16 of 20 positions are valid: 80%. 4 positions of padding."),
        ("bucketed", 8, 1, "16 of 28 positions are valid: 57%. 12 positions of padding."),
        ("fixed chunks", 4, 1, "16 of 20 positions are valid: 80%. 4 positions of padding, 1 document cut."),
        ("joined stream", 8, 1, "16 of 16 positions are valid: 100%. 3 leaks, 1 document cut."),
        ("packed in order", 8, 1, "16 of 24 positions are valid: 67%. 8 positions of padding."),
        ("packed from a buffer", 9, 2, "16 of 27 positions are valid: 59%. 11 positions of padding."),
        ("packed from a buffer", 9, 4, "16 of 18 positions are valid: 89%. 2 positions of padding."),
        ("best fit", 9, 1, "16 of 18 positions are valid: 89%. 2 positions of padding."),
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


def test_a_page_without_widgets_gets_a_sentence() -> None:
    shown = batch_painter()._repr_mimebundle_()
    assert shown["text/plain"] == "A widget with controls stands here in a running notebook."
    assert "application/vnd.jupyter.widget-view+json" in shown


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


def headings(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.texts if t.get_fontweight() == "bold"]


def test_the_static_painter_shows_the_schemes_it_is_given() -> None:
    shown = batch_painter_static(["padded", "packed in order"], capacity=8)
    assert headings(shown) == ["Padded", "Packed in order, capacity 8"]
    assert "67% valid" in [t.get_text() for t in shown.texts]
    assert len(headings(batch_painter_static())) == len(SCHEMES)
    two, four = (batch_painter_static(["packed from a buffer"], capacity=9, buffer=n) for n in (2, 4))
    assert headings(four) == ["From a buffer of 4, capacity 9"]
    assert ["59% valid" in t.get_text() for f in (two, four) for t in f.texts if "valid" in t.get_text()] == [
        True,
        False,
    ]


def test_every_panel_stays_on_the_page() -> None:
    figure = batch_painter_static()
    ratios = [t for t in figure.texts if "valid" in t.get_text()]
    assert len(ratios) == len(SCHEMES)
    assert all(t.get_ha() == "right" and t.get_position()[0] <= 1 - 0.05 / figure.get_figwidth() for t in ratios)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schemes": ["magic"]}, "scheme is 'magic'"),
        ({"schemes": []}, r"schemes is \[\]: expected a list of names"),
        ({"schemes": "padded"}, "schemes is 'padded': expected a list of names"),
        ({"capacity": 0}, "capacity is 0"),
        ({"buffer": 0}, "buffer is 0"),
    ],
)
def test_the_static_painter_names_what_is_wrong(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch_painter_static(**arguments)


def test_the_painter_offers_the_schemes_it_is_given() -> None:
    parts = batch_painter(schemes=["packed in order", "padded"]).parts
    assert parts["scheme"].options == ("packed in order", "padded")
    assert parts["text"].value.startswith("16 of 24")
    assert batch_painter().parts["scheme"].options == tuple(SCHEMES)


def test_a_buffer_reaches_to_all_documents() -> None:
    parts = batch_painter([3] * 20).parts
    assert parts["buffer"].max == 20
    parts["source"].value = "the running example"
    assert parts["buffer"].max == 8


def test_a_field_of_lengths_waits_until_all_are_typed() -> None:
    field = lengths_field((4, 12))
    assert field.value == "4, 12"
    assert not field.continuous_update
