from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from mamba_lab.batching import Boundaries
from mamba_lab.exercises.nb10 import check_one_tile, check_receives, check_scan_gradients
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


@pytest.mark.parametrize(
    "receives",
    [
        lambda position: [t + 1 < len(position) and position[t + 1] != 0 for t in range(len(position))],
        lambda position: [b == a + 1 for a, b in zip(position, [*position[1:], 0], strict=True)],
        lambda position: torch.tensor([*position[1:], 0]) > 0,
    ],
)
def test_receives_is_right(receives):
    assert_solution_passes(check_receives, receives)


def test_receives_wrong_answers():
    assert_stub_fails(check_receives, stub)
    assert_wrong_answers(
        check_receives,
        {
            "runs off the row's end": lambda position: [position[t + 1] > 0 for t in range(len(position))],
            "the first in place of the last": lambda position: [p != 0 for p in position],
            "crosses the boundary": lambda position: [True] * (len(position) - 1) + [False],
            "the row's last token receives": lambda position: [p != 0 for p in [*position[1:], 1]],
            "the wrong way round": lambda position: [p == 0 for p in [*position[1:], 0]],
            "one too few": lambda position: [p != 0 for p in position[1:]],
            "places, not True and False": lambda position: [t for t in range(len(position) - 1) if position[t + 1]],
            "wrong type": lambda position: sum(position),
        },
    )


def loops(
    found=lambda h, p: h if p > 0 else 0,
    handed=lambda a, g, p: a * g if p > 0 else 0,
    da=lambda g, before, after: g * before,
    answer=lambda da, db: (da, db),
):
    """The solution with one thing changed."""

    def f(a, b, dy, position):
        h, before, after = 0, [], []
        for t, p in enumerate(position):
            before.append(found(h, p))
            h = a[t] * before[t] + b[t]
            after.append(h)
        das, dbs, carried = [0] * len(a), [0] * len(a), 0
        for t in reversed(range(len(a))):
            dbs[t] = dy[t] + carried
            das[t] = da(dbs[t], before[t], after[t])
            carried = handed(a[t], dbs[t], position[t])
        return answer(das, dbs)

    return f


def by_autograd(a, b, dy, position):
    a, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (a, b))
    h, loss = 0, 0
    for t, p in enumerate(position):
        h = a[t] * h + b[t] if p else b[t] + 0 * a[t]
        loss = loss + dy[t] * h
    return torch.autograd.grad(loss, [a, b])


def by_document(a, b, dy, position):
    """Each document alone, and g written with its own formula."""
    ends = Boundaries.from_position_indices(position).cu_seqlens.tolist()
    das, dbs = [], []
    for first, stop in pairwise(ends):
        h = [0]
        for t in range(first, stop):
            h.append(a[t] * h[-1] + b[t])
        g = [0] * (stop - first + 1)
        for t in reversed(range(first, stop)):
            g[t - first] = dy[t] + (a[t + 1] * g[t - first + 1] if t + 1 < stop else 0)
        dbs += g[:-1]
        das += [x * y for x, y in zip(g, h, strict=True)][: stop - first]
    return das, dbs


@pytest.mark.parametrize("scan_gradients", [loops(), by_autograd, by_document])
def test_scan_gradients_is_right(scan_gradients):
    assert_solution_passes(check_scan_gradients, scan_gradients)


def with_g(g_of, **changes):
    """The solution with its g made by ``g_of(a, dy, position)``."""

    def f(a, b, dy, position):
        g = g_of(a, dy, position)
        _, before = loops(da=lambda g, before, after: before, answer=lambda da, db: (db, da))(a, b, dy, position)
        return [x * y for x, y in zip(g, before, strict=True)], g

    return f


def own_decay(a, dy, position):
    g = [*dy, 0]
    for t in reversed(range(len(a) - 1)):
        g[t] += a[t] * g[t + 1] if position[t + 1] else 0
    return g[:-1]


