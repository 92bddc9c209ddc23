from __future__ import annotations

import pytest

from mamba_lab.course.prose import blocks, sentences, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two? Three", ["One.", "Two?", "Three"]),
        ("Some texts, e.g. Mary's diary, are short. Others, cf. Fig. 3, are not.", 2),
        ("The rate is 0.25 here. ‹code› gives 3.5 times that.", 2),
        ('He said "stop." Then he went.', 2),
        ("One line\nof two lines.", ["One line of two lines."]),
    ],
)
def test_sentences_end_where_a_reader_would_say(text: str, expected: list[str] | int) -> None:
    found = sentences(text)
    assert (found if isinstance(expected, list) else len(found)) == expected


def test_words_are_what_has_a_letter_or_a_digit() -> None:
    assert words("A pack – 4 tokens · done") == ["A", "pack", "4", "tokens", "done"]


def test_blocks_know_what_they_are_and_keep_code_out() -> None:
    source = (
        "## A `head`\n\nA **bold** word, $x$ and `a.b(c)`.\n\n- an item\n\n> a quote\n\n"
        "| cell |\n|---|\n| $$y$$ |\n\n```\nnot prose\n```\n\n$$z$$\n"
    )
    found = blocks(source)
    assert [block.kind for block in found] == ["heading", "paragraph", "item", "quote", "table", "table", "paragraph"]
    assert found[1].plain == "A bold word, ‹formula› and ‹code›."
    assert [formula for block in found for formula in block.formulas] == ["x", "y", "z"]
