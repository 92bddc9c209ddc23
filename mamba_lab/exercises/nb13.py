"""Checks for notebook 13: the floor of a kernel, a tile that is staged wrongly, and a sum over the lanes of a warp."""

from __future__ import annotations

from mamba_lab.exercises.checking import Exercise, Mistake, case

Numbers = list[float]


def _floor(n_bytes: float, n_exps: float, bytes_per_s: float, exps_per_s: float) -> tuple[float, str]:
    memory, arithmetic = n_bytes / bytes_per_s, n_exps / exps_per_s
    return max(memory, arithmetic), "bytes" if memory >= arithmetic else "exponentials"


def _other(name: str) -> str:
    return "exponentials" if name == "bytes" else "bytes"


check_floor = Exercise(
    "The floor of a kernel",
    reference=_floor,
    cases=[
        case(n_bytes=8.0, n_exps=0.0, bytes_per_s=4.0, exps_per_s=4.0),
        case(n_bytes=8.0, n_exps=12.0, bytes_per_s=4.0, exps_per_s=4.0),
        case(n_bytes=8.0, n_exps=12.0, bytes_per_s=1.0, exps_per_s=4.0),
        case(n_bytes=2e9, n_exps=4e9, bytes_per_s=4e12, exps_per_s=4e12),
    ],
    mistakes=[
        Mistake(
            "one after the other",
            "The two times are added here. Memory and arithmetic work at the same moment: the longer one counts.",
            wrong=lambda b, e, bs, es: (b / bs + e / es, _floor(b, e, bs, es)[1]),
        ),
        Mistake(
            "bytes whatever comes",
            "This is the time of the bytes. Here the exponentials take longer.",
            wrong=lambda b, e, bs, es: (b / bs, "bytes"),
        ),
        Mistake(
            "exponentials whatever comes",
            "This is the time of the exponentials. Here the bytes take longer, and the longer time counts.",
            wrong=lambda b, e, bs, es: (e / es, "exponentials"),
        ),
        Mistake(
            "upside down",
            "Bytes divided by bytes per second are seconds. Here the fraction stands on its head.",
            wrong=lambda b, e, bs, es: (
                max(bs / b if b else 0.0, es / e if e else 0.0),
                _floor(b, e, bs, es)[1],
            ),
        ),
        Mistake(
            "multiplied",
            "Bytes times bytes per second are no seconds. Divide by the speed.",
            wrong=lambda b, e, bs, es: (max(b * bs, e * es), "bytes" if b * bs >= e * es else "exponentials"),
        ),
        Mistake(
            "the wrong culprit",
            "The time is right, and the other one is what takes it.",
            wrong=lambda b, e, bs, es: (_floor(b, e, bs, es)[0], _other(_floor(b, e, bs, es)[1])),
        ),
        Mistake(
            "the time alone",
            "The seconds are right. Say also which of the two takes them.",
            wrong=lambda b, e, bs, es: _floor(b, e, bs, es)[0],
        ),
    ],
    hints=("Two divisions give two times.", "max(...) of the two, and the name of the larger."),
    lesson="Measured time over floor is the gap. A gap near 1 means: look elsewhere.",
)


def _scan(
    a: Numbers,
    b: Numbers,
    lengths: list[int],
    tile: int,
    threads: int,
    *,
    turns: bool = True,
    resets: bool = True,
    forgets_tile: bool = False,
    begins: bool = True,
) -> Numbers:
    y: Numbers = []
    start, h = 0, 0.0
    shared_a, shared_b = [0.0] * tile, [0.0] * tile
    for length in lengths:
        h = 0.0 if resets else h
        for first in range(start, start + length, tile):
            count = min(tile, start + length - first)
            h = 0.0 if forgets_tile else h
            for i in range(count if turns else min(count, threads)):
                at = first + i if begins else i
                shared_a[i], shared_b[i] = a[at], b[at]
            for i in range(count):
                h = shared_a[i] * h + shared_b[i]
                y.append(h)
        start += length
    return y