def asks_the_receiver(a, dy, position):
    g = list(dy)
    for t in reversed(range(len(a) - 1)):
        g[t] += a[t + 1] * g[t + 1] if position[t] else 0
    return g


def from_the_start(a, dy, position):
    g = list(dy)
    for t in range(1, len(a)):
        g[t] += a[t] * g[t - 1] if position[t] else 0
    return g


def foreign_state(a, b, dy, position):
    da, db = loops()(a, b, dy, position)
    after = loops(da=lambda g, before, after: after)(a, b, dy, position)[0]
    return [d if p or t == 0 else db[t] * after[t - 1] for t, (d, p) in enumerate(zip(da, position, strict=True))], db


def no_wall_in_h(h, p):
    return h


def no_wall_in_g(a, g, p):
    return a * g


def test_scan_gradients_wrong_answers():
    assert_stub_fails(check_scan_gradients, stub)
    assert_wrong_answers(
        check_scan_gradients,
        {
            "forgets the carried gradient": loops(handed=lambda a, g, p: 0),
            "a_t instead of a_{t+1}": with_g(own_decay),
            "h_t instead of h_{t-1}": loops(da=lambda g, before, after: g * after),
            "crosses the boundary": loops(handed=no_wall_in_g),
            "stops one token early": with_g(asks_the_receiver),
            "the states do not stop": loops(found=no_wall_in_h),
            "no reset at all": loops(found=no_wall_in_h, handed=no_wall_in_g),
            "a start reads a foreign state": foreign_state,
            "runs forward": with_g(from_the_start),
            "da and db exchanged": loops(answer=lambda da, db: (db, da)),
            "multiplied by a once more": lambda a, b, dy, position: (
                [x * y for x, y in zip(a, loops()(a, b, dy, position)[0], strict=True)],
                loops()(a, b, dy, position)[1],
            ),
            "wrong values": loops(da=lambda g, before, after: -g),
            "raises": lambda a, b, dy, position: (a[len(a)], b),
        },
    )


def solution(a, b, dy, h, g):
    before = [h]
    for t in range(len(a) - 1):
        before.append(a[t] * before[t] + b[t])
    da = [0] * len(a)
    for t in reversed(range(len(a))):
        g = g + dy[t]
        da[t] = g * before[t]
        g = a[t] * g
    return da, g


def tile_by_autograd(a, b, dy, h, g):
    a, h = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (a, h))
    state, loss = h, 0
    for t in range(len(b)):
        state = a[t] * state + b[t]
        loss = loss + dy[t] * state
    return torch.autograd.grad(loss + g * state, [a, h])


@pytest.mark.parametrize("one_tile", [solution, tile_by_autograd])
def test_one_tile_is_right(one_tile):
    assert_solution_passes(check_one_tile, one_tile)


def no_last_decay(a, b, dy, h, g):
    da = solution(a, b, dy, h, g)[0]
    return da, solution([1, *a[1:]], b, dy, h, g)[1]


def after_the_token(a, b, dy, h, g):
    gs = [0.0] * len(a)
    for t in reversed(range(len(a))):
        g = g + dy[t]
        gs[t], g = g, a[t] * g
    states = []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        states.append(h)
    return [x * y for x, y in zip(gs, states, strict=True)], g


def test_one_tile_wrong_answers():
    assert_stub_fails(check_one_tile, stub)
    assert_wrong_answers(
        check_one_tile,
        {
            "forgets the checkpoint": lambda a, b, dy, h, g: solution(a, b, dy, 0, g),
            "forgets what the later tile hands on": lambda a, b, dy, h, g: solution(a, b, dy, h, 0),
            "decays what came in": lambda a, b, dy, h, g: solution(a, b, dy, h, a[-1] * g),
            "hands on too much": no_last_decay,
            "h_t instead of h_{t-1}": after_the_token,
            "keeps the gradient to itself": lambda a, b, dy, h, g: solution(a, b, dy, h, g)[0],
            "wrong type": lambda a, b, dy, h, g: g,
        },
    )
