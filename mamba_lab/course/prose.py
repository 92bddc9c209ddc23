"""Rules about a notebook's prose: short sentences, present tense, no filler, formulas that a page can show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .findings import Finding, Sheet
from .glossary import GLOSSARY
from .mathml import FormulaError, to_mathml

WORDS = 2000
SENTENCE_WORDS = 32
AVERAGE_WORDS = 18
HEADING_WORDS = 9
BANNED: dict[str, str] = {
    r"simply": "Leave it out",
    r"just": "Leave it out, or write only",
    r"obviously": "Leave it out, or give the reason",
    r"trivial(ly)?": "Leave it out, or give the reason",
    r"of course": "Leave it out",
    r"clearly": "Leave it out, or give the reason",
    r"eas(y|ily)": "Say what it takes instead",
    r"in this notebook,? we": "Begin with the matter itself",
    r"utili[sz](e|es|ed|ing|ation)": "Write use",
    r"leverag(e|es|ed|ing)": "Write use",
    r"note that": "Leave it out",
    r"it is important": "Say why instead",
}
_FUTURE = re.compile(
    r"\b(we|you|i|they|it|this|that|there|notebooks?|sections?|chapters?|readers?|next)( next| later)? (will|shall)\b"
    r"|\b(we|you|i|they|it)['’]ll\b|\b(am|are|is) going to\b",
    re.IGNORECASE,
)
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|cf|etc|Fig|Eq|No|approx)\.$", re.IGNORECASE)
_BOLD, _END = "\x02", "\x03"


@dataclass
class Block:
    """A piece of prose: ``kind`` is paragraph, item, heading, quote or table; ``text`` has code and formulas replaced
    by one word each, and bold text between control characters (``plain`` is without those)."""

    kind: str
    text: str
    formulas: list[str] = field(default_factory=list)

    @property
    def plain(self) -> str:
        return self.text.replace(_BOLD, "").replace(_END, "")


def blocks(source: str) -> list[Block]:
    """The prose of a Markdown cell, parsed as the pages' own renderer parses it."""
    from mistune import Markdown, import_plugin
    from nbconvert.filters.markdown_mistune import MathBlockParser, MathInlineParser

    parser = Markdown(
        None, MathBlockParser(), MathInlineParser(hard_wrap=False), [import_plugin("table"), import_plugin("url")]
    )
    found: list[Block] = []
    tokens = parser.parse(source)[0]
    assert isinstance(tokens, list)  # without a renderer mistune gives the tokens
    _collect(tokens, "paragraph", found)
    return [block for block in found if block.plain.strip()]


def sentences(text: str) -> list[str]:
    """``text`` cut after a full stop, question or exclamation mark that a new sentence follows."""
    parts: list[str] = []
    for part in re.split(r"(?<=[.?!])[\"”’)]*\s+(?=[\"“‘(]?[A-Z0-9‹])", " ".join(text.split())):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += f" {part}"
        elif part:
            parts.append(part)
    return parts


def words(text: str) -> list[str]:
    """What a reader reads as words: anything between spaces with a letter or a digit in it."""
    return [word for word in text.split() if re.search(r"\w", word)]


def length(sheet: Sheet) -> Iterator[Finding]:
    """A notebook is read in one sitting."""
    total = sum(len(words(block.plain)) for _, block in _prose(sheet))
    if total > WORDS:
        yield sheet.whole(f"{total} words of prose, at most {WORDS}", "Cut what the figures and the code already say")


def sentence_length(sheet: Sheet) -> Iterator[Finding]:
    """No sentence that has to be read twice, and short ones on average."""
    counts: list[int] = []
    for index, block in _prose(sheet):
        if block.kind in ("heading", "table"):
            continue
        for sentence in sentences(block.plain):
            n_words = len(words(sentence))
            if n_words > SENTENCE_WORDS:
                start = " ".join(sentence.split()[:6])
                yield sheet.at(
                    index, f"a sentence of {n_words} words, at most {SENTENCE_WORDS} ({start!r} ...)", "Make it two"
                )
            if block.kind != "item" or sentence[-1:] in ".?!":
                counts.append(n_words)
    if counts and sum(counts) / len(counts) > AVERAGE_WORDS:
        average = sum(counts) / len(counts)
        yield sheet.whole(f"{average:.1f} words a sentence on average, at most {AVERAGE_WORDS}", "Shorten the longest")


