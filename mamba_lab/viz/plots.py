"""Plots of measured data.

Each function takes data and gives a figure of page width for :func:`mamba_lab.viz.figure.show`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from mamba_lab.viz.colours import CARD, INK, LEAK, SERIES, document_colour
from mamba_lab.viz.figure import text_width
from mamba_lab.viz.style import DASHES, HATCHES, SMALL, new_figure, style

Lengths = Sequence[int] | np.ndarray


def length_histogram(
    lengths: Lengths | Mapping[str, Lengths], *, capacity: int | None = None, unit: str = "tokens"
) -> Figure:
    """How long documents are, on a logarithmic axis, one panel for each data set, median and longest marked.

    Args:
        lengths: document lengths, or several sets of them by name. Empty documents are left out of the bars and
            counted in the title.
        capacity: draws the length at which chunks are cut.
        unit: what a length counts.
    """
    sets = dict(lengths) if isinstance(lengths, Mapping) else {"": lengths}
    values = {name: np.asarray(v, dtype=np.int64) for name, v in sets.items()}
    for name, v in values.items():
        if v.ndim != 1 or not (v > 0).any():
            raise ValueError(
                f"lengths{f'[{name!r}]' if name else ''}: expected a list with at least one positive length"
            )
    low = max(1, min(int(v[v > 0].min()) for v in values.values()))
    high = max(int(v.max()) for v in values.values())
    edges = np.geomspace(low, high + 1, 41)
    with style():
        fig = new_figure(0.75 + 1.35 * len(values))
        axes = fig.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
        for ax, (name, v) in zip(axes, values.items(), strict=True):
            _histogram(ax, v, edges, capacity, name)
        axes[-1].set_xlabel(f"length of a document ({unit}, logarithmic)")
        fig.supylabel("documents", fontsize=10)
    return fig


def _histogram(ax: Axes, v: np.ndarray, edges: np.ndarray, capacity: int | None, name: str) -> None:
    ax.set_xscale("log")
    ax.hist(v[v > 0], bins=edges.tolist(), color=SERIES[0], edgecolor=CARD, linewidth=0.4)
    ax.set_ylim(0, ax.get_ylim()[1] * 1.6)
    ax.set_xlim(edges[0] / 1.05, edges[-1] * 1.05)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    empty = int((v == 0).sum())
    title = ", ".join(filter(None, [name, f"{len(v):,} documents", f"{empty:,} of them empty" if empty else ""]))
    ax.set_title(title)
    median, longest = float(np.median(v)), int(v.max())
    top = ax.get_ylim()[1]
    marks = [(median, f"median {median:,.0f}", INK, "-"), (longest, f"longest {longest:,}", INK, ":")]
    if capacity is not None:
        marks.append((capacity, f"capacity {capacity:,}", LEAK, "--"))
    # Each label on a level of its own: lengths that lie close together stay readable.
    for level, (x, text, colour, dash) in zip((0.98, 0.82, 0.66), marks, strict=False):
        ax.plot([x, x], [0, top * level], color=colour, linestyle=dash, linewidth=1.5)
        left = x > np.sqrt(edges[0] * edges[-1]) * 2
        ax.annotate(
            text, (x, top * level), xytext=(-4 if left else 4, 0), textcoords="offset points", va="top",
            ha="right" if left else "left", fontsize=SMALL, color=colour,
            bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def grouped_bars(
    values: Mapping[str, Mapping[str, float]],
    *,
    what: str,
    percent: bool = False,
    goal: float | None = None,
    goal_name: str = "",
) -> Figure:
    """One group of bars for each inner name, one bar in it for each outer name: ``values[scheme][corpus]``.

    ``percent`` draws numbers between 0 and 1 as percentages; ``goal`` draws a dashed line across.
    """
    series = list(values)
    groups = list(dict.fromkeys(group for inner in values.values() for group in inner))
    if not series or not groups:
        raise ValueError("values is empty: expected values[scheme][corpus]")
    width = 0.8 / len(series)
    with style():
        fig = new_figure(2.9)
        ax = fig.subplots()
        for i, name in enumerate(series):
            xs = [g + (i - (len(series) - 1) / 2) * width for g, group in enumerate(groups) if group in values[name]]
            ys = [values[name][group] for group in groups if group in values[name]]
            bars = ax.bar(
                xs,
                ys,
                width * 0.92,
                label=name,
                color=SERIES[i % len(SERIES)],
                hatch=HATCHES[i % len(HATCHES)],
                edgecolor=CARD,
            )
            texts = [_short(y, percent) for y in ys]
            fits = text_width("100%", SMALL) < width * 6.4 / len(groups) * 72
            if fits:
                ax.bar_label(bars, texts, padding=2, fontsize=SMALL)
        ax.set_xticks(range(len(groups)), groups)
        ax.tick_params(axis="x", length=0, labelsize=10)
        ax.set_ylabel(what)
        _value_axis(ax, percent)
        if goal is not None:
            ax.axhline(goal, color=INK, linestyle="--", linewidth=1.3, label=goal_name or None)
        fig.legend(loc="outside upper left", ncols=min(len(series) + (goal is not None), 5))
    return fig


def prediction_bar(
    measured: float | Mapping[str, float],
    prediction: float | None = None,
    *,
    what: str,
    percent: bool = False,
    limit: float | None = None,
    spread: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """What was measured, as bars, and what the reader predicted, dashed. Without a prediction only the measurement.

    Args:
        measured: one value, or several by name; the prediction belongs to the first.
        prediction: the reader's number in the same unit, or None.
        what: label of the value axis.
        percent: values between 0 and 1 are drawn as percentages.
        limit: end of the value axis; by default it covers everything.
        spread: from where to where the single values lie, by the name of a bar: a line across its end.
    """
    bars = dict(measured) if isinstance(measured, Mapping) else {"measured": measured}
    if not bars:
        raise ValueError("measured is empty: expected a number, or numbers by name")
    if prediction is not None and not np.isfinite(float(prediction)):
        raise ValueError(f"prediction is {prediction}: expected a number, or None")
    lines = dict(spread or {})
    if unknown := [name for name in lines if name not in bars]:
        raise ValueError(f"spread has {unknown[0]!r}, which is none of measured: {', '.join(bars)}")
    with style():
        names = list(bars)
        rows: list[tuple[str, float, bool]] = [(name, float(bars[name]), False) for name in names]
        if prediction is not None:
            rows.insert(1, ("your prediction", float(prediction), True))
        fig = new_figure(0.75 + 0.42 * len(rows))
        ax = fig.subplots()
        ends = [abs(value) for _, value, _ in rows] + [high for _, high in lines.values()]
        for y, (name, value, dashed) in enumerate(rows):
            look: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linestyle": (0, (4, 2)), "linewidth": 1.6}
            ax.barh(y, value, 0.62, **(look if dashed else {"color": SERIES[0]}))
            low, high = (value, value) if dashed else lines.get(name, (value, value))
            if low < high:
                ax.plot([low, high], [y, y], color=INK, linewidth=1.6, linestyle="-", solid_capstyle="butt")
            ax.annotate(
                _short(value, percent),
                (max(value, high), y),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
            )
        ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        end = limit or (1.0 if percent and max(ends) <= 1 else max(ends) * 1.15 or 1.0)
        ax.set_xlim(min(0.0, *(value for _, value, _ in rows)), end * (1.09 if percent else 1))
        ax.set_xlabel(what)
        if percent:
            ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return fig


def next_token_bars(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    labels: tuple[str, str] = ("before", "after"),
    top: int = 5,
    least: float = 0.01,
    limit: float | None = None,
) -> Figure:
    """The likeliest next tokens, two bars a token: what a change somewhere else did to a prediction.

    Args:
        before, after: probabilities by token.
        labels: their names.
        top: the first so many tokens of either are drawn, ordered by ``before``.
        least: tokens below it in both are left out, except the likeliest of each.
        limit: end of the axis; by default it covers the bars.
    """
    ranked = {name: sorted(p, key=lambda t: -p[t])[:top] for name, p in (("before", before), ("after", after))}
    chosen = dict.fromkeys(token for tokens in ranked.values() for token in tokens)
    if not chosen:
        raise ValueError("before and after are empty: expected probabilities by token")
    for name, p in (("before", before), ("after", after)):
        missing = [token for token in chosen if token not in p]
        if missing:
            raise ValueError(f"{name} has no probability for {missing[0]!r}: give both the probabilities of all tokens")
    first = {tokens[0] for tokens in ranked.values() if tokens}
    drawn = [token for token in chosen if token in first or max(before[token], after[token]) >= least]
    tokens = sorted(drawn, key=lambda t: (-before[t], -after[t]))
    with style():
        fig = new_figure(1.0 + 0.4 * len(tokens))
        ax = fig.subplots()
        ys = np.arange(len(tokens))
        looks = ((before, -0.2, SERIES[0], ""), (after, 0.2, SERIES[1], "///"))
        for (p, shift, colour, hatch), label in zip(looks, labels, strict=True):
            values = [p[token] for token in tokens]
            bars = ax.barh(ys + shift, values, 0.36, color=colour, hatch=hatch, edgecolor=CARD, label=label)
            ax.bar_label(bars, [f"{100 * v:.1f}%" for v in values], padding=3, fontsize=SMALL)
        ax.set_yticks(ys, [_visible(token) for token in tokens])
        ax.tick_params(axis="y", length=0, labelsize=10)
        ax.set_ylim(len(tokens) - 0.5, -0.5)
        ax.set_ylabel("next token")
        ax.set_xlabel("probability")
        ax.margins(x=0.12)
        if limit is not None:
            ax.set_xlim(0, limit * 1.09)
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g}%"))
        fig.legend(loc="outside upper left", ncols=2)
    return fig


def loss_curves(
    curves: Mapping[str, Sequence[float]], *, what: str = "loss per target (nats)", smooth: int = 1
) -> Figure:
    """Loss against step, one line a run, named at its end.

    ``smooth`` > 1 draws the mean of the last ``smooth`` steps over the pale single values. A loss that is no number
    ends its line.
    """
    if not curves or not all(len(c) for c in curves.values()):
        raise ValueError("curves: expected at least one run with at least one loss")
    with style():
        fig = new_figure(3.0)
        ax = fig.subplots()
        for i, (name, losses) in enumerate(curves.items()):
            y = np.asarray(losses, dtype=np.float64)
            steps = np.arange(1, len(y) + 1)
            look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": DASHES[i % len(DASHES)]}
            if smooth > 1:
                ax.plot(steps, y, color=look["color"], alpha=0.25, linewidth=0.8, linestyle="-")
                y = _running_mean(y, smooth)
            ax.plot(steps, y, label=name, **look)
        ax.set_xlabel("step")
        ax.set_ylabel(what)
        ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        ax.grid(axis="y")
        ax.margins(x=0.02)
        if len(curves) > 1:
            fig.legend(loc="outside upper left", ncols=min(3, len(curves)), handlelength=3)
    return fig


def state_strip(
    norms: Sequence[float] | Mapping[str, Sequence[float]],
    *,
    lengths: Sequence[int] = (),
    words: Sequence[Sequence[str]] | None = None,
    what: str = "norm of the state",
) -> Figure:
    """A heat strip: how large the state is after each token, one strip a run, documents marked below.

    Args:
        norms: [T] values, or several runs by name.
        lengths: lengths of the documents that the T tokens are; their starts are drawn as lines.
        words: one list of words a document, written under the strips where they fit.
        what: name of the colour scale.
    """
    strips = {
        k: np.asarray(v, dtype=np.float64) for k, v in (norms if isinstance(norms, Mapping) else {"": norms}).items()
    }
    n = len(next(iter(strips.values()), ()))
    if not n or any(v.shape != (n,) for v in strips.values()):
        raise ValueError(f"norms: expected runs of one length, got {[v.shape for v in strips.values()]}")
    if lengths and sum(lengths) != n:
        raise ValueError(f"lengths add up to {sum(lengths)}, expected the {n} tokens of norms")
    with style():
        flat = [word for document in words or () for word in document]
        fig = new_figure(1.2 + 0.42 * len(strips) + (0.5 if flat else 0.0))
        ax = fig.subplots()
        image = ax.imshow(
            np.stack(list(strips.values())), aspect="auto", cmap="cividis", vmin=0.0, interpolation="nearest"
        )
        ax.set_yticks(range(len(strips)), list(strips))
        ax.yaxis.set_visible(len(strips) > 1)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        starts = np.cumsum([0, *lengths])
        for start in starts[1:-1]:
            ax.axvline(start - 0.5, color=CARD, linewidth=3, linestyle="-")
        ax.set_xlabel("token")
        for strip in range(1, len(strips)):
            ax.axhline(strip - 0.5, color=CARD, linewidth=3, linestyle="-")
        if flat and len(flat) != n:
            raise ValueError(f"words holds {len(flat)} words, expected the {n} tokens of norms")
        if flat and text_width("0", SMALL) * 1.7 < 5.5 * 72 / n:
            wide = max(text_width(w, SMALL) for w in flat) > 5.5 * 72 / n
            ax.set_xticks(range(n), flat, rotation=90 if wide else 0)
            owner = np.repeat(np.arange(len(lengths)), lengths) if lengths else np.zeros(n, dtype=int)
            for label, document in zip(ax.get_xticklabels(), owner, strict=True):
                label.set_bbox({"facecolor": document_colour(int(document)), "edgecolor": "none", "pad": 1.5})
        else:
            ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        bar = fig.colorbar(image, ax=ax, pad=0.02, fraction=0.05)
        bar.set_label(what, fontsize=SMALL)
        bar.ax.yaxis.set_major_locator(MaxNLocator(3))
        bar.outline.set_visible(False)
    return fig


def _value_axis(ax: Axes, percent: bool) -> None:
    ax.grid(axis="y")
    if percent:
        ax.set_ylim(0, max(1.08, ax.get_ylim()[1]))
        ax.set_yticks(np.linspace(0, 1, 6))
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        ax.margins(y=0.12)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def _short(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.1f}%" if 0 < value < 0.1 or 0.99 < value < 1 else f"{100 * value:.0f}%"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    text = f"{value:.3g}"  # 1.003 is no 1: where rounding leaves an integer, its zeros say how far it is known
    return f"{value:#.3g}".rstrip(".") if text.lstrip("-").isdigit() else text


def _visible(token: str) -> str:
    """A token whose spaces and line ends can be seen."""
    return token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "(empty)"


def _running_mean(y: np.ndarray, n: int) -> np.ndarray:
    """Mean of the last ``n`` values, of fewer at the beginning."""
    total = np.cumsum(np.insert(y, 0, 0.0))
    index = np.arange(1, len(y) + 1)
    first = np.maximum(0, index - n)
    return (total[index] - total[first]) / (index - first)
