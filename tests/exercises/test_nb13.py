from __future__ import annotations

import torch

from mamba_lab.exercises.nb13 import check_butterfly, check_floor, check_tiles
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def floor(n_bytes, n_exps, bytes_per_s, exps_per_s):
    return max((n_bytes / bytes_per_s, "bytes"), (n_exps / exps_per_s, "exponentials"))


def test_floor_is_right():
    assert_solution_passes(check_floor, floor)
    assert_solution_passes(check_floor, lambda *numbers: list(floor(*numbers)))


def test_floor_wrong_answers():
    assert_stub_fails(check_floor, stub)

    def swapped(name):
        return {"bytes": "exponentials", "exponentials": "bytes"}[name]

    assert_wrong_answers(
        check_floor,
        {
            "one after the other": lambda b, e, p, q: (b / p + e / q, floor(b, e, p, q)[1]),
            "bytes whatever comes": lambda b, e, p, q: (b / p, "bytes"),
            "exponentials whatever comes": lambda b, e, p, q: (e / q, "exponentials"),
            "upside down": lambda b, e, p, q: (max(p / b, q / e if e else 0), floor(b, e, p, q)[1]),
            "multiplied": lambda b, e, p, q: floor(b, e, 1 / p, 1 / q),
            "the wrong culprit": lambda *n: (floor(*n)[0], swapped(floor(*n)[1])),
            "the time alone": lambda *n: floor(*n)[0],
        },
    )


def scan(a, b, lengths, *_):
    y, t = [], 0
    for length in lengths:
        h = 0.0
        for _ in range(length):
            h = a[t] * h + b[t]
            y.append(h)
            t += 1
    return y


def in_tiles(a, b, lengths, tile, threads, stage):
    y, start, shared = [], 0, [(0.0, 0.0)] * tile
    for length in lengths:
        h = 0.0
        for first in range(start, start + length, tile):
            count = min(tile, start + length - first)
            stage(shared, a, b, first, count, tile, threads)
            for i in range(count):
                h = shared[i][0] * h + shared[i][1]
                y.append(h)
        start += length
    return y


def turns(shared, a, b, first, count, tile, threads):
    for thread in range(threads):
        for i in range(thread, count, threads):
            shared[i] = a[first + i], b[first + i]


def one_turn(shared, a, b, first, count, tile, threads):
    for thread in range(min(threads, count)):
        shared[thread] = a[first + thread], b[first + thread]


def whole_tile(shared, a, b, first, count, tile, threads):
    for i in range(tile):
        shared[i] = a[first + i], b[first + i]


def from_the_start(shared, a, b, first, count, tile, threads):
    for i in range(count):
        shared[i] = a[i], b[i]


def with_stage(stage):
    return lambda a, b, lengths, tile, threads: in_tiles(a, b, lengths, tile, threads, stage)


def test_tiles_is_right():
    assert_solution_passes(check_tiles, scan)
    assert_solution_passes(check_tiles, with_stage(turns))
    assert_solution_passes(check_tiles, lambda *inputs: torch.tensor(scan(*inputs), dtype=torch.float64))


def test_tiles_wrong_answers():
    assert_stub_fails(check_tiles, stub)

    def forgetful(a, b, lengths, tile, threads):
        cut = [min(tile, n - first) for n in lengths for first in range(0, n, tile)]
        return scan(a, b, cut)

    assert_wrong_answers(
        check_tiles,
        {
            "still broken": with_stage(one_turn),
            "the state stays": lambda a, b, lengths, *_: scan(a, b, [sum(lengths)]),
            "each tile begins anew": forgetful,
            "always the first tokens": with_stage(from_the_start),
            "reads behind the end": with_stage(whole_tile),
        },
    )


def test_a_start_that_stays_is_not_taken_for_a_state_that_stays():
    def never_on(a, b, lengths, tile, threads):
        return [y for n in lengths for y in scan(a[:n], b[:n], [n])]

    assert check_tiles(never_on).mistake == "always the first tokens"


def butterfly(values):
    apart = 1
    while apart < len(values):
        values = [values[lane] + values[lane ^ apart] for lane in range(len(values))]
        apart *= 2
    return values


def test_butterfly_is_right():
    assert_solution_passes(check_butterfly, butterfly)
    assert_solution_passes(check_butterfly, lambda values: [sum(values)] * len(values))


def test_butterfly_wrong_answers():
    assert_stub_fails(check_butterfly, stub)

    def in_place(values):
        values, apart = list(values), 1
        while apart < len(values):
            for lane in range(len(values)):
                values[lane] += values[lane ^ apart]
            apart *= 2
        return values

    def down(values, missing=0.0):
        apart = 1
        while apart < len(values):
            padded = [*values, *[missing] * apart]
            values = [padded[lane] + padded[lane + apart] for lane in range(len(values))]
            apart *= 2
        return values

    def off_the_end(values):
        return [values[lane] + values[lane + 1] for lane in range(len(values))] if len(values) > 1 else values

    assert_wrong_answers(
        check_butterfly,
        {
            "reads what was just written": in_place,
            "one round": lambda v: [v[lane] + v[lane ^ 1] for lane in range(len(v))] if len(v) > 1 else v,
            "only the first lane": down,
            "the sum alone": lambda values: sum(values),
            "runs off the warp": off_the_end,
        },
    )


def test_a_round_too_many_is_told_where_rounds_end():
    answer = check_butterfly(lambda v: [v[lane] + v[lane ^ 1] for lane in range(len(v))])
    assert answer.mistake == "runs off the warp"
    assert "as long as apart is less than the number of lanes" in answer.message
