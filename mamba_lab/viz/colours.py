"""The fixed colours of the course.

Documents A, B, C and D have one colour each, in every picture and every notebook. The four are from the palette of
Okabe and Ito (2008), which stays apart under the common kinds of colour blindness; a test simulates them. Colour never
carries a meaning alone: cells have words or letters, padding is hatched, a leak is a dashed arrow with its name.
"""

from __future__ import annotations

DOCUMENT_COLOURS: dict[str, str] = {"A": "#56B4E9", "B": "#E69F00", "C": "#009E73", "D": "#CC79A7"}
"""Fill of a document's cells. Text on it is INK."""

INK = "#1A1A1A"
"""Text and lines. Readable on CARD and on each document's colour."""
MUTED = "#595959"
"""Secondary text. Readable on CARD."""
CARD = "#FCFCFA"
"""The opaque light ground of each picture and answer card: it reads the same on light and on dark pages."""
GRID = "#D9D9D6"
PADDING = "#EDEDED"
PADDING_HATCH = "#A3A3A3"
LEAK = "#C00018"
"""State that crosses into another document; always a dashed arrow or a mark besides the colour."""
GOOD = "#00664A"
"""Right answers, together with a tick."""

SERIES: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#7A4E9C", "#8A6D00", "#595959")
"""Lines and bars that are no documents (schemes, corpora, runs). Lines differ in dashes too, bars in hatches."""


def document_name(index: int) -> str:
    """A, B, ... Z for the first 26 documents, then A2, B2, ... (``index`` counts from 0)."""
    if index < 0:
        raise ValueError(f"index is {index}: documents are counted from 0")
    turn, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(turn + 1) if turn else "")


def document_colour(index: int) -> str:
    """The fill for document ``index``: the four colours in turn, so that neighbours differ.

    Names tell a fifth from the first.
    """
    if index < 0:
        raise ValueError(f"index is {index}: documents are counted from 0")
    return tuple(DOCUMENT_COLOURS.values())[index % len(DOCUMENT_COLOURS)]
