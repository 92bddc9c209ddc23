"""Takes personal data out of the documentation and the source code before they are shipped.

Both name people: in credits ("Contributed by ..."), author fields, comments, acknowledgements; e-mail addresses stand
there too. Training needs none of it. Credits and author fields are dropped, a name inside a sentence becomes
"a contributor", an address becomes ``name@example.com``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PLACEHOLDER = "name@example.com"
EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w@])"
    r"|<[\w.+-]+ at [\w.-]+(?: dot [\w.]+)*>"
)

_PART = r"(?:[A-Z]\.(?:[ -]?[A-Z]\.)*|[A-Z](?=[ ])|[A-ZÀ-ÞŁŠŻŽČ][\w'’]+(?:-[A-Z]?[\w'’]+)*|'[A-Z]\w+')"
_PARTICLE = r"(?:van|von|de|der|den|del|dela|di|du|da|la|le|al|v\.|ten|bin)"
# A name may go on in the next line, never after an empty one.
_GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?![ \t\n]))"
# Two or more parts: one capitalised word alone is too often no person.
_NAME = rf"{_PART}(?:{_GAP}(?:{_PARTICLE}{_GAP})*{_PART})+(?:,?[ ]+(?:Jr|Sr)\.?|[ ]+I{{2,3}}\b)?"
_JOIN = r"(?:\s*,\s*(?:and\s+)?|\s*;\s*|\s+and\s+|\s*/\s*|\s+&\s+|\s+with\s+(?:\w+\s+)?(?:by|from)\s+)"
_NAMES = rf"{_NAME}(?:{_JOIN}{_NAME})*"
_FULL_NAME = re.compile(rf"(?<![\w./])(?:{_NAME})(?!\w)")

_VERB = (
    r"(?:contribut\w+|(?:re-?)?written|implement\w+|suggest\w+|patch(?:es|ed)?|propos\w+|report\w+|author\w*|design\w+"
    r"|develop\w+|creat\w+|add\w*|maintain\w+|submitt\w+|provid\w+|fix\w*|discover\w+|found|invent\w+|work\w*|prepar\w+"
    r"|edited|based|review\w*|document\w*|analy\w+|idea|code|algorithm|recipe|article|paper|book|introduc\w+|initiated"
    r"|led|done|made|port(?:ed)?|champion\w+|spearhead\w+|adapted|inspired|described|translat\w+|updated|conver\w+"
    r"|PEP|changes|posting|talk|hacked|support|version|methods|due|thanks|post|presentation)"
)
_BRACKETED = (
    r"(?:contribut(?:ed|ions?)|patch(?:es|ed)?|(?:re)?written|implement(?:ed|ation)|suggest(?:ed|ion)|reported|proposed"
    r"|designed|added|developed|discovered|fixed|provided|created|submitted|requested|found|work|by|thanks|updated"
    r"|optimized|repaired|backported|documentation|inspired|invented|co-authored|introduced)"
)
_CREDIT_IN_BRACKETS = re.compile(
    r"[ \t]*\n?[ \t]*\("
    r"(?i:originally\s+|initial(?:ly)?\s+|also\s+|first\s+|partially\s+|all\s+|idea\s+(?:and\s+\w+\s+)?)?"
    rf"(?i:{_BRACKETED})\b[^()]*?\b(?:by|from|to)\b(?:[^()]|\([^()]*\))*\)[ \t]*"
)
_CREDIT_SENTENCE = re.compile(
    r"(?<=[.)]\s)(?:Contributed|Patch|Patches|Written|Implemented|Suggested|Reported)\s+(?:\w+\s+){0,3}"
    rf"by\s+{_NAMES}[^.\n]*\.(?=\s)"
)
_BY_NAMES = re.compile(
    rf"(?P<lead>\b(?i:{_VERB})\b[^.;:()\n]{{0,40}}?(?:\n[ \t]*(?:\#[ ]*)?)?\b(?:by|from|to)\s+)(?P<names>{_NAMES})"
)
_AUTHOR_FIELD = re.compile(
    r"(?im)^[ \t]*(?:(?:\.\.[ ]|:)(?:section|module|code)?authors?(?:::?)"
    r"|:(?:editor|maintainer|contact|e-?mail|credits?|organi[sz]ation|copyright)s?[ \t]*:(?!\s*$)).*"
    r"(?:\n[ \t]+(?=[A-Z][\w.]+ [A-Z]).*)*\n"
)
_ACKNOWLEDGEMENTS = re.compile(
    r"(?m)^(?:\.\.[ ]_\S*ack\S*:\n\n?|\.\. =+\n\n?)?Acknowledge?ments\n[=\-*~^]{5,}\n[\s\S]*?"
    r"(?=^(?:\S.*)\n[=\-*~^]{5,}\n|\Z)"
)
# The whole line goes: a comment or a line of a docstring, or what a tool prints in an example.
_AUTHOR_COMMENT = re.compile(
    r"(?i)^[ \t]*(?:\#+[ \t]*|\*[ ])?(?:authors?|maintainers?|contact|credits?)[ \t]*:(?=[ ]+[A-Z<])"
)
_CREDIT_COMMENT = re.compile(
    rf"^[ \t]*[#*]*[ \t]*(?:(?:[-A-Za-z,]+[ ]+){{0,6}}?(?i:{_VERB})[ ]+(?:[a-z]+[ ]+){{0,3}}?(?:by|to)|[Bb]y|[Aa]nd)"
    rf"[ :]+{_NAMES}"
)
_CREDIT_WORD = re.compile(r"\b(?:by|to|and|By|And)[ :]")
_SIGNED = re.compile(
    r"[ \t]*--+[ ]?"
    r"(?:GvR|Guido|gvr|esr|ESR|Tim|Fredrik|effbot|JJL|jjl|MAL|mal|skip|SMM|AMK|amk|bwarsaw|BAW|baw)\b\.?[ \t]*$",
    re.M,
)
_ALONE = re.compile(r"\b(?:Guido|GvR|gvr|ncoghlan|effbot|Tismer|tarek|anthonybaxter)\b(?![.\w/]|\s*=)")
_REPEATED = re.compile(r"\ba contributor(?:(?:\s*,\s*and|\s*,|\s+and|\s*;|\s*/|\s+&)\s+a contributor)+")

# Words that are no part of a person's name, though a capitalised word stands beside them.
_NO_PERSON = frozenset((Path(__file__).parent / "words" / "no_person.txt").read_text("utf-8").split())


@dataclass(frozen=True)
class People:
    """Who is named in credits: full names, and the first names among them."""

    names: frozenset[str]
    first: frozenset[str]


def collect_people(texts: list[str]) -> People:
    """The people in the credits, author fields and acknowledgements of `texts`."""
    found: set[str] = set()
    for text in texts:
        for pattern in (_CREDIT_IN_BRACKETS, _BY_NAMES, _AUTHOR_FIELD, _ACKNOWLEDGEMENTS):
            for match in pattern.finditer(text):
                span = match.group("names") if pattern is _BY_NAMES else match.group(0)
                found.update(" ".join(name.split()) for name in re.findall(_NAME, span))
    names = frozenset(n for n in found if not _NO_PERSON.intersection(re.findall(r"\w+", n)))
    return People(names, frozenset(f for f in (n.split()[0] for n in names) if len(f) > 2 and f.isalpha()))


def neutralise(text: str, people: People, *, code: bool = False) -> str:
    """`text` without credits, author fields, people's names and e-mail addresses; `code` is for source code."""
    if code:
        text = "\n".join(line for line in text.split("\n") if not _is_credit(line))
        text = _SIGNED.sub("", text)
    else:
        text = _ACKNOWLEDGEMENTS.sub("", text)
        text = _AUTHOR_FIELD.sub("", text)
        text = "\n".join(line for line in text.split("\n") if not _AUTHOR_COMMENT.match(line))
        text = _CREDIT_IN_BRACKETS.sub(lambda m: "\n" if m.group(0).endswith("\n") else "", text)
        text = _CREDIT_SENTENCE.sub("", text)
    text = _BY_NAMES.sub(lambda m: m.group("lead") + _without_names(m.group("names"), people), text)
    text = _without_names(text, people)
    text = _REPEATED.sub("contributors", _ALONE.sub("a contributor", text))
    return EMAIL.sub(PLACEHOLDER, text)


def _is_credit(line: str) -> bool:
    if _AUTHOR_COMMENT.match(line):
        return True
    return bool(_CREDIT_WORD.search(line) and _CREDIT_COMMENT.match(line))


def _without_names(text: str, people: People) -> str:
    return _FULL_NAME.sub(lambda match: _replaced(match.group(0), people), text)


def _replaced(found: str, people: People) -> str:
    """`found`, two or more capitalised words, with the person in it replaced; the words before the person stay."""
    parts = re.split(r"(\s+)", found)
    for i in range(0, len(parts) - 2, 2):
        rest = "".join(parts[i:])
        plain = re.sub(r"['’]s$", "", " ".join(rest.split()))
        known = plain in people.names
        if known or (parts[i] in people.first and not _NO_PERSON.intersection(re.findall(r"\w+", plain))):
            return "".join(parts[:i]) + ("a contributor's" if rest.endswith(("'s", "’s")) else "a contributor")
    return found
