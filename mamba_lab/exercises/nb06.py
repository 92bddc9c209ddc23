"""Checks for notebook 06: the padding rate of packs, first fit decreasing, and the rows that no packing can save."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mamba_lab.exercises.checking import Exercise, Mistake, case

Bins = list[list[int]]


def _padding_rate(bins: Sequence[Sequence[int]], capacity: int) -> float:
    return 1 - sum(map(sum, bins)) / (len(bins) * capacity)


check_padding_rate = Exercise(
    "Padding rate of packs",
    reference=_padding_rate,
    cases=[
        case(bins=[[3]], capacity=4),
        case(bins=[[4, 2], [3]], capacity=8),
        case(bins=[[4, 3], [2, 7]], capacity=9),
        case(bins=[[4, 2], [7], [3]], capacity=9),
        case(bins=[[8], [8]], capacity=8),
        case(bins=[[1000, 24], [512], [300, 300, 300]], capacity=1024),
    ],
    mistakes=[
        Mistake(
            "valid ratio",
            "This is the share of positions that hold a token. Padding is the rest.",
            wrong=lambda bins, capacity: 1 - _padding_rate(bins, capacity),
        ),
        Mistake(
            "positions instead of a share",
            "This is the number of positions that hold nothing. Divide it by all positions.",
            wrong=lambda bins, capacity: len(bins) * capacity - sum(map(sum, bins)),
        ),
        Mistake(
            "padding for each token",
            "This divides the padding by the tokens. A rate is a share of all positions, padding included.",
            wrong=lambda bins, capacity: (len(bins) * capacity) / sum(map(sum, bins)) - 1,
        ),
        Mistake(
            "one row's capacity",
            "The padding of all packs is divided by the positions of one. There are as many rows as packs.",
            wrong=lambda bins, capacity: (len(bins) * capacity - sum(map(sum, bins))) / capacity,
        ),
        Mistake(
            "rows padded to the longest pack",
            "Every row has `capacity` positions, also where no pack is full.",
            wrong=lambda bins, capacity: _padding_rate(bins, max(map(sum, bins))),
        ),
        Mistake(
            "counts documents for tokens",
            "A document takes as many positions as it has tokens. Add up the lengths.",
            wrong=lambda bins, capacity: 1 - sum(map(len, bins)) / (len(bins) * capacity),
        ),
        Mistake(
            "per cent",
            "The size is right, as a percentage. A rate lies between 0 and 1.",
            wrong=lambda bins, capacity: 100 * _padding_rate(bins, capacity),
        ),
    ],
    hints=(
        "How many positions do all rows have together? How many of them hold a token?",
        "There are len(bins) * capacity positions, and sum(sum(b) for b in bins) tokens.",
    ),
    lesson="With the tokens given, only the number of rows decides: fewer rows, less padding.",
)

_Choose = Callable[[list[int], int], "int | None"]


def _pack(lengths: Sequence[int], capacity: int, choose: _Choose) -> Bins:
    """Bins in the order they are opened; ``choose(free, n)`` gives the one that takes ``n``, None a new one."""
    bins: Bins = []
    for n in lengths:
        chosen = choose([capacity - sum(b) for b in bins], n)
        if chosen is None:
            bins.append([n])
        else:
            bins[chosen].append(n)
    return bins


def _fitting(free: list[int], n: int) -> list[int]:
    return [b for b, room in enumerate(free) if room >= n]


def _first(free: list[int], n: int) -> int | None:
    return next(iter(_fitting(free, n)), None)


def _last_opened(free: list[int], n: int) -> int | None:
    return len(free) - 1 if free and free[-1] >= n else None


def _tightest(free: list[int], n: int) -> int | None:
    return min(_fitting(free, n), key=lambda b: free[b], default=None)


def _emptiest(free: list[int], n: int) -> int | None:
    return max(_fitting(free, n), key=lambda b: free[b], default=None)


def _with_room_left(free: list[int], n: int) -> int | None:
    return next((b for b, room in enumerate(free) if room > n), None)


def _first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    return _pack(sorted(lengths, reverse=True), capacity, _first)


def _indices(lengths: Sequence[int], capacity: int) -> Bins:
    """First fit decreasing with indices in the bins, equal lengths in data order."""
    bins: Bins = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        chosen = _first([capacity - sum(lengths[k] for k in b) for b in bins], lengths[i])
        if chosen is None:
            bins.append([i])
        else:
            bins[chosen].append(i)
    return bins


def _over_capacity(answer: object, lengths: Sequence[int], capacity: int) -> bool:
    return isinstance(answer, list) and any(sum(b) > capacity for b in answer)


def _lost(answer: object, lengths: Sequence[int], capacity: int) -> bool:
    return isinstance(answer, list) and sum(map(sum, answer)) < sum(lengths)


check_first_fit_decreasing = Exercise(
    "First fit, longest first",
    reference=_first_fit_decreasing,
    cases=[
        case(lengths=[3], capacity=4),
        case(lengths=[2, 3], capacity=4),
        case(lengths=[1, 3], capacity=4),
        case(lengths=[4, 2, 7, 3], capacity=9),
        case(lengths=[5, 5, 4, 1], capacity=9),
        case(lengths=[8, 1, 6, 5, 3], capacity=10),
        case(lengths=[6, 3, 5, 2, 2], capacity=9),
        case(lengths=[2, 4, 3, 4, 3, 3, 3, 9, 1], capacity=10),
        case(lengths=[12, 1, 9, 8, 8, 4, 30, 22, 16, 3, 3, 5, 19, 2, 7], capacity=32),
    ],
    mistakes=[
        Mistake(
            "forgets to sort",
            "Documents are placed in data order. Sort them first, the longest in front.",
            wrong=lambda lengths, capacity: _pack(lengths, capacity, _first),
        ),
        Mistake(
            "sorts shortest first",
            "The short ones fill the rows, and no room is left to put a long one into. Turn the order round.",
            wrong=lambda lengths, capacity: _pack(sorted(lengths), capacity, _first),
        ),
        Mistake(
            "looks at the last row only",
            "A row stays open. Ask every row, from the first one on, before you open a new one.",
            wrong=lambda lengths, capacity: _pack(sorted(lengths, reverse=True), capacity, _last_opened),
        ),
        Mistake(
            "takes the tightest",
            "This is best fit, as in the text. First fit takes the first row with room, tight or not.",
            wrong=lambda lengths, capacity: _pack(sorted(lengths, reverse=True), capacity, _tightest),
        ),
        Mistake(
            "takes the emptiest",
            "The row with most room takes the document, so all rows end half full. Take the first with room.",
            wrong=lambda lengths, capacity: _pack(sorted(lengths, reverse=True), capacity, _emptiest),
        ),
        Mistake(
            "refuses an exact fit",
            "A row may be filled to its last position. A document fits when its length equals the room.",
            wrong=lambda lengths, capacity: _pack(sorted(lengths, reverse=True), capacity, _with_room_left),
        ),
        Mistake(
            "indices instead of lengths",
            "The rows are right, but they hold places in the list. Here the lengths themselves are asked for.",
            wrong=_indices,
        ),
        Mistake(
            "order inside a row",
            "The rows hold the right documents. Leave each row in the order in which it took them, the longest first, "
            "and the rows in the order in which they were opened.",
            when=lambda answer, lengths, capacity: (
                sorted(map(sorted, answer)) == sorted(map(sorted, _first_fit_decreasing(lengths, capacity)))
            ),
        ),
        Mistake(
            "a row above capacity",
            "A row holds more than fits. The room of a row is capacity - sum(row): ask it anew for each document.",
            when=_over_capacity,
        ),
        Mistake(
            "a document lost",
            "Some document is in no row. One that fits nowhere opens a new row and goes into it.",
            when=_lost,
        ),
    ],
    hints=(
        "Go through sorted(lengths, reverse=True). Keep a list of rows.",
        "For each document, go through the rows from the first. Take the first one with capacity - sum(row) >= n.",
        "Python's `for ... else` fits well: `break` when a row took the document, `else: rows.append([n])`.",
    ),
    lesson="First fit and best fit rarely differ by a row. The sorting does the work.",
)


def _least_rows(lengths: Sequence[int], capacity: int) -> int:
    return max(-(-sum(lengths) // capacity), sum(2 * n > capacity for n in lengths))


check_least_rows = Exercise(
    "Rows that no packing can save",
    reference=_least_rows,
    cases=[
        case(lengths=[3], capacity=4),
        case(lengths=[3, 3], capacity=4),
        case(lengths=[2, 2], capacity=4),
        case(lengths=[4, 2, 7, 3], capacity=9),
        case(lengths=[1] * 9, capacity=4),
        case(lengths=[3] * 5, capacity=8),
        case(lengths=[4, 4, 3, 3, 3, 3], capacity=10),
        case(lengths=[5, 5, 5, 6], capacity=9),
        case(lengths=[1025] * 6 + [3] * 40, capacity=2048),
        case(lengths=[1024] * 6 + [900] * 9, capacity=2048),
    ],
    mistakes=[
        Mistake(
            "the tokens alone",
            "Two documents above half the capacity never share a row. Count those too; the larger number holds.",
            wrong=lambda lengths, capacity: -(-sum(lengths) // capacity),
        ),
        Mistake(
            "rounds down",
            "A row that is only begun is a row: round the number of full rows up.",
            wrong=lambda lengths, capacity: max(sum(lengths) // capacity, sum(2 * n > capacity for n in lengths)),
        ),
        Mistake(
            "the long ones alone",
            "Short documents need rows too, when there are many. Take the larger of both numbers.",
            wrong=lambda lengths, capacity: sum(2 * n > capacity for n in lengths),
        ),
        Mistake(
            "exactly half counted as long",
            "Two documents of exactly half the capacity do share a row. Only those above half stand alone.",
            wrong=lambda lengths, capacity: max(-(-sum(lengths) // capacity), sum(2 * n >= capacity for n in lengths)),
        ),
        Mistake(
            "adds both numbers",
            "Each number alone is a lower bound, and both count the same rows. Take the larger one.",
            wrong=lambda lengths, capacity: -(-sum(lengths) // capacity) + sum(2 * n > capacity for n in lengths),
        ),
        Mistake(
            "the smaller of both",
            "No packing gets below either number. So it gets below neither: take the larger one.",
            wrong=lambda lengths, capacity: min(-(-sum(lengths) // capacity), sum(2 * n > capacity for n in lengths)),
        ),
        Mistake(
            "best fit's count",
            "These are the rows that best fit makes: it can be done with so many. A lower bound says with how few it "
            "can not be done: reason from the tokens and the long documents.",
            wrong=lambda lengths, capacity: len(_pack(sorted(lengths, reverse=True), capacity, _tightest)),
        ),
        Mistake(
            "one row a document",
            "This is an upper bound: it can always be done. How few rows can it be?",
            wrong=lambda lengths, capacity: len(lengths),
        ),
    ],
    hints=(
        "All tokens must lie somewhere: how many full rows is that, rounded up?",
        "Two documents that are both longer than half the capacity do not fit together. How many are there?",
        "The answer is the larger of -(-sum(lengths) // capacity) and sum(2 * n > capacity for n in lengths).",
    ),
    lesson="Compare a packer with what is possible, not with zero. Then you know when another capacity is due.",
)
