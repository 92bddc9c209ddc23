"""The shipped corpora: names, documents, tokens, and what they need to load."""

from __future__ import annotations

import ast
import errno
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from mamba_lab.corpus import CORPORA, Corpus, Document, Turn, load_corpus
from mamba_lab.tokenizer import load_tokenizer, role_token


@pytest.mark.parametrize("name", CORPORA)
def test_documents_have_distinct_ids_and_text(name: str) -> None:
    corpus = load_corpus(name)
    assert corpus.name == name
    assert corpus.skipped.count == 0
    ids = [document.id for document in corpus]
    assert all(document.text.strip() for document in corpus)
    assert {document.source for document in corpus} == {name}
    # A module may define a function twice, for two platforms: the ids tell those apart by nothing but the text.
    assert len({(document.id, document.text) for document in corpus}) > 0.99 * len(corpus)
    assert name == "code" or len(set(ids)) == len(ids)


def test_each_loads_within_a_second_without_libraries() -> None:
    script = textwrap.dedent(
        """
        import sys, time
        sys.modules["datasets"] = sys.modules["tokenizers"] = sys.modules["torch"] = None
        from mamba_lab.corpus import CORPORA, load_corpus
        for name in CORPORA:
            start = time.process_time()
            assert len(load_corpus(name)) > 400
            assert time.process_time() - start < 1, name
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_second_load_costs_nothing() -> None:
    first = load_corpus("docs")
    start = time.process_time()
    assert load_corpus("docs") is first
    assert time.process_time() - start < 0.01


def test_code_is_functions_that_parse() -> None:
    corpus = load_corpus("code")
    for document in corpus[:: len(corpus) // 500]:
        (node,) = ast.parse(document.text).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        assert document.id.rpartition(":")[2].rpartition(".")[2] == node.name


def test_functions_come_from_the_modules() -> None:
    modules = {document.id: document.text for document in load_corpus("code-modules")}
    for text in list(modules.values())[::20]:
        ast.parse(text)
    for document in load_corpus("code")[::100]:
        first = document.text.split("\n")[0]
        assert first in modules[document.id.rpartition(":")[0]]


def test_chat_has_two_roles_in_turn_and_is_rendered() -> None:
    for document in load_corpus("chat"):
        assert document.turns is not None
        roles = [turn.role for turn in document.turns]
        assert len(roles) >= 2
        assert roles == [("user", "assistant")[i % 2] for i in range(len(roles))]
        assert document.text == "".join(role_token(turn.role) + turn.text for turn in document.turns)


def test_tokens_decode_to_the_text() -> None:
    tokenizer = load_tokenizer()
    for name in CORPORA:
        part = load_corpus(name)[:20]
        for document, ids in zip(part, part.tokenize(), strict=True):
            assert ids.dtype == np.int32
            assert tokenizer.decode(ids) == document.text


def test_roles_are_special_tokens_only_where_a_turn_begins() -> None:
    tokenizer = load_tokenizer()
    turns = (Turn("user", "I say <|assistant|> myself"), Turn("assistant", ""), Turn("user", "bye"))
    (ids,) = Corpus([Document("", "a", "test", turns)], "test").tokenize()
    special = [i for i in ids if i in tokenizer.role_ids.values()]
    assert special == [tokenizer.role_ids[role] for role in ("user", "assistant", "user")]
    assert ids.tolist() == tokenizer.encode_turns([(turn.role, turn.text) for turn in turns])


def test_tokens_are_kept_and_shared_with_slices() -> None:
    part = load_corpus("chat")[:30]
    assert part.tokenize() is part.tokenize(load_tokenizer())
    assert all(a is b for a, b in zip(part[10:20].tokenize(), part.tokenize()[10:20], strict=True))
    lengths = part.lengths()
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [len(ids) for ids in part.tokenize()]
    with pytest.raises(ValueError, match="read-only"):
        part.tokenize()[0][0] = 1


def test_a_corpus_is_a_sequence() -> None:
    corpus = load_corpus("docs")
    assert isinstance(corpus[0], Document)
    assert isinstance(corpus[:3], Corpus)
    assert [document.text for document in corpus[:3]] == corpus.texts[:3]
    assert corpus[-1] is list(corpus)[-1]
    assert "docs" in repr(corpus)


def test_no_documents() -> None:
    empty = Corpus([], "none")
    assert empty.tokenize() == []
    assert empty.lengths().shape == (0,)


def test_an_unknown_name_lists_the_known_ones_and_the_paths() -> None:
    with pytest.raises(ValueError, match="no corpus has that name") as caught:
        load_corpus("dcos")
    for word in (*CORPORA, ".jsonl", ".parquet", ".txt", "folder", "owner/name"):
        assert word in str(caught.value)


def test_a_wrong_on_error_is_named() -> None:
    with pytest.raises(ValueError, match=r"on_error is 'ignore'"):
        load_corpus("docs", on_error="ignore")


@pytest.mark.parametrize("name", ["", "  ", None, 3, ["docs"]])
def test_no_name_is_not_the_current_folder(name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"name_or_path is .*: expected a corpus's name"):
        load_corpus(name)  # type: ignore[call-overload]
    assert load_corpus(".").texts == ["one"]
    assert load_corpus(Path("a.txt")).texts == ["one"]


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("max_line_bytes", 1.5),
        ("max_line_bytes", "9"),
        ("max_line_bytes", None),
        ("max_line_bytes", True),
        ("max_line_bytes", -1),
        ("text_field", []),
        ("text_field", None),
        ("streaming", "no"),
        ("streaming", 1),
        ("on_error", []),
    ],
)
@pytest.mark.parametrize("name", ["docs", "a.jsonl"])
def test_a_wrong_argument_is_named(argument: str, wrong: object, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{argument} is {re.escape(repr(wrong))}: expected "):
        load_corpus(name, **{argument: wrong})  # type: ignore[call-overload]


@pytest.mark.parametrize(("name", "why"), [("x" * 5000, "5,000 characters.*too long"), ("a\0b.txt", "null")])
def test_a_name_the_system_refuses_is_named(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"name_or_path: .*{why}") as caught:
        load_corpus(name)
    assert len(str(caught.value)) < 500


def test_a_path_that_may_not_be_looked_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(ValueError, match=r"a\.txt' cannot be looked up: Permission denied"):
        load_corpus(str(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("tokenizers", "corpus[:1].tokenize()"),
        ("pyarrow", "load_corpus('x.parquet')"),
        ("datasets", "load_corpus('a/b')"),
    ],
)
def test_a_missing_library_is_named_with_the_remedy(module: str, call: str, tmp_path: object) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        sys.modules[{module!r}] = None
        from mamba_lab.corpus import load_corpus
        open("x.parquet", "w").close()
        corpus = load_corpus("chat")
        try:
            {call}
        except ImportError as error:
            assert "pip install 'mamba-lab[train]'" in str(error), error
        else:
            sys.exit("no error")
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=str(tmp_path))
