"""Checks for notebook 05: positions in a pack, the boundaries of a packed batch, and packing that splits."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from mamba_lab.exercises.checking import Exercise, Mistake, case

Piece = tuple[int, int, int]
Bins = list[list[Piece]]


def _per_token(lengths: list[int], value: Callable[[int, int, int], int]) -> list[int]:
    """``value(number, length, position)`` for every token."""
    return [value(number, n, position) for number, n in enumerate(lengths) for position in range(n)]


def _position_indices(lengths: list[int]) -> list[int]:
    return _per_token(lengths, lambda number, n, position: position)


check_position_indices = Exercise(
    "Positions in a pack",
    reference=_position_indices,
    cases=[
        case(lengths=[3]),
        case(lengths=[2, 2]),
        case(lengths=[1, 3]),
        case(lengths=[3, 5, 6, 2]),
        case(lengths=[2, 0, 1]),
        case(lengths=[4, 2, 3, 7]),
        case(lengths=[]),
    ],
    mistakes=[
        Mistake(
            "counts through",
            "This counts in the row. A position counts in the token's own sequence: each sequence begins at 0 again.",
            wrong=lambda lengths: list(range(sum(lengths))),
        ),
        Mistake(
            "counts from 1",
            "The first token of a sequence has nothing before it: its position is 0.",
            wrong=lambda lengths: _per_token(lengths, lambda number, n, position: position + 1),
        ),
        Mistake(
            "sequence numbers",
            "This says which sequence a token belongs to: it is seq_idx. The position says where in it.",
            wrong=lambda lengths: _per_token(lengths, lambda number, n, position: number),
        ),
        Mistake(
            "cumulative lengths",
            "These are the places where sequences start and end: cu_seqlens. A position is wanted for every token.",
            wrong=lambda lengths: [0, *itertools.accumulate(lengths)],
        ),
        Mistake(
            "one list a sequence",
            "The numbers are right. A row is flat: put them all in one list.",
            # Empty sequences may have a list or none.
            when=lambda answer, lengths: [r for r in answer if r] == [list(range(n)) for n in lengths if n],
        ),
        Mistake(
            "counts down",
            "This counts the tokens that are left. A position counts those that came before.",
            wrong=lambda lengths: _per_token(lengths, lambda number, n, position: n - 1 - position),
        ),
        Mistake(
            "each sequence one too long",
            "A sequence of n tokens has the positions 0 to n - 1. This gives it n + 1 of them.",
            wrong=lambda lengths: _position_indices([n + 1 for n in lengths]),
        ),
    ],
    hints=(
        "What are the positions of a single sequence of 4 tokens? Then do that for each length.",
        "list(range(n)) are the positions of a sequence of n tokens. Add them to one list.",
    ),
    lesson="A 0 is all that a model needs to see a start, and an empty sequence has no token to carry one.",
)


Rows = list[list[int]]


def _batch_cu_seqlens(rows: Rows, capacity: int) -> list[int]:
    places = [0]
    for number, lengths in enumerate(rows):
        for n in lengths:
            places.append(places[-1] + n)
        end = (number + 1) * capacity
        if places[-1] < end:
            places.append(end)
    return places


def _row_by_row(rows: Rows, of_row: Callable[[int, list[int]], list[int]]) -> list[int]:
    return [place for number, lengths in enumerate(rows) for place in of_row(number, lengths)]


def _ends(lengths: list[int]) -> list[int]:
    return list(itertools.accumulate(lengths))


def _with_padding(lengths: list[int], capacity: int) -> list[int]:
    rest = capacity - sum(lengths)
    return [*lengths, rest] if rest else list(lengths)


check_batch_cu_seqlens = Exercise(
    "The boundaries of a packed batch",
    reference=_batch_cu_seqlens,
    cases=[
        case(rows=[[3]], capacity=4),
        case(rows=[[4]], capacity=4),
        case(rows=[[3, 2]], capacity=8),
        case(rows=[[2], [3]], capacity=4),
        case(rows=[[1, 3], [2]], capacity=4),
        case(rows=[[4, 2], [3], [7]], capacity=8),
        case(rows=[[3, 5], [6, 2], [1, 1, 1]], capacity=8),
        case(rows=[[5], [], [2, 2]], capacity=6),
    ],
    mistakes=[
        Mistake(
            "forgets padding",
            "The sequences stand end to end here. In the batch a row's padding stands between them, and the last "
            "place must be rows times capacity.",
            wrong=lambda rows, capacity: [0, *_ends([n for lengths in rows for n in lengths])],
        ),
        Mistake(
            "padding belongs to the last sequence",
            "Here the last sequence of a row runs on over the padding. Padding begins where the sequence ends: that "
            "place is missing.",
            wrong=lambda rows, capacity: [
                0,
                *_row_by_row(rows, lambda r, n: [*(r * capacity + end for end in _ends(n)[:-1]), (r + 1) * capacity]),
            ],
        ),
        Mistake(
            "an empty sequence at the end of a full row",
            "A full row has no padding. Its last sequence ends at the row's end, and the place is there twice.",
            wrong=lambda rows, capacity: [
                0,
                *_row_by_row(rows, lambda r, n: [*(r * capacity + end for end in _ends(n)), (r + 1) * capacity]),
            ],
        ),
        Mistake(
            "one list a row",
            "This is one list for each row. The batch is one line of rows, end to end: its places are one flat list, "
            "from 0 to rows times capacity.",
            when=lambda answer, rows, capacity: (
                isinstance(answer, list) and len(answer) == len(rows) and all(isinstance(row, list) for row in answer)
            ),
        ),
        Mistake(
            "begins again in each row",
            "The places count in the flattened batch: row r begins at r times capacity.",
            when=lambda answer, rows, capacity: (
                len(rows) > 1
                and answer
                in (
                    _row_by_row(rows, lambda r, n: [0, *_ends(_with_padding(n, capacity))]),
                    [0, *_row_by_row(rows, lambda r, n: _ends(_with_padding(n, capacity)))],
                )
            ),
        ),
        Mistake(
            "no 0 in front",
            "The first sequence starts at 0. With S sequences there are S + 1 places.",
            wrong=lambda rows, capacity: _batch_cu_seqlens(rows, capacity)[1:],
        ),
        Mistake(
            "without the end",
            "These are the starts. The last place is the end of the batch, rows times capacity.",
            wrong=lambda rows, capacity: _batch_cu_seqlens(rows, capacity)[:-1],
        ),
        Mistake(
            "lengths, not places",
            "These are the lengths of the sequences, padding included. Add them up, from 0 on.",
            wrong=lambda rows, capacity: _row_by_row(rows, lambda r, n: _with_padding(n, capacity)),
        ),
        Mistake(
            "each padding position a sequence",
            "The padding at a row's end is one sequence, not one for each position.",
            wrong=lambda rows, capacity: [
                0,
                *_row_by_row(
                    rows,
                    lambda r, n: [
                        *(r * capacity + e for e in _ends(n)),
                        *range(r * capacity + sum(n) + 1, (r + 1) * capacity + 1),
                    ],
                ),
            ],
        ),
        Mistake(
            "rows only",
            "These are the ends of the rows. A row holds several sequences, and each one ends somewhere.",
            wrong=lambda rows, capacity: [r * capacity for r in range(len(rows) + 1)],
        ),
    ],
    hints=(
        "Begin with [0]. Each sequence adds one place: the last place plus its length.",
        "After a row's sequences, compare the last place with the row's end, (r + 1) * capacity.",
        "Where the last place is below the row's end there is padding: the row's end is one more place.",
    ),
    lesson="Padding is one more sequence. So the places cover every position of the batch, and none is special.",
)


def _cut(lengths: list[int], capacity: int) -> list[Piece]:
    return [(i, s, min(s + capacity, n)) for i, n in enumerate(lengths) for s in range(0, n, capacity)]


def _in_order(pieces: list[Piece], fits: Callable[[int, int], bool]) -> Bins:
    """Pieces in their order; a new bin where ``fits(used, size)`` says no."""
    bins: Bins = []
    used = 0
    for piece in pieces:
        size = piece[2] - piece[1]
        if not bins or not fits(used, size):
            bins.append([])
            used = 0
        bins[-1].append(piece)
        used += size
    return bins


def _pack_split(lengths: list[int], capacity: int) -> Bins:
    return _in_order(_cut(lengths, capacity), lambda used, size: used + size <= capacity)


def _fills_up(lengths: list[int], capacity: int) -> Bins:
    bins: Bins = []
    free = 0
    for i, n in enumerate(lengths):
        start = 0
        while start < n:
            if free == 0:
                bins.append([])
                free = capacity
            stop = min(n, start + free)
            bins[-1].append((i, start, stop))
            free, start = free - (stop - start), stop
    return bins


def _first_fit(lengths: list[int], capacity: int) -> Bins:
    bins: Bins = []
    free: list[int] = []
    for piece in _cut(lengths, capacity):
        size = piece[2] - piece[1]
        place = next((b for b, room in enumerate(free) if size <= room), len(bins))
        if place == len(bins):
            bins.append([])
            free.append(capacity)
        bins[place].append(piece)
        free[place] -= size
    return bins


check_pack_split = Exercise(
    "Packing that splits",
    reference=_pack_split,
    cases=[
        case(lengths=[2], capacity=4),
        case(lengths=[4], capacity=4),
        case(lengths=[3, 1], capacity=4),
        case(lengths=[3, 2], capacity=4),
        case(lengths=[5], capacity=4),
        case(lengths=[8], capacity=4),
        case(lengths=[1, 5], capacity=4),
        case(lengths=[4, 2, 3, 7], capacity=6),
        case(lengths=[3, 2, 1, 13, 2], capacity=4),
        case(lengths=[7, 121, 20, 33, 8], capacity=60),
    ],
    mistakes=[
        Mistake(
            "fills each row to its end",
            "This cuts wherever a row ends, as fixed chunks do. Here only a document above the capacity is cut, and "
            "at multiples of the capacity.",
            wrong=_fills_up,
        ),
        Mistake(
            "drops the rest of a long document",
            "Its first piece is there, the others are not. Nothing may be lost: every token lies in a piece.",
            wrong=lambda lengths, capacity: _in_order(
                [(i, 0, min(n, capacity)) for i, n in enumerate(lengths)], lambda used, size: used + size <= capacity
            ),
        ),
        Mistake(
            "only full pieces of a long document",
            "The last piece of a long document is shorter than the capacity. It must be packed too.",
            wrong=lambda lengths, capacity: _in_order(
                [p for p in _cut(lengths, capacity) if lengths[p[0]] <= capacity or p[2] - p[1] == capacity],
                lambda used, size: used + size <= capacity,
            ),
        ),
        Mistake(
            "long documents stay whole",
            "A bin holds more than the capacity. Cut what is longer before it is packed.",
            wrong=lambda lengths, capacity: _in_order(
                [(i, 0, n) for i, n in enumerate(lengths)], lambda used, size: used + size <= capacity
            ),
        ),
        Mistake(
            "a row for each piece",
            "A piece goes into the open bin when it fits there. These are chunks, not packs.",
            wrong=lambda lengths, capacity: _in_order(_cut(lengths, capacity), lambda used, size: False),
        ),
        Mistake(
            "goes back to an earlier row",
            "A closed bin stays closed. A piece that does not fit into the open bin begins a new one.",
            wrong=_first_fit,
        ),
        Mistake(
            "refuses an exact fit",
            "A bin of exactly the capacity is full, not over it. Begin a new one only above it.",
            wrong=lambda lengths, capacity: _in_order(
                _cut(lengths, capacity), lambda used, size: used + size < capacity
            ),
        ),
        Mistake(
            "forgets the last bin",
            "The pieces that are left when the loop ends make up a bin too.",
            wrong=lambda lengths, capacity: _pack_split(lengths, capacity)[:-1],
        ),
        Mistake(
            "the remainder counts from 0",
            "The sizes are right. A piece says which tokens it holds: the second piece starts where the first stops.",
            wrong=lambda lengths, capacity: [
                [(i, 0, stop - start) for i, start, stop in row] for row in _pack_split(lengths, capacity)
            ],
        ),
    ],
    hints=(
        "Do it in two steps: first a list of all pieces, then pack that list in order.",
        "range(0, n, capacity) gives the starts of a document's pieces.",
        "Each piece stops at min(start + capacity, n). A short document is one piece.",
    ),
    lesson="A split document loses its context at the cut. Notebook 14 carries the state over it.",
)
