"""How an error grows with the length of a sequence, a line for each way to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from mamba_lab.viz.style import SMALL, new_figure, style


def errors_by_length(
    lengths: Sequence[int], errors: Mapping[str, Sequence[float]], *, what: str, least: float = 1e-7
) -> Figure:
    """Relative errors over sequence length, both axes logarithmic, each line named at its end.

    Args:
        lengths: [n] tokens, ascending.
        errors: [n] relative errors by name; 0.01 is drawn as 1%.
        what: label of the value axis.
        least: errors below it, zeros too, are drawn at it.

    Raises:
        ValueError: no line, or a line of another length.
    """
    if not errors:
        raise ValueError("errors is empty: expected at least one line")
    for name, line in errors.items():
        if len(line) != len(lengths):
            raise ValueError(f"errors[{name!r}] has {len(line)} values, expected {len(lengths)}, one for each length")
    with style():
        fig = new_figure(3.0)
        ax = fig.subplots()
        ax.set_xscale("log")
        ax.set_yscale("log")
        for name, line in errors.items():
            drawn = [max(value, least) for value in line]
            ax.plot(lengths, drawn, marker="o", markersize=4)
            colour = ax.lines[-1].get_color()
            ax.annotate(name, (lengths[-1], drawn[-1]), xytext=(8, 0), textcoords="offset points", fontsize=SMALL,
                        color=colour, va="center", annotation_clip=False)  # fmt: skip
        ax.set_xlim(lengths[0] / 1.15, lengths[-1] * 4)
        ax.set_xticks(list(lengths), [f"{n:,}" for n in lengths], fontsize=SMALL)
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
        ax.set_xlabel("tokens of the sequence")
        ax.set_ylabel(what)
        ax.grid(axis="y")
    return fig
