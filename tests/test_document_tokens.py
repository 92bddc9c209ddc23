"""Which tokens somebody says: an off-by-one here teaches the wrong speaker."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from mamba_lab.batching import make_targets
from mamba_lab.corpus import Corpus, load_corpus
from mamba_lab.document import Document, Turn, render
from mamba_lab.document_tokens import said_by, tokenize_document
from mamba_lab.tokenizer import load_tokenizer


def conversation(*turns: tuple[str, str]) -> Document:
    made = tuple(Turn(role, text) for role, text in turns)
    return Document(render(made), "a", "test", made)


TALK = conversation(("system", "Be kind"), ("user", "We cook"), ("assistant", "People love music"), ("user", "I walk"))


def words(document: Document, role: str) -> list[str]:
    tokenizer, ids = load_tokenizer(), tokenize_document(document)
    return [tokenizer.token(token) for token, said in zip(ids, said_by(document, role), strict=True) if said]


def test_a_turn_and_the_token_that_ends_it() -> None:
    assert words(TALK, "assistant") == ["People", " love", " music", "<|user|>"]
    assert words(TALK, "user") == ["We", " cook", "<|assistant|>", "I", " walk"]
    assert words(TALK, "system") == ["Be", " kind", "<|user|>"]
    assert said_by(TALK).dtype == np.bool_


def test_targets_start_at_the_role_token_and_end_before_the_next() -> None:
    ids = tokenize_document(TALK)
    targets = make_targets(ids, "assistant", said=said_by(TALK))
    at = np.flatnonzero(targets != -100)
    tokenizer = load_tokenizer()
    assert [tokenizer.token(i) for i in ids[at]] == ["<|assistant|>", "People", " love", " music"]
    assert [tokenizer.token(i) for i in targets[at]] == ["People", " love", " music", "<|user|>"]


def test_two_turns_of_the_same_speaker_and_an_empty_one() -> None:
    twice = conversation(("assistant", "We"), ("assistant", ""), ("user", ""), ("assistant", "No"))
    assert words(twice, "assistant") == ["We", "<|assistant|>", "<|user|>", "No"]
    assert words(twice, "user") == ["<|assistant|>"]
    assert said_by(conversation()).tolist() == []


def test_words_that_look_like_a_role_token_change_nothing() -> None:
    document = conversation(("user", "<|assistant|> We"), ("assistant", "No"))
    assert words(document, "assistant") == ["No"]


def test_a_corpus_gives_what_its_documents_give() -> None:
    corpus = load_corpus("chat")[:40]
    ids, said = corpus.tokenize(), corpus.said_by("assistant")
    for document, tokens, mask in zip(corpus, ids, said, strict=True):
        assert np.array_equal(tokens, tokenize_document(document))
        assert np.array_equal(mask, said_by(document, "assistant"))
    part = corpus[10:12]
    assert all(np.array_equal(a, b) for a, b in zip(part.said_by(), said[10:12], strict=True))
    # Each token but a conversation's first is said by exactly one of the speakers.
    for mask, other in zip(said, corpus.said_by("user"), strict=True):
        assert (mask ^ other).tolist() == [False] + [True] * (len(mask) - 1)


def test_a_document_without_turns_and_an_unknown_role() -> None:
    plain = Document("We cook", "b.txt", "test")
    for call in (lambda: said_by(plain), Corpus([TALK, plain], "test").said_by):
        with pytest.raises(ValueError, match=r"document 'b\.txt' \(from test\) is no conversation.*whole"):
            call()
    with pytest.raises(ValueError, match="role is 'robot': expected one of user, assistant, system"):
        said_by(TALK, "robot")
    assert Corpus([], "test").said_by() == []


def test_what_is_no_document_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'We cook' is a str, expected a Document: .*load_tokenizer\(\)\.encode"):
        tokenize_document("We cook")  # type: ignore[arg-type]
    odd = Document("x", "c", "test", (Turn("user", "We"), Turn("tool", "cook")))
    for call in (tokenize_document, said_by, lambda document: Corpus([document], "test").tokenize()):
        with pytest.raises(
            ValueError,
            match=r"document 'c' \(from test\): turns\[1\] has the role 'tool', expected one of user, assistant,",
        ):
            call(odd)
