"""The shipped data: nothing personal is left in it, the licences lie beside it, and the cleaning does what it says."""

from __future__ import annotations

import codecs
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mamba_lab.corpus import CORPORA, load_corpus
from mamba_lab.paths import data_dir
from mamba_lab.tokenizer import load_tokenizer

WORDS = data_dir() / "words"
EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?!\w)|<[\w.+-]+ at [\w-]+\.[\w.]+>")
CREDIT = re.compile(
    r"\((?:[Cc]ontributed|[Pp]atch) by [A-Z]|sectionauthor|moduleauthor|codeauthor|__author__ *=|__credits__ *="
    r"|^[ #.:*]*(?:[Aa]uthor|[Ww]ritten by|[Cc]ontributed by|[Mm]aintainer):? +[A-Z][a-z]+ [A-Z][a-z]+",
    re.MULTILINE,
)
LINK = re.compile(r"https?:|www\.\w|\.(?:com|org|net|edu)\b", re.IGNORECASE)
LONG_NUMBER = re.compile(r"\d{4,}|\d[\d\s().-]{5,}\d")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")
INTRODUCTION = re.compile(r"\b(?:my name|name'?s|name is|call me|phone number|instagram)\b", re.IGNORECASE)


def matches(pattern: re.Pattern[str], *names: str) -> Iterator[str]:
    for name in names:
        for document in load_corpus(name):
            for match in pattern.finditer(document.text):
                yield f"{document.id}: {match.group(0)!r}"


def test_no_address_of_a_person() -> None:
    found = [m for m in matches(EMAIL, "docs", "code-modules", "code", "chat") if "'name@example.com'" not in m]
    assert found == []


def test_no_credits_and_author_fields() -> None:
    assert list(matches(CREDIT, "docs", "code-modules", "code")) == []


@pytest.mark.parametrize(
    "name", ["Guido van Rossum", "Raymond Hettinger", "Victor Stinner", "Tim Peters", "Fred L. Drake"]
)
def test_the_most_credited_people_are_not_named(name: str) -> None:
    pattern = re.compile(r"\s+".join(map(re.escape, name.split())))
    assert list(matches(pattern, "docs", "code-modules", "chat")) == []


@pytest.mark.parametrize("pattern", [LINK, LONG_NUMBER, UUID, INTRODUCTION, re.compile("@")])
def test_chat_has_no_links_numbers_ids_or_introductions(pattern: re.Pattern[str]) -> None:
    assert list(matches(pattern, "chat")) == []


def test_chat_has_no_unwanted_words() -> None:
    words = codecs.decode((WORDS / "unwanted.rot13.txt").read_text("utf-8"), "rot13").split()
    pattern = re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)
    assert pattern.search(codecs.decode("qnza", "rot13"))
    assert list(matches(pattern, "chat")) == []


def test_chat_has_no_first_names() -> None:
    also_words = {"will", "rob", "bill", "frank", "hunter", "jack", "carter", "jordan", "austin", "madison", "sam"}
    names = set((WORDS / "first_names.txt").read_text("utf-8").split()) - also_words
    assert len(names) > 100
    assert list(matches(re.compile(rf"\b(?:{'|'.join(sorted(names))})\b", re.IGNORECASE), "chat")) == []


def test_code_has_no_notice_of_others() -> None:
    notice = re.compile(r"(?i)copyright[^\n]{0,30}\b(?:19|20)\d\d[^\n]*|permission to use|SPDX|apache license")
    found = [m for m in matches(notice, "code-modules") if "Python Software Foundation" not in m]
    assert found == []


def test_no_path_of_the_machine_that_built_it() -> None:
    assert (
        list(matches(re.compile(r"/root/|/home/(?!user|\w+/lib|ftp|pi\b)\w+/\.|\.pyenv"), "docs", "code-modules")) == []
    )


def test_licences_and_their_readme_lie_beside_the_data() -> None:
    corpus = data_dir() / "corpus"
    for name, words in {
        "docs": "PSF LICENSE AGREEMENT",
        "code": "PYTHON SOFTWARE FOUNDATION LICENSE",
        "chat": "MIT License",
    }.items():
        assert words.lower() in (corpus / f"LICENSE.{name}.txt").read_text("utf-8").lower()
    assert sum(path.stat().st_size for path in corpus.iterdir()) < 6_000_000


def test_the_readme_counts_what_is_shipped() -> None:
    readme = (data_dir() / "README.md").read_text("utf-8")
    for name in ("docs", "code", "code-modules", "chat"):
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {len(load_corpus(name)):,} |" in row


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    if not (data_dir() / "clean.py").is_file():
        pytest.skip("the scripts lie in the repository only")
    monkeypatch.syspath_prepend(str(Path(data_dir())))
    import clean

    yield clean
    sys.modules.pop("clean", None)


def test_what_the_cleaning_takes_out(clean: object) -> None:
    text = (
        ".. sectionauthor:: Jane Q. Roe-Smith <jane@host.org>\n\nThe new method is faster.\n"
        "(Contributed by Jane Q. Roe-Smith and\nHans von Muster in :issue:`1`.)\n"
        "This was written by Hans von Muster, who liked it.  Jane Q. Roe-Smith's idea stays.  "
        "Write to hans@muster.de.\n"
        "Use the New Style Class with Argument Clinic.\n"
    )
    people = clean.collect_people([text])  # type: ignore[attr-defined]
    assert clean.neutralise(text, people) == (  # type: ignore[attr-defined]
        "\nThe new method is faster.\n"
        "This was written by a contributor, who liked it.  a contributor's idea stays.  Write to name@example.com.\n"
        "Use the New Style Class with Argument Clinic.\n"
    )


def test_what_the_cleaning_takes_out_of_code(clean: object) -> None:
    people = clean.People(frozenset({"Hans Muster"}), frozenset({"Hans"}))  # type: ignore[attr-defined]
    code = (
        "# Written by Hans Muster <hans at muster.de>\n# Author: Hans Muster\nx = author(1)  # by the caller -- gvr\n"
    )
    assert clean.neutralise(code, people, code=True) == "x = author(1)  # by the caller\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(CORPORA))
def test_the_counted_lengths_are_those_of_the_tokens(name: str) -> None:
    corpus = load_corpus(name)
    counted = corpus.lengths()
    assert len(counted) == len(corpus)
    some = slice(0, None, 40)
    assert counted[some].tolist() == [len(ids) for ids in corpus[some].tokenize()]
    assert corpus[some].lengths().tolist() == counted[some].tolist()


def test_another_tokenizer_counts_for_itself(tmp_path: Path) -> None:
    other = load_tokenizer(shutil.copy(data_dir() / "tokenizer.json", tmp_path / "other.json"))
    corpus = load_corpus("chat")[:3]
    corpus._counted = corpus._counted + 1000
    assert corpus.lengths(other).tolist() == [len(ids) for ids in corpus.tokenize(other)]
    assert (corpus.lengths() > 1000).all()
