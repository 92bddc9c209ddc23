"""A batch with its targets: each input above the token that its position must predict; hollow where none counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mamba_lab.batching import Batch
from mamba_lab.viz.colours import CARD, INK, LEAK, MUTED, PADDING, PADDING_HATCH, document_colour
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import SMALL, TEXT, WIDTH, style

_LABEL = 0.62  # inches left of the cells
_CELL, _GAP = 0.3, 0.2  # inches: a cell's height, and the room between two rows
_TITLE = 0.2
_WIDEST = 0.86
_NO_TARGET = -100


def draw_targets(batch: Batch, words: Callable[[int], str], *, titles: Sequence[str] | None = None) -> Figure:
    """Two lines a row: the inputs in their document's colour, and below each what it must predict.

    A position without target is hollow. A target that is not the next token of the same sequence has a red dashed
    frame and a cross.

    Args:
        batch: a few rows of a few positions.
        words: the text of a token id; a text that is too wide is cut.
        titles: one for each row, above it.

    Raises:
        ValueError: there are more or fewer titles than rows.
    """
    rows, width = batch.input_ids.shape
    if titles is not None and len(titles) != rows:
        raise ValueError(f"titles has {len(titles)} entries, expected {rows}, one for each row")
    pitch = 2 * _CELL + _GAP + (_TITLE if titles else 0.0)
    owner = batch.sequence[batch.boundaries.seq_idx.long()].tolist()
    first = (batch.boundaries.position_indices == 0).tolist()
    ids, targets = batch.input_ids.flatten().tolist(), batch.targets.flatten().tolist()
    cell = min(_WIDEST, (WIDTH - _LABEL - 0.1) / width)
    height = rows * pitch
    with style():
        fig = Figure(figsize=(WIDTH, height))
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(height, 0)
        ax.axis("off")
        for row in range(rows):
            y = (row + 1) * pitch - 2 * _CELL - _GAP / 2
            if titles:
                ax.text(_LABEL + 0.01, y - 0.05, titles[row], va="bottom", fontsize=TEXT, color=INK)
            for line, name in enumerate(("input", "target")):
                ax.text(_LABEL - 0.08, y + (line + 0.5) * _CELL, name, ha="right", va="center_baseline",
                        fontsize=SMALL, color=MUTED)  # fmt: skip
            for column in range(width):
                at, x = row * width + column, _LABEL + column * cell
                own = owner[at]
                if own >= 0:
                    _cell(ax, x, y, cell, INK, words(ids[at]), facecolor=document_colour(own))
                else:
                    _cell(ax, x, y, cell, PADDING_HATCH, "", facecolor=PADDING, hatch="////")
                y2, target = y + _CELL, targets[at]
                if target == _NO_TARGET:
                    _cell(ax, x, y2, cell, PADDING_HATCH, "", facecolor=CARD)
                    continue
                goes_on = at + 1 < len(ids) and not first[at + 1] and own >= 0
                right = goes_on and target == ids[at + 1]
                fill = document_colour(own) if right else CARD
                text = words(target) if right else f"× {words(target)}"
                _cell(ax, x, y2, cell, INK if right else LEAK, text, facecolor=fill, wrong=not right)
    return fig


def _cell(
    ax: Axes, x: float, y: float, width: float, edge: str, text: str, *, facecolor: str, hatch: str | None = None,
    wrong: bool = False,
) -> None:  # fmt: skip
    inset = 0.02
    patch = Rectangle(
        (x + inset / 2, y + inset / 2), width - inset, _CELL - inset, facecolor=facecolor, edgecolor=edge, hatch=hatch,
        linewidth=1.8 if wrong else 0.7, linestyle=(0, (3, 1.4)) if wrong else "-",
    )  # fmt: skip
    ax.add_patch(patch)
    if text:
        shown = fitting(text, (width - inset) * 72 - 2)
        ax.text(x + width / 2, y + _CELL / 2, shown, ha="center", va="center_baseline", fontsize=SMALL, color=INK,
                parse_math=False)  # fmt: skip


def fitting(text: str, points: float) -> str:
    """``text``, or as much of its beginning as fits, with an ellipsis."""
    if text_width(text, SMALL) <= points:
        return text
    while text and text_width(f"{text}…", SMALL) > points:
        text = text[:-1]
    return f"{text}…" if text else ""
