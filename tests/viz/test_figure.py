"""show() displays one opaque PNG with caption and alt text, and refuses what readers could not follow."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from IPython.utils.capture import capture_output
from PIL import Image

from mamba_lab.viz.colours import CARD
from mamba_lab.viz.figure import check_labels, show, text_width, to_png
from mamba_lab.viz.style import new_figure, style

CAPTION = "Figure 1. A line that rises."
ALT = "A straight line from the lower left to the upper right."


def line(x: str = "step", y: str = "loss"):
    with style():
        fig = new_figure(2.0)
        ax = fig.subplots()
        ax.plot([0, 1], [0, 1])
        ax.set(xlabel=x, ylabel=y)
    return fig


def opened(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def shown(fig, **kwargs):
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance()
    with capture_output() as captured:
        show(fig, **kwargs)
    return captured


def test_one_output_with_caption_alt_and_width() -> None:
    captured = shown(line(), caption=CAPTION, alt=ALT)
    assert len(captured.outputs) == 1
    output = captured.outputs[0]
    assert set(output.data) == {"image/png", "text/plain"}
    assert output.data["text/plain"] == CAPTION
    assert output.metadata == {"image/png": {"alt": ALT, "width": 760}}
    assert captured.stdout == ""


def test_the_figure_is_closed() -> None:
    fig, ax = plt.subplots()
    ax.set(xlabel="x", ylabel="y")
    assert plt.fignum_exists(fig.number)
    shown(fig, caption=CAPTION, alt=ALT)
    assert not plt.fignum_exists(fig.number)


def test_png_is_opaque_small_and_always_the_same() -> None:
    first, second = to_png(line(), CAPTION), to_png(line(), CAPTION)
    assert first == second
    assert len(first) < 40_000
    image = Image.open(io.BytesIO(first))
    assert "transparency" not in image.info
    assert image.width == 950
    corner = opened(first)[0, 0]
    assert tuple(corner) == tuple(int(CARD[i : i + 2], 16) for i in (1, 3, 5))


def test_a_readers_own_settings_do_not_change_the_picture() -> None:
    plain = to_png(line(), CAPTION)
    with plt.rc_context({"font.size": 20, "savefig.transparent": True, "savefig.dpi": 30, "font.family": "monospace"}):
        assert to_png(line(), CAPTION) == plain


def test_the_caption_is_drawn_below_and_wrapped() -> None:
    bare, short = opened(to_png(line())), opened(to_png(line(), CAPTION))
    long = opened(to_png(line(), CAPTION + " And many more words." * 12))
    # The rows of the picture, apart from the palette's rounding.
    assert np.abs(short[: len(bare)].astype(int) - bare).mean() < 2
    assert len(bare) < len(short) < len(long)
    assert short[len(bare) :].min() < 140, "there is text below the picture"
    right_edge = long[len(bare) :, -8:]
    assert right_edge.min() > 240, "no text runs into the right edge"


@pytest.mark.parametrize("caption", ["", None, "A line.", "Figure 1.", "Figure one. A line.", "Figure: A line."])
def test_a_caption_needs_number_and_words(caption: str) -> None:
    with pytest.raises(ValueError, match="caption is"):
        show(line(), caption=caption, alt=ALT)


@pytest.mark.parametrize("alt", ["", None, "A line", " " * 40])
def test_alt_text_is_needed(alt: str) -> None:
    with pytest.raises(ValueError, match="alt is"):
        show(line(), caption=CAPTION, alt=alt)


@pytest.mark.parametrize(("x", "y", "which"), [("", "loss", "x"), ("step", " ", "y")])
def test_axes_need_labels(x: str, y: str, which: str) -> None:
    with pytest.raises(ValueError, match=f"the {which} axis of axes 0"):
        show(line(x, y), caption=CAPTION, alt=ALT)


def test_drawings_words_and_shared_labels_need_none() -> None:
    fig = new_figure(2.0)
    drawing, words = fig.subplots(1, 2)
    drawing.axis("off")
    words.bar(["docs", "code"], [1, 2])
    words.set_ylabel("documents")
    check_labels(fig)
    fig = new_figure(2.0)
    fig.subplots(2, 1, sharex=True)[1].set_xlabel("step")
    with pytest.raises(ValueError, match="the y axis of axes 0"):
        check_labels(fig)
    fig.supylabel("loss")
    check_labels(fig)


def test_numbers_as_names_still_need_a_label() -> None:
    fig = new_figure(2.0)
    ax = fig.subplots()
    ax.bar(["1", "2"], [1, 2])
    ax.set_ylabel("documents")
    with pytest.raises(ValueError, match="x axis"):
        check_labels(fig)


def test_text_width_grows_with_text_and_weight() -> None:
    assert text_width("hungry") > text_width("hun") > 0
    assert text_width("hungry", bold=True) > text_width("hungry")
    assert text_width("$x$") > text_width("x"), "dollar signs are text, not formulas"
