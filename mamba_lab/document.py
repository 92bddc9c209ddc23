"""What a corpus is made of: documents, a conversation's turns, and the count of what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mamba_lab.tokenizer import role_token

__all__ = ["Document", "Skipped", "Turn", "render"]

_PLACES_KEPT = 5


@dataclass(frozen=True)
class Turn:
    """What one speaker says before the other answers. `role` is ``user``, ``assistant`` or ``system``."""

    role: str
    text: str


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        text: the text. A conversation is rendered: each turn's role token as it is written, then the turn's text.
        id: its name within the corpus.
        source: the corpus or file it was read from.
        turns: the conversation's turns, None when it is no conversation.
    """

    text: str
    id: str
    source: str
    turns: tuple[Turn, ...] | None = None


@dataclass
class Skipped:
    """What was left out while reading: how many by reason, and the first places of each."""

    reasons: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many were left out in all."""
        return sum(self.reasons.values())

    def add(self, reason: str, place: str) -> None:
        """Counts one that is left out. The first five places of a reason are kept."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < _PLACES_KEPT:
            places.append(place)

    def clear(self) -> None:
        """Forgets everything: a stream begins anew."""
        self.reasons.clear()
        self.places.clear()

    def __str__(self) -> str:
        if not self.reasons:
            return "nothing skipped"
        parts = (f"{n:,} × {reason} (first: {self.places[reason][0]})" for reason, n in self.reasons.items())
        return f"{self.count:,} skipped: " + "; ".join(parts)


def render(turns: Iterable[Turn]) -> str:
    """A conversation as text: before each turn its role token, as it is written.

    Raises:
        ValueError: a role is unknown.
    """
    return "".join(role_token(turn.role) + turn.text for turn in turns)