def wording(sheet: Sheet) -> Iterator[Finding]:
    """No filler, no exclamation marks, no promises."""
    for index, block in _prose(sheet):
        for pattern, remedy in BANNED.items():
            if match := re.search(rf"\b{pattern}\b", block.plain, re.IGNORECASE):
                yield sheet.at(index, f"the word {match[0]!r}", remedy)
        if "!" in block.plain:
            yield sheet.at(index, "an exclamation mark", "End with a full stop")
        if match := _FUTURE.search(block.plain):
            yield sheet.at(index, f"a promise ({match[0]!r})", "Use the present tense")


def headings(sheet: Sheet) -> Iterator[Finding]:
    """A heading is a short sentence or question."""
    for index, block in _prose(sheet):
        n_words = len(words(block.plain))
        if block.kind == "heading" and n_words > HEADING_WORDS:
            yield sheet.at(index, f"a heading of {n_words} words, at most {HEADING_WORDS}", "Shorten it")


def formulas(sheet: Sheet) -> Iterator[Finding]:
    """Each formula converts to MathML; otherwise the page would show its source."""
    for index, block in _prose(sheet):
        for formula in block.formulas:
            if complaint := _complaint(formula):
                yield sheet.at(index, complaint, "Use a command that latex2mathml knows")


def glossary(sheets: Sequence[Sheet]) -> Iterator[Finding]:
    """Over the whole course, in order: where a term occurs first it is bold, in a sentence.

    Headings, tables, first cells, code and formulas do not count as a use.
    """
    for term in GLOSSARY:
        pattern = re.compile(rf"\b{re.escape(term)}s?\b", re.IGNORECASE)
        for sheet, index, block in _uses(sheets):
            match = pattern.search(block.text)
            if not match:
                continue
            before = block.text[: match.start()]
            bold = before.count(_BOLD) > before.count(_END)
            if not bold or len(words(block.plain)) < 4:
                yield sheet.at(
                    index,
                    f"{term!r} occurs for the first time in the course, undefined",
                    f"Write **{term}** there, in a sentence that says what it is: {GLOSSARY[term].rstrip('.')}",
                )
            break


def _complaint(formula: str) -> str | None:
    try:
        to_mathml(formula)
    except FormulaError as error:
        return str(error)
    return None


def _uses(sheets: Iterable[Sheet]) -> Iterator[tuple[Sheet, int, Block]]:
    for sheet in sheets:
        for index, block in _prose(sheet):
            if index and block.kind not in ("heading", "table"):
                yield sheet, index, block


def _prose(sheet: Sheet) -> Iterator[tuple[int, Block]]:
    for index, cell in enumerate(sheet.cells):
        if cell.cell_type == "markdown":
            yield from ((index, block) for block in blocks(cell.source))


def _collect(tokens: Iterable[dict[str, Any]], kind: str, found: list[Block]) -> None:
    """Append the blocks below ``tokens``; ``kind`` is what they stand in."""
    for token in tokens:
        type_ = token["type"]
        if type_ in ("paragraph", "block_text", "heading", "table_cell"):
            block = Block({"heading": "heading", "table_cell": "table"}.get(type_, kind), "")
            block.text = "".join(_inline(child, block) for child in token.get("children", []))
            found.append(block)
        elif "children" in token:
            inside = {"list_item": "item", "block_quote": "quote"}.get(type_, kind)
            _collect(token["children"], inside, found)


def _inline(token: dict[str, Any], block: Block) -> str:
    type_ = token["type"]
    if type_ == "codespan":
        return "‹code›"
    if type_ in ("inline_math", "block_math"):
        block.formulas.append(token["raw"])
        return "‹formula›"
    if type_ == "latex_environment":
        name, body = token["attrs"]["name"], token["attrs"]["body"]
        block.formulas.append(f"\\begin{{{name}}}{body}\\end{{{name}}}")
        return "‹formula›"
    if type_ in ("softbreak", "linebreak", "inline_html"):
        return " "
    if "children" in token:
        inner = "".join(_inline(child, block) for child in token["children"])
        return f"{_BOLD}{inner}{_END}" if type_ == "strong" else inner
    return str(token.get("raw", ""))
