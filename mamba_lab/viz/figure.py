"""Show a picture in a notebook:

An opaque PNG with a caption that a machine can compare and a text for those who cannot see it.
"""

from __future__ import annotations

import functools
import io
import re
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from PIL import Image

from mamba_lab.viz.colours import CARD, MUTED
from mamba_lab.viz.style import DPI, PAGE_WIDTH, SMALL, TEXT, style

_NUMBERED = re.compile(r"Figure \d+\. \S")
_SHORTEST_ALT = 20


def show(fig: Figure, *, caption: str, alt: str) -> None:
    """Display ``fig`` once, as a PNG on a light card with ``caption`` below it, and close it.

    The stored output has ``image/png``, ``text/plain`` (the caption) and the metadata ``alt`` and ``width``. nbval
    compares the plain text, so write the caption as a constant sentence: no measured number in it.

    Args:
        fig: any matplotlib figure; the course's are 7.6 inches wide.
        caption: "Figure 3. What the picture tells." It is also drawn below the picture.
        alt: what the picture shows, for readers who cannot see it; at least 20 characters.

    Raises:
        ValueError: the caption has no number or no words, the alt text is missing or too short, or an axis that shows
            numbers has no label.
    """
    from IPython.display import display

    data, metadata = mime_bundle(fig, caption=caption, alt=alt)
    display(data, metadata=metadata, raw=True)
    _forget(fig)


def mime_bundle(fig: Figure, *, caption: str, alt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and metadata that :func:`show` displays. ``image/png`` holds bytes."""
    caption, alt = _one_line(caption), _one_line(alt)
    if not _NUMBERED.match(caption):
        raise ValueError(
            f'caption is {caption!r}: write "Figure 1. What the picture tells." with the number in this notebook'
        )
    if len(alt) < _SHORTEST_ALT:
        raise ValueError(f"alt is {alt!r}: say in at least {_SHORTEST_ALT} characters what the picture shows")
    check_labels(fig)
    width = min(PAGE_WIDTH, round(fig.get_figwidth() * 100))
    data = {"image/png": to_png(fig, caption), "text/plain": caption}
    return data, {"image/png": {"alt": alt, "width": width}}


def to_png(fig: Figure, caption: str | None = None, dpi: float = DPI) -> bytes:
    """``fig`` as an opaque PNG with a palette of 256 colours. The same figure gives the same bytes.

    ``caption`` is drawn below the picture, wrapped to its width: neither JupyterLab nor an exported page shows the
    plain text of an output that has a picture, and readers must see it.
    """
    with style():
        picture = _pixels(fig, dpi)
        if caption:
            below = _pixels(_caption_strip(caption, fig.get_figwidth(), dpi), dpi)
            card = Image.new("RGB", (picture.width, picture.height + below.height), CARD)
            card.paste(picture, (0, 0))
            card.paste(below, (0, picture.height))
            picture = card
    buffer = io.BytesIO()
    small = picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(buffer, format="PNG", optimize=True, dpi=(dpi, dpi))
    return buffer.getvalue()


def check_labels(fig: Figure) -> None:
    """Raise ValueError when an axis of ``fig`` shows numbers and does not say of what."""
    for number, ax in enumerate(fig.axes):
        if not (ax.axison and ax.get_visible()):
            continue
        for axis, which, shown, shared in (
            (ax.xaxis, "x", ("labelbottom", "labeltop"), fig.get_supxlabel()),
            (ax.yaxis, "y", ("labelleft", "labelright"), fig.get_supylabel()),
        ):
            ticks = axis.get_tick_params()
            shows = axis.get_visible() and any(ticks.get(side) for side in shown) and len(axis.get_ticklocs()) > 0
            silent = not shows or _names_only(axis)
            if not silent and not shared and not axis.get_label_text().strip():
                raise ValueError(
                    f"fig: the {which} axis of axes {number} ({ax.get_title(loc='left') or 'no title'}) has no label. "
                    f"Say ax.set_{which}label('what, in which unit'), or ax.axis('off') for a drawing without axes"
                )


def _names_only(axis: Any) -> bool:
    """Ticks that are words name themselves; numbers don't."""
    texts = [label.get_text() for label in axis.get_ticklabels()]
    return bool(texts) and all(re.search(r"[^\W\d_]{2}|^[^\W\d_]$", text) and "$" not in text for text in texts)


def _pixels(fig: Figure, dpi: float) -> Image.Image:
    buffer = io.BytesIO()
    # Not bbox_inches="tight": pictures of one width keep one scale of text.
    FigureCanvasAgg(fig).print_figure(buffer, format="png", dpi=dpi, facecolor=CARD, metadata={"Software": None})
    buffer.seek(0)
    return Image.open(buffer).convert("RGB")


def _caption_strip(caption: str, width: float, dpi: float) -> Figure:
    margin, line = 0.12, 0.19
    lines = _wrap(caption, (width - 2 * margin) * dpi, dpi)
    height = line * len(lines) + margin + 0.04
    strip = Figure(figsize=(width, height))
    for i, words in enumerate(lines):
        y = 1 - (0.04 + line * (i + 0.5)) / height
        strip.text(margin / width, y, words, color=MUTED, fontsize=SMALL + 0.5, va="center", parse_math=False)
    return strip


def _wrap(text: str, pixels: float, dpi: float) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, SMALL + 0.5, dpi) <= pixels:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@functools.lru_cache(4096)
def text_width(text: str, size: float = TEXT, dpi: float = 72.0, bold: bool = False) -> float:
    """Width of ``text`` in pixels at ``dpi`` (points at the default 72), in the course's font."""
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    return RendererAgg(1, 1, dpi).get_text_width_height_descent(text, font, ismath=False)[0]


def _one_line(text: str) -> str:
    return " ".join(text.split()) if isinstance(text, str) else ""


def _forget(fig: Figure) -> None:
    import matplotlib.pyplot as plt

    plt.close(fig)
