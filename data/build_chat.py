"""The `chat` corpus: conversations between two people, filtered strictly, with turns and roles."""

from __future__ import annotations

import codecs
import collections
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from clean import People

_WORDS = Path(__file__).parent / "words"
# Whole conversations with one of these go. The words are kept in rot13, so that nobody reads them by chance:
# profanity, slurs, sex, self-harm.
_UNWANTED = re.compile(
    rf"\b(?:{'|'.join(codecs.decode((_WORDS / 'unwanted.rot13.txt').read_text('utf-8'), 'rot13').split())})\b", re.I
)
_PERSONAL = re.compile(
    # addresses, links, handles
    r"@|https?:|www\.\w|\bdot com\b|\b[\w-]+\.(?:com|org|net|edu|io|co|ly|gov|me|tv|uk|games|info|us|app|gg)\b"
    r"|\d{4,}|\d[\d\s().-]{5,}\d"  # long numbers, phone numbers
    r"|\b(?:my|ur|yours?|last|first|full|nick|real|user|his|her|middle|maiden) ?names?\b|\bname'?s\b"
    r"|\bnames? (?:is|was|are)\b|\bcall me\b|\bnamed\b|\bphone number\b|\bmy (?:number|address|digits)\b|\btext me\b"
    r"|\b(?:insta(?:gram)?|snap ?chat|linked ?in|venmo|g?mail|e-?mail|whatsapp|discord|tinder|apt)\b"
    r"|\b\d+\s+(?:[NSEW]\.?\s+)?\w+\s+(?:st|street|ave|avenue|rd|road|blvd|lane|drive|dr)\b",
    re.I,
)
_GREETED = re.compile(
    r"\b(?:[Hh]i|[Hh]ey|[Hh]ello|[Tt]hanks|[Bb]ye|I'?m|I am|[Tt]his is|[Ii]t'?s|[Yy]ou'?re|[Mm]eet|[Dd]r|[Mm]rs?|[Mm]s)"
    r"\.?,? ([A-Z][a-z]+)\b"
)
_WORD = re.compile(r"[A-Za-z][a-z]+")
# A proper noun in fewer conversations than this may be a person or a home; one in more is known to many.
_KNOWN_TO_MANY = 8
# Common first names that pass the rules, because they are known to many or are also words.
_COMMON_NAMES = frozenset((_WORDS / "first_names.txt").read_text("utf-8").split())
_ALSO_WORDS = frozenset(
    {"will", "rob", "bill", "frank", "hunter", "jack", "carter", "jordan", "austin", "madison", "sam"}
)


def chat_records(wheel: Path, people: People, corpus: Path) -> list[dict[str, Any]]:
    """One record a conversation: id and turns, the first speaker as user. No original id, sender or time is kept."""
    with zipfile.ZipFile(wheel) as archive:
        data = json.loads(archive.read("chitchat_dataset/dataset.json"))
        (corpus / "LICENSE.chat.txt").write_bytes(archive.read("chitchat_dataset-0.9.0.dist-info/LICENSE"))
    conversations = [_turns(c["messages"]) for c in data.values()]
    private = _private_words(conversations, people)
    why: collections.Counter[str] = collections.Counter()
    records, seen = [], set()
    for turns in conversations:
        text = "\n".join(t for _, t in turns)
        if len(turns) < 2:
            reason = "one speaker"
        elif _UNWANTED.search(text):
            reason = "profanity"
        elif _PERSONAL.search(text):
            reason = "personal data"
        elif private.intersection(re.findall(r"[a-z]+", text.lower())):
            reason = "a name"
        elif any(c > "\u2fff" or not (c.isprintable() or c == "\n") for c in text):
            reason = "not plain text"
        elif text in seen:
            reason = "repeated"
        else:
            seen.add(text)
            records.append({"id": f"chat/{len(records):04d}", "turns": [[int(who), t] for who, t in turns]})
            continue
        why[reason] += 1
    print(f"chat: {len(conversations)} conversations, skipped {dict(sorted(why.items()))}")
    return records


def _turns(messages: list[list[dict[str, str]]]) -> list[tuple[bool, str]]:
    """Consecutive messages of one speaker are one turn; the flag says whether it is the second speaker's."""
    turns: list[tuple[bool, str]] = []
    first = None
    for message in (m for group in messages for m in group):
        text = " ".join(message["text"].split())
        if not text:
            continue
        first = first or message["sender"]
        second = message["sender"] != first
        if turns and turns[-1][0] == second:
            turns[-1] = (second, turns[-1][1] + "\n" + text)
        else:
            turns.append((second, text))
    return turns


def _private_words(conversations: list[list[tuple[bool, str]]], people: People) -> frozenset[str]:
    """Lower-case words that are or may be a person's name or somebody's home.

    These are first names, of those credited in the documentation and of those greeted or introduced in a conversation,
    and proper nouns in few conversations. What people mostly write in lower case is an ordinary word.
    """
    upper: collections.Counter[str] = collections.Counter()
    lower: collections.Counter[str] = collections.Counter()
    seen_in: collections.Counter[str] = collections.Counter()
    named = {name.lower() for name in people.first}
    for turns in conversations:
        text = "\n".join(t for _, t in turns)
        named.update(name.lower() for name in _GREETED.findall(text))
        words = _WORD.findall(text)
        for word in words:
            (upper if word[0].isupper() else lower)[word.lower()] += 1
        seen_in.update({word.lower() for word in words})
    proper = {w for w in upper if upper[w] >= lower[w]}
    rare = {w for w in proper if seen_in[w] < _KNOWN_TO_MANY and len(w) > 2}
    first = {w for w in named & proper if seen_in[w] < 5 * _KNOWN_TO_MANY}
    return frozenset(rare | first | (_COMMON_NAMES - _ALSO_WORDS))
