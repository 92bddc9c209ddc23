import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.quote import quotes


def test_names_lines_and_folds() -> None:
    fig = quotes({"prompt": "a $x$ line\n\n\tb", "long": "word " * 40})
    check_labels(fig)
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts[:4] == ["prompt", "a $x$ line", "", "    b"]
    assert texts[4] == "long"
    assert len(texts) == 5 + 3
    assert "".join(texts[5:]).split() == ["word"] * 40


def test_a_long_text_ends_in_an_ellipsis_and_control_characters_are_blanks() -> None:
    texts = [text.get_text() for text in quotes({"it": "a\x00b\n" * 30}).axes[0].texts]
    assert texts[1] == "a b"
    assert (len(texts), texts[-1]) == (15, "…")


def test_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="texts is empty"):
        quotes({})
