"""The scan stepper: walk through a parallel scan's rounds and watch a reset. Only the widget needs ipywidgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from mamba_lab.viz.colours import document_name
from mamba_lab.viz.figure import to_png
from mamba_lab.viz.scan_tree import MOST_TOKENS, fraction, number, pairs_of, scan_rounds, scan_tree
from mamba_lab.viz.style import PAGE_WIDTH
from mamba_lab.viz.widgets import boxed, control_look, escaped, lengths_field, parse_lengths

if TYPE_CHECKING:
    import ipywidgets


def step(lengths: Sequence[int], x: Sequence[float], rounds: int, token: int) -> tuple[Figure, str]:
    """The tree of :func:`mamba_lab.viz.scan_tree.scan_tree` after ``rounds`` rounds, and how ``token`` got its pair.

    Raises:
        ValueError: as for ``scan_tree``.
    """
    figure = scan_tree(lengths, x, rounds=rounds, token=token)
    names = [f"{document_name(s)}{p}" for s, n in enumerate(lengths) for p in range(n)]
    levels = scan_rounds(pairs_of(lengths, x))
    a, b = (fraction(levels[rounds][token][0]), number(levels[rounds][token][1]))
    width = 2 ** (rounds - 1) if rounds else 0
    if not width:
        return figure, f"Before the first round. {names[token]} is the pair ({a}, {b})."
    if token // width % 2 == 0:
        return figure, f"Round {rounds}. {names[token]} is in a left half: its pair ({a}, {b}) stays."
    left = token // width * width - 1
    (a1, b1), (a2, b2) = levels[rounds - 1][left], levels[rounds - 1][token]
    what = f"({fraction(a2)} · {fraction(a1)}, {fraction(a2)} · {number(b1)} + {number(b2)}) = ({a}, {b})"
    text = f"Round {rounds}. {names[token]} takes in {names[left]}: {what}."
    if a2 == 0:
        text += f" Its piece holds a start already, so nothing of {names[left]} arrives."
    elif a1 == 0:
        text += f" The zero of {names[left]} survives: {names[token]} is finished."
    return figure, text


def scan_stepper(lengths: Sequence[int] | None = None) -> ipywidgets.VBox:
    """The stepper as a widget, for the running example (each token adds its word's letters) or your own ``lengths``.

    The parts are also attributes of the returned box, by name in ``box.parts``: round, token, own, image, text.
    """
    import ipywidgets as w

    from mamba_lab.example import LENGTHS, WORDS

    letters = [len(word) for document in WORDS for word in document]
    look = control_look()
    rounds = w.IntSlider(value=0, min=0, max=4, description="round", continuous_update=False, **look)
    token = w.IntSlider(value=8, min=0, max=15, description="token", continuous_update=False, **look)
    own = lengths_field(lengths or LENGTHS)
    image, text = w.Image(format="png", width=PAGE_WIDTH), w.HTML()

    def update(_: object = None) -> None:
        try:
            chosen = parse_lengths(own.value)
            T = sum(chosen)
            if T > MOST_TOKENS:
                raise ValueError(f"lengths add up to {T}: expected at most {MOST_TOKENS} tokens")
            x = letters if tuple(chosen) == LENGTHS else [1 + t % 9 for t in range(T)]
            token.max, rounds.max = T - 1, (T - 1).bit_length()
            figure, said = step(chosen, x, rounds.value, token.value)
        except ValueError as error:
            text.value = "<b>✗</b> " + escaped(str(error))
            return
        image.value, text.value = to_png(figure), said

    parts = {"round": rounds, "token": token, "own": own}
    return boxed(parts, text, image, update)
