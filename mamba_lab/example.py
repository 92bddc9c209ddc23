"""The running example of the course: four short documents of 4, 2, 3 and 7 tokens.

The shipped tokenizer makes one token of every word, so words and positions are the same thing in every picture.
"""

from __future__ import annotations

__all__ = ["DOCUMENTS", "LENGTHS", "NAMES", "SWAP", "WORDS"]

NAMES = ("A", "B", "C", "D")
DOCUMENTS = (
    "The dog is hungry",
    "Read books",
    "People love music",
    "We walk to the beach every summer",
)
WORDS: tuple[tuple[str, ...], ...] = tuple(tuple(text.split()) for text in DOCUMENTS)
LENGTHS = (4, 2, 3, 7)

SWAP = ("hungry", "happy")
"""A word of document A, and another that changes what A says. No other document may notice the change."""
