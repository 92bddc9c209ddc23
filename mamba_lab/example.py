"""The running example of the course: four short documents of 4, 2, 3 and 7 tokens.

The shipped tokenizer makes one token of every word, so words and positions are the same thing in every picture.
"""

from __future__ import annotations

import random

__all__ = ["DOCUMENTS", "LENGTHS", "NAMES", "SWAP", "WORDS", "diaries"]

NAMES = ("A", "B", "C", "D")
DOCUMENTS = (
    "They eat fresh fish",
    "We cook",
    "People love music",
    "I walk to the beach every summer",
)
WORDS: tuple[tuple[str, ...], ...] = tuple(tuple(text.split()) for text in DOCUMENTS)
LENGTHS = (4, 2, 3, 7)

SWAP = ("fish", "bread")
"""A word of document A, and another that changes what A says. No other document may notice the change."""

_PEOPLE = ("I", "You", "We", "They", "People")
_TASTES = ("fresh", "hot", "cold", "good", "sweet")
_FOODS = ("fish", "bread", "cake", "pizza", "chicken", "chocolate")


def diaries(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Small documents of two sentences about one person who eats one thing: "They eat hot pizza", "They cook pizza".

    Within a diary the first sentence tells the last word of the second, in either order. A model learns it in seconds,
    and then shows in large what it carries from one sentence into the next. Documents A and B are of this kind.
    """
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        who, food = rng.choice(_PEOPLE), rng.choice(_FOODS)
        sentences = [f"{who} eat {rng.choice(_TASTES)} {food}", f"{who} cook {food}"]
        rng.shuffle(sentences)
        pairs.append((sentences[0], sentences[1]))
    return pairs
