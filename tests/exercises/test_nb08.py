from __future__ import annotations

import numpy as np
import pytest
import torch

from mamba_lab.batching import Boundaries
from mamba_lab.exercises.nb08 import check_input_gradient, check_states, check_taps
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers
from mamba_lab.ops import conv1d_pack


def stub(*inputs): ...


@pytest.mark.parametrize(
    "taps",
    [
        lambda position, W: list(range(max(0, position - W + 1), position + 1)),
        lambda position, W: sorted(position - k for k in range(min(position, W - 1) + 1)),
        lambda position, W: np.arange(position + 1)[-W:],
    ],
)
def test_taps_is_right(taps):
    assert_solution_passes(check_taps, taps)


def test_taps_wrong_answers():
    assert_stub_fails(check_taps, stub)
    assert_wrong_answers(
        check_taps,
        {
            "reaches before the start": lambda position, W: [position - k for k in reversed(range(W))],
            "one tap too many": lambda position, W: list(range(max(0, position - W), position + 1)),
            "without the token itself": lambda position, W: list(range(max(0, position - W + 1), position)),
            "newest first": lambda position, W: [position - k for k in range(W) if k <= position],
            "the whole past": lambda position, W: list(range(position + 1)),
            "how far back, not which": lambda position, W: [k for k in reversed(range(W)) if k <= position],
            "a count": lambda position, W: min(W, position + 1),
            "wrong values": lambda position, W: [p + 1 for p in range(max(0, position - W + 1), position + 1)],
            "raises": lambda position, W: position[W],
        },
    )


def by_loop(reads=lambda position, t, k: position[t + k] >= k, first=0, tap=lambda k: -1 - k, guard=True, less=0):
    """The solution with one thing changed."""

    def f(g, w, position):
        dx = [0] * len(g)
        for t in range(len(g)):
            for k in range(first, len(w) - less):
                if guard and t + k >= len(g):
                    break
                if reads(position, t, k):
                    dx[t] += w[tap(k)] * g[t + k]
        return dx

    return f


def from_the_reader(g, w, position):
    dx = [0] * len(g)
    for t in range(len(g)):
        for k in range(min(position[t], len(w) - 1) + 1):
            dx[t - k] += w[-1 - k] * g[t]
    return dx


def by_package(g, w, position):
    x = torch.zeros(len(g), 1, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([w], dtype=torch.float64)
    edges = Boundaries.from_position_indices(position)
    y = conv1d_pack(x, weight, boundaries=edges, backend="reference")
    return torch.autograd.grad(y, x, torch.tensor(g, dtype=torch.float64)[:, None])[0][:, 0]


@pytest.mark.parametrize("input_gradient", [by_loop(), from_the_reader, by_package])
def test_input_gradient_is_right(input_gradient):
    assert_solution_passes(check_input_gradient, input_gradient)


def forward_of_g(g, w, position):
    return [sum(w[-1 - k] * g[t - k] for k in range(min(p, len(w) - 1) + 1)) for t, p in enumerate(position)]


def test_input_gradient_wrong_answers():
    assert_stub_fails(check_input_gradient, stub)
    assert_wrong_answers(
        check_input_gradient,
        {
            "runs off the row's end": by_loop(guard=False),
            "does not stop": by_loop(reads=lambda position, t, k: True),
            "asks the wrong token": by_loop(reads=lambda position, t, k: position[t] >= k),
            "looks back": forward_of_g,
            "steps over a start": by_loop(reads=lambda position, t, k: k == 0 or position[t + k] != 0),
            "taps in the wrong order": by_loop(tap=lambda k: k),
            "without the token's own output": by_loop(first=1),
            "one tap too few": by_loop(less=1),
            "wrong values": lambda g, w, position: g,
            "wrong type": lambda g, w, position: sum(g),
        },
    )


def solution(xs, sizes, W):
    state, at, found = [0] * (W - 1), 0, []
    for n in sizes:
        window = state + xs[at : at + n]
        state = window[len(window) - (W - 1) :]
        found.append(state)
        at += n
    return found


def from_the_whole(xs, sizes, W):
    return [([0] * (W - 1) + xs)[end : end + W - 1] for end in np.cumsum(sizes)]


def states_by_package(xs, sizes, W):
    found, state, at = [], torch.zeros(1, 1, W - 1), 0
    for n in sizes:
        x = torch.tensor(xs[at : at + n], dtype=torch.float32)[:, None]
        _, state = conv1d_pack(x, torch.ones(1, W), initial_state=state, return_final_state=True, backend="reference")
        found.append(state[0, 0].tolist())
        at += n
    return found


@pytest.mark.parametrize("states", [solution, from_the_whole, states_by_package])
def test_states_is_right(states):
    assert_solution_passes(check_states, states)


def each(keep):
    """``keep(state, piece, W)`` after each piece."""

    def f(xs, sizes, W):
        state, at, found = [0] * (W - 1), 0, []
        for n in sizes:
            state = keep(state, xs[at : at + n], W)
            found.append(state)
            at += n
        return found

    return f


def before_each(xs, sizes, W):
    return [[0] * (W - 1), *solution(xs, sizes, W)][:-1]


def last_w(xs, sizes, W):
    return [([0] * W + xs)[end : end + W] for end in np.cumsum(sizes)]


def test_states_wrong_answers():
    assert_stub_fails(check_states, stub)
    assert_wrong_answers(
        check_states,
        {
            "forgets the state before": each(lambda state, piece, W: ([0] * (W - 1) + piece)[len(piece) :]),
            "a state too short": each(lambda state, piece, W: piece[max(0, len(piece) - W + 1) :]),
            "W inputs": last_w,
            "newest first": lambda xs, sizes, W: [s[::-1] for s in solution(xs, sizes, W)],
            "the state before each piece": before_each,
            "the oldest inputs": each(lambda state, piece, W: (piece + state)[: W - 1]),
            "a slice from -0": each(lambda state, piece, W: (state + piece)[-(W - 1) :]),
            "wrong length": lambda xs, sizes, W: solution(xs, sizes, W)[-1:],
            "wrong type": lambda xs, sizes, W: sum(xs),
        },
    )