check_tiles = Exercise(
    "A scan in tiles",
    reference=lambda a, b, lengths, tile, threads: _scan(a, b, lengths, tile, threads),
    cases=[
        case(a=[0.5], b=[2.0], lengths=[1], tile=4, threads=2),
        case(a=[0.5, 0.5], b=[2.0, 3.0], lengths=[1, 1], tile=4, threads=2),
        case(a=[0.5] * 3, b=[4.0, 1.0, 2.0], lengths=[3], tile=4, threads=2),
        case(a=[0.5] * 6, b=[4.0, 1.0, 2.0, 8.0, 2.0, 1.0], lengths=[4, 2], tile=2, threads=2),
        case(
            a=[0.5, 0.25] * 5, b=[1.0, 3.0, 2.0, 4.0, 5.0, 1.0, 2.0, 6.0, 4.0, 3.0], lengths=[7, 3], tile=4, threads=2
        ),
        case(a=[0.5] * 5, b=[1.0, 2.0, 3.0, 4.0, 5.0], lengths=[2, 0, 3], tile=8, threads=1),
    ],
    mistakes=[
        Mistake(
            "still broken",
            "With more tokens in a tile than threads, the last ones are what lay there before. Each thread has to take "
            "several turns: i, i + threads, i + 2 threads, up to count.",
            wrong=lambda a, b, lengths, tile, threads: _scan(a, b, lengths, tile, threads, turns=False),
        ),
        Mistake(
            "the state stays",
            "The state runs on into the next sequence. Each sequence begins with 0.",
            wrong=lambda a, b, lengths, tile, threads: _scan(a, b, lengths, tile, threads, resets=False),
        ),
        Mistake(
            "each tile begins anew",
            "The state is set to 0 at each tile. A tile is a matter of memory: the state goes on from one to the next.",
            wrong=lambda a, b, lengths, tile, threads: _scan(a, b, lengths, tile, threads, forgets_tile=True),
        ),
        Mistake(
            "always the first tokens",
            "Every tile loads the first tokens of the row. It begins at token `first`, and the next sequence at "
            "`start + length`.",
            wrong=lambda a, b, lengths, tile, threads: _scan(a, b, lengths, tile, threads, begins=False),
        ),
        Mistake(
            "reads behind the end",
            "A sequence's last tile may be short. Load only `count` tokens of it.",
            raises=IndexError,
        ),
    ],
    hints=(
        "How many entries does the line with `min(count, threads)` fill, when count is 3 and threads is 2?",
        "for thread in range(threads): for i in range(thread, count, threads): ...",
    ),
    lesson="Right for short sequences, wrong for long ones: that is why tests use lengths around every tile's edge.",
)


def _butterfly(values: Numbers, *, rounds: int | None = None, in_place: bool = False, down: bool = False) -> Numbers:
    lanes, apart, done = list(values), 1, 0
    while apart < len(lanes) and (rounds is None or done < rounds):
        before = lanes if in_place else list(lanes)
        for lane in range(len(lanes)):
            partner = lane + apart if down else lane ^ apart
            lanes[lane] = before[lane] + (before[partner] if partner < len(lanes) else 0.0)
        apart, done = apart * 2, done + 1
    return lanes


check_butterfly = Exercise(
    "A sum over lanes",
    reference=lambda values: _butterfly(values),
    cases=[
        case(values=[5.0]),
        case(values=[1.0, 2.0]),
        case(values=[1.0, 2.0, 4.0, 8.0]),
        case(values=[1.0, 10.0, 100.0, 1000.0, 2.0, 20.0, 200.0, 2000.0]),
    ],
    mistakes=[
        Mistake(
            "reads what was just written",
            "In one round all lanes read first, and then all write. Here a lane reads a partner that has its new value "
            "already: copy the list before each round.",
            wrong=lambda values: _butterfly(values, in_place=True),
        ),
        Mistake(
            "one round",
            "After one round each lane has the sum of two. Go on with lanes 2 apart, then 4, until all are in.",
            wrong=lambda values: _butterfly(values, rounds=1),
        ),
        Mistake(
            "only the first lane",
            "Lane 0 is right. With lane + apart the others miss some values: take lane ^ apart, and each gets all.",
            wrong=lambda values: _butterfly(values, down=True),
        ),
        Mistake(
            "the sum alone",
            "The number is right. Every lane must hold it: a list.",
            wrong=lambda values: sum(values),
        ),
        Mistake(
            "runs off the warp",
            "A lane asks one that is not there. lane + apart can be such a lane. lane ^ apart cannot, as long as apart "
            "is less than the number of lanes: that is where the rounds end.",
            raises=IndexError,
        ),
    ],
    hints=(
        "apart = 1, 2, 4, ...; lane's partner is lane ^ apart.",
        "values = [values[lane] + values[lane ^ apart] for lane in range(len(values))]",
    ),
    lesson="32 lanes need five rounds, and no memory is touched.",
)
