"""The batch painter: choose a scheme and its numbers, see the rows. Needs ipywidgets; the pictures alone don't."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from mamba_lab.viz.figure import to_png
from mamba_lab.viz.rows import Words, draw_rows
from mamba_lab.viz.schemes import SCHEMES, Panel, Scheme, draw_panels
from mamba_lab.viz.style import PAGE_WIDTH

if TYPE_CHECKING:
    import ipywidgets

_MOST_ROWS = 16
_OWN = "your own lengths"
_EXAMPLE = "the running example"
IN_A_NOTEBOOK = "A widget with controls stands here in a running notebook."


def paint(
    scheme: str, capacity: int, buffer: int, lengths: Sequence[int], words: Words | None = None
) -> tuple[Figure, str]:
    """The rows that ``scheme`` makes of documents of ``lengths`` tokens, and a sentence with the valid ratio.

    Args:
        scheme: a name in :data:`mamba_lab.viz.schemes.SCHEMES`.
        capacity: tokens of a row, for the schemes that cut.
        buffer: the scheme's second number (buckets, buffered documents), for those that have one.
        lengths: tokens of each document, at least one.
        words: words of each document, drawn where they fit.

    Returns:
        The figure (the first 16 rows) and the sentence (about all rows).

    Raises:
        ValueError: no such scheme; no document; a capacity or buffer below 1; a negative length.
    """
    entry = _scheme(scheme, capacity, buffer)
    if not len(lengths) or not any(n > 0 for n in lengths):
        raise ValueError("lengths has no document with a token: give at least one length above 0")
    panel = Panel(scheme, entry.plans(lengths, capacity, buffer), entry.boundaries)
    ax = draw_rows(panel.plans, words=words, lengths=lengths, boundaries=panel.boundaries, max_rows=_MOST_ROWS)
    text = f"{panel.n_tokens:,} of {panel.n_positions:,} positions are valid: {panel.percent}. {_capital(panel.note)}."
    n_rows = len(panel.rows)
    if n_rows > _MOST_ROWS:
        text += f" The picture shows the first {_MOST_ROWS} of {n_rows:,} rows."
    figure = ax.figure
    assert isinstance(figure, Figure)
    return figure, text


def batch_painter_static(schemes: Sequence[str] | None = None, *, capacity: int = 6, buffer: int = 2) -> Figure:
    """What the painter shows of the running example, for pages that cannot move a slider.

    Args:
        schemes: names in :data:`mamba_lab.viz.schemes.SCHEMES`, two of them side by side; all by default.
        capacity, buffer: as for :func:`paint`.

    Raises:
        ValueError: no such scheme, or none; a capacity or buffer below 1.
    """
    from mamba_lab.example import LENGTHS

    panels = []
    for name in _names(schemes):
        scheme = _scheme(name, capacity, buffer)
        used = f", {scheme.capacity} {capacity}" if scheme.capacity else ""
        # The picture of all schemes has no room for the number.
        title = _capital(name)
        if schemes is not None and name == "packed from a buffer":
            title = f"From a buffer of {buffer}"
        panels.append(Panel(f"{title}{used}", scheme.plans(LENGTHS, capacity, buffer), scheme.boundaries))
    lines = [tuple(range(i, min(i + 2, len(panels)))) for i in range(0, len(panels), 2)]
    return draw_panels(panels, lines)


def batch_painter(lengths: Sequence[int] | None = None, *, schemes: Sequence[str] | None = None) -> ipywidgets.VBox:
    """The painter as a widget. ``lengths`` are documents of your own, beside the running example.

    ``schemes`` are the names to choose from, all by default. The parts are also attributes of the returned box, by
    name in ``box.parts``: scheme, capacity, buffer, source, own, image, text.
    """
    import ipywidgets as w

    from mamba_lab.example import LENGTHS, WORDS

    look = control_look()
    scheme = w.Dropdown(options=_names(schemes), description="scheme", **look)
    capacity = w.IntSlider(value=8, min=1, max=32, description="capacity", continuous_update=False, **look)
    buffer = w.IntSlider(value=2, min=1, max=8, description="buffer", continuous_update=False, **look)
    source = w.Dropdown(options=[_EXAMPLE, _OWN], description="documents", **look)
    own = lengths_field(lengths if lengths is not None else (5, 12, 3, 30))
    image, text = w.Image(format="png", width=PAGE_WIDTH), w.HTML()

    def update(_: object = None) -> None:
        entry = SCHEMES[scheme.value]
        capacity.disabled, buffer.disabled = entry.capacity is None, entry.buffer is None
        capacity.description, buffer.description = entry.capacity or "capacity", entry.buffer or "buffer"
        own.disabled = source.value != _OWN
        try:
            chosen, words = (LENGTHS, WORDS) if source.value == _EXAMPLE else (parse_lengths(own.value), None)
            capacity.max, buffer.max = max(32, *chosen), max(8, len(chosen))
            figure, said = paint(scheme.value, capacity.value, buffer.value, chosen, words)
        except ValueError as error:
            text.value = f"<b>✗</b> {escaped(str(error))}"
            return
        image.value = to_png(figure)
        text.value = escaped(said)

    inputs = {"scheme": scheme, "capacity": capacity, "buffer": buffer, "source": source, "own": own}
    if lengths is not None:
        source.value = _OWN
    return boxed(inputs, text, image, update)


def control_look() -> dict[str, Any]:
    """How wide a control and its name are, in every widget of the course."""
    import ipywidgets as w

    return {"layout": w.Layout(width="420px"), "style": {"description_width": "90px"}}


def lengths_field(lengths: Sequence[int]) -> ipywidgets.Text:
    """A field with lengths to read by :func:`parse_lengths`, once the reader has typed all of them."""
    import ipywidgets as w

    field = w.Text(value=", ".join(map(str, lengths)), description="lengths", **control_look())
    field.continuous_update = False
    return field


def boxed(
    controls: Mapping[str, ipywidgets.Widget],
    text: ipywidgets.HTML,
    image: ipywidgets.Image,
    update: Callable[..., None],
) -> ipywidgets.VBox:
    """Controls above a text and a picture, ``update`` called now and whenever a control changes; ``parts`` by name."""
    import ipywidgets as w

    update()
    for control in controls.values():
        control.observe(update, names="value")

    class Box(w.VBox):
        def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
            # Where no widget can be shown, as on a page, a reader gets a sentence in place of "VBox(children=...".
            return {**super()._repr_mimebundle_(**options), "text/plain": IN_A_NOTEBOOK}

    box = Box([*controls.values(), text, image])
    box.parts = {**controls, "image": image, "text": text}
    return box


def parse_lengths(text: str) -> list[int]:
    """The numbers in "4, 2 3;7". ValueError names the first thing that is no positive whole number."""
    found = [word for word in re.split(r"[\s,;]+", text.strip()) if word]
    for word in found:
        if not word.isdecimal() or int(word) < 1:
            raise ValueError(f"lengths has {word!r}: expected whole numbers above 0 with commas between them")
    most = 2000
    if len(found) > most or sum(map(int, found)) > np.iinfo(np.int32).max:
        raise ValueError(f"lengths has {len(found):,} numbers: expected at most {most:,}, and a sum below 2^31")
    return [int(word) for word in found]


def _names(schemes: Sequence[str] | None) -> list[str]:
    if schemes is None:
        return list(SCHEMES)
    if isinstance(schemes, str) or not len(schemes):
        raise ValueError(f"schemes is {schemes!r}: expected a list of names, such as ['padded', 'bucketed']")
    return list(schemes)


def _scheme(name: str, capacity: int, buffer: int) -> Scheme:
    """The scheme of this name, when both numbers make sense."""
    if name not in SCHEMES:
        raise ValueError(f"scheme is {name!r}: expected one of {', '.join(map(repr, SCHEMES))}")
    for what, value in (("capacity", capacity), ("buffer", buffer)):
        if value < 1:
            raise ValueError(f"{what} is {value}: expected at least 1")
    return SCHEMES[name]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def escaped(text: str) -> str:
    """``text`` for an HTML widget."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
