import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.said import continuations


def test_prompt_and_words_and_hatched_padding() -> None:
    fig = continuations({"right": ["we", "cook"], "filled": ["<|pad|>", "<|pad|>"]}, ["they"])
    check_labels(fig)
    ax = fig.axes[0]
    assert [text.get_text() for text in ax.texts] == ["they", "we", "cook", "they", "pad", "pad"]
    assert [bool(patch.get_hatch()) for patch in ax.patches] == [False] * 4 + [True] * 2
    assert [label.get_text() for label in ax.get_yticklabels()] == ["right", "filled"]


@pytest.mark.parametrize("said", [{}, {"right": []}])
def test_nothing_said_is_refused(said: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="said: expected at least one model"):
        continuations(said, ["they"])
