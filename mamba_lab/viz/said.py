"""What models say after one prompt: a row of words for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mamba_lab.viz.colours import DOCUMENT_COLOURS, INK, PADDING, PADDING_HATCH
from mamba_lab.viz.style import SMALL, new_figure, style
from mamba_lab.viz.target_rows import fitting

_WORDS_WIDE = 5.9  # inches that the words take, right of the names


def continuations(said: Mapping[str, Sequence[str]], prompt: Sequence[str], *, padding: str = "<|pad|>") -> Figure:
    """A row for each model: the words of the prompt, then what it says. Padding is hatched, as in every picture.

    Args:
        said: the words that a model says, by its name.
        prompt: the words before them, the same for all.
        padding: the word that stands for padding.
    """
    longest = max((len(words) for words in said.values()), default=0)
    if not longest:
        raise ValueError("said: expected at least one model that says at least one word")
    columns = len(prompt) + longest
    with style():
        fig = new_figure(0.5 + 0.36 * len(said))
        ax = fig.subplots()
        for y, words in enumerate(said.values()):
            for x, word in enumerate([*prompt, *words]):
                pad, given = word == padding, x < len(prompt)
                fill = PADDING if pad or given else DOCUMENT_COLOURS["A"]
                patch = Rectangle(
                    (x + 0.03, y + 0.1), 0.94, 0.8, facecolor=fill, edgecolor=PADDING_HATCH if pad else INK,
                    hatch="////" if pad else None, linewidth=0.7,
                )  # fmt: skip
                ax.add_patch(patch)
                ax.text(x + 0.5, y + 0.5, fitting(word.strip("<|>"), _WORDS_WIDE * 72 / columns - 4), ha="center",
                        va="center_baseline", fontsize=SMALL, color=INK, parse_math=False)  # fmt: skip
        ax.axvline(len(prompt), color=INK, linewidth=2.4, linestyle="-")
        ax.set_xlim(0, columns)
        ax.set_ylim(len(said), 0)
        ax.set_yticks([y + 0.5 for y in range(len(said))], list(said))
        ax.set_xticks([len(prompt) / 2, len(prompt) + longest / 2], ["the prompt", "what the model says"])
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return fig
