from __future__ import annotations

from mamba_lab.example import DOCUMENTS, LENGTHS, NAMES, SWAP, WORDS, diaries
from mamba_lab.tokenizer import load_tokenizer


def test_the_documents_have_the_lengths_of_the_published_example() -> None:
    tokenizer = load_tokenizer()
    assert LENGTHS == (4, 2, 3, 7)
    assert tuple(len(tokenizer.encode(text)) for text in DOCUMENTS) == LENGTHS
    assert len(NAMES) == len(set(NAMES)) == 4


def test_every_word_is_one_token() -> None:
    tokenizer = load_tokenizer()
    for text, words in zip(DOCUMENTS, WORDS, strict=True):
        assert [tokenizer.token(i).strip() for i in tokenizer.encode(text)] == list(words)
        assert " ".join(words) == text


def test_no_token_stands_in_two_documents() -> None:
    tokenizer = load_tokenizer()
    ids = [set(tokenizer.encode(text)) for text in DOCUMENTS]
    assert len(set.union(*ids)) == sum(map(len, ids))


def test_the_swap_changes_one_token_of_document_a() -> None:
    tokenizer = load_tokenizer()
    old, new = SWAP
    assert old in WORDS[0]
    assert new not in {word for words in WORDS for word in words}
    before, after = tokenizer.encode(DOCUMENTS[0]), tokenizer.encode(DOCUMENTS[0].replace(old, new))
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_diaries_repeat_one_food_and_are_the_same_for_a_seed() -> None:
    pairs = diaries(50, seed=3)
    assert pairs == diaries(50, seed=3) != diaries(50, seed=4)
    assert len({sentence.split()[-1] for pair in pairs for sentence in pair}) == 6
    for first, second in pairs:
        assert first.split()[-1] == second.split()[-1]
        assert first.split()[0] == second.split()[0]
        assert sorted((len(first.split()), len(second.split()))) == [3, 4]
    assert {len(first.split()) for first, _ in pairs} == {3, 4}, "the long sentence comes first only in some"
