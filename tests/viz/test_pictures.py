"""Every picture can be read: text of 9 pt or more, inside the picture, on top of no other text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from mamba_lab import example
from mamba_lab.batching import chunk_fixed
from mamba_lab.viz import diagrams, plots
from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.rows import draw_rows
from mamba_lab.viz.schemes import four_schemes
from mamba_lab.viz.style import WIDTH, style
from mamba_lab.viz.widgets import batch_painter_static, paint

RNG = np.random.default_rng(0)
DOCS = RNG.lognormal(8, 1.2, 497).astype(int).clip(20, 70_000)
CHAT = RNG.lognormal(5, 0.6, 1200).astype(int).clip(3, 3000)
CURVE = 3 + 3 * np.exp(-np.arange(120) / 30)
PROBABLE = {" the": 0.31, "\n": 0.2, "ing": 0.1, "s": 0.05, " dragon": 0.001, "a": 0.002}
CHANGED = {" the": 0.11, "\n": 0.25, "ing": 0.02, "s": 0.06, " dragon": 0.3, "a": 0.003}
STATE = np.arange(16.0)

PICTURES = {
    "four schemes": lambda: four_schemes(),
    "four schemes, wide": lambda: four_schemes(wide=True),
    "painter, static": batch_painter_static,
    "painter": lambda: paint("joined stream", 10, 1, [5, 12, 3, 30])[0],
    "painter, bars": lambda: paint("joined stream", 200, 1, [5, 300, 33, 120])[0],
    "rows with words": lambda: draw_rows(chunk_fixed([4, 2, 3, 7], 7), words=example.WORDS, title="Padding").figure,
    "histogram": lambda: plots.length_histogram({"docs": DOCS, "chat": CHAT}, capacity=2048),
    "histogram, one": lambda: plots.length_histogram(DOCS),
    "bars": lambda: plots.grouped_bars(
        {s: {"docs": 0.57, "code": 0.998, "chat": 1.0} for s in ("fixed", "padded", "bucketed", "joined")},
        what="valid ratio",
        percent=True,
        goal=0.8,
        goal_name="look below 80%",
    ),
    "bars, counts": lambda: plots.grouped_bars({"cut": {"docs": 1200, "code": 31}}, what="contexts cut"),
    "prediction": lambda: plots.prediction_bar(0.573, 0.8, what="valid ratio", percent=True),
    "no prediction": lambda: plots.prediction_bar({"docs": 12000, "code": 310}, None, what="tokens lost"),
    "next tokens": lambda: plots.next_token_bars(PROBABLE, CHANGED, labels=("hungry", "happy"), top=4),
    "loss": lambda: plots.loss_curves({"padded": CURVE, "packed": CURVE[:90] - 0.2}, smooth=8),
    "state": lambda: plots.state_strip(
        {"no boundaries": STATE, "with boundaries": STATE[::-1]}, lengths=(4, 2, 3, 7), words=example.WORDS
    ),
    "state, one": lambda: plots.state_strip(list(STATE)),
    "recurrence": lambda: diagrams.recurrence(0.5, 1, [2, 0, 0, 4, 1]),
    "recurrence, reset": lambda: diagrams.recurrence([0.5, 0.5, 0, 0.5, 0.5], -2, [2, 1, -1, 4, 1]),
    "block": diagrams.block_diagram,
}


def visible_texts(fig: Figure) -> list[tuple[str, float, Bbox]]:
    """What matplotlib draws as text: words, size in points, box in pixels."""
    with style():
        canvas = FigureCanvasAgg(fig)
        canvas.draw()
    found = [*fig.texts, *(text for legend in fig.legends for text in legend.get_texts())]
    found += [text for text in (fig._supxlabel, fig._supylabel) if text is not None and text not in found]
    for ax in fig.axes:
        found += [*ax.texts, ax.title, ax._left_title, ax._right_title]
        if not ax.axison:
            continue
        for axis in (ax.xaxis, ax.yaxis):
            if axis.get_visible():
                # A label of a tick outside the range is kept and never drawn.
                low, high = sorted(axis.get_view_interval())
                ticks = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
                found += [axis.label, *(label for tick in ticks for label in (tick.label1, tick.label2))]
    renderer = canvas.get_renderer()
    shown = [text for text in found if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_fontsize(), text.get_window_extent(renderer)) for text in shown]


@pytest.mark.parametrize("name", PICTURES)
def test_text_can_be_read(name: str) -> None:
    fig = PICTURES[name]()
    check_labels(fig)
    texts = visible_texts(fig)
    assert texts, "a picture without any text"
    page = fig.bbox
    scale = min(1.0, WIDTH / fig.get_figwidth()) if "wide" not in name else 1.0
    for text, size, box in texts:
        assert size * scale >= 9, f"{text!r} has {size} pt"
        assert page.x0 <= box.x0, f"{text!r} is cut at the left"
        assert box.x1 <= page.x1 + 0.5, f"{text!r} is cut at the right"
        assert page.y0 - 0.5 <= box.y0, f"{text!r} is cut at the bottom"
        assert box.y1 <= page.y1 + 0.5, f"{text!r} is cut at the top"
    for (a, _, one), (b, _, two) in itertools.combinations(texts, 2):
        width = min(one.x1, two.x1) - max(one.x0, two.x0)
        height = min(one.y1, two.y1) - max(one.y0, two.y0)
        assert min(width, height) < 1.5, f"{a!r} lies on {b!r}"
