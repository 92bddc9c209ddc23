"""Checks for notebook 08: the places a tap reads, the input's gradient, and the state that a piece hands on."""

from __future__ import annotations

from collections.abc import Callable

from mamba_lab.exercises.checking import Exercise, Mistake, case

check_taps = Exercise(
    "The places that a token reads",
    reference=lambda position, W: list(range(max(0, position - W + 1), position + 1)),
    cases=[
        case(position=0, W=4),
        case(position=1, W=4),
        case(position=3, W=4),
        case(position=4, W=4),
        case(position=5, W=2),
        case(position=2, W=1),
        case(position=9, W=4),
    ],
    mistakes=[
        Mistake(
            "reaches before the start",
            "Negative places lie in another sequence. The oldest place that a token may read is 0.",
            wrong=lambda position, W: list(range(position - W + 1, position + 1)),
        ),
        Mistake(
            "one tap too many",
            "W taps are the token itself and W - 1 before it. This reads W before it.",
            wrong=lambda position, W: list(range(max(0, position - W), position + 1)),
        ),
        Mistake(
            "without the token itself",
            "A convolution reads its own token too: the newest tap belongs to it.",
            wrong=lambda position, W: list(range(max(0, position - W + 1), position)),
        ),
        Mistake(
            "newest first",
            "The places are right. The weights have the oldest tap first, so give the places in that order.",
            wrong=lambda position, W: list(range(position, max(-1, position - W), -1)),
        ),
        Mistake(
            "the whole past",
            "This reads back to the start, as the scan does. A convolution has only W taps.",
            wrong=lambda position, W: list(range(position + 1)),
        ),
        Mistake(
            "how far back, not which",
            "These numbers say how many places back. Wanted are the places themselves: position minus each of them.",
            when=lambda answer, position, W: sorted(answer) == list(range(min(position, W - 1) + 1)),
        ),
        Mistake(
            "a count",
            "This says how many places there are. Give the places, in a list.",
            wrong=lambda position, W: min(position, W - 1) + 1,
        ),
    ],
    hints=(
        "The newest place is position. With W taps, which is the oldest one if nothing is in the way?",
        "position - (W - 1), but never below 0: max(0, position - W + 1).",
    ),
    lesson="A token reads min(position, W - 1) others. The position is all that it must know.",
)


def _gradient(
    reads: Callable[[list[int], int, int], bool],
    *,
    first: int = 0,
    tap: Callable[[int], int] = lambda k: -1 - k,
    step: int = 1,
    short: int = 0,
) -> Callable[[list[int], list[int], list[int]], list[int]]:
    """The gradient of each input, where ``reads(position, t, k)`` says whether token t + k counts."""

    def f(g: list[int], w: list[int], position: list[int]) -> list[int]:
        T = len(g)
        return [
            sum(
                w[tap(k)] * g[t + step * k]
                for k in range(first, len(w) - short)
                if 0 <= t + step * k < T and reads(position, t, k)
            )
            for t in range(T)
        ]

    return f


def _reader_may(position: list[int], t: int, k: int) -> bool:
    return position[t + k] >= k


check_input_gradient = Exercise(
    "The gradient of an input",
    reference=_gradient(_reader_may),
    cases=[
        case(g=[5], w=[2, 3], position=[0]),
        case(g=[1, 10], w=[2, 3], position=[0, 1]),
        case(g=[1, 10], w=[2, 3], position=[0, 0]),
        case(g=[1, 10, 100], w=[2, 3], position=[0, 1, 0]),
        case(g=[1, 10, 100, 1000], w=[2, 3, 5], position=[0, 0, 1, 2]),
        case(g=[1, 10, 100, 1000, 7], w=[1, 2, 3, 4], position=[0, 1, 2, 3, 4]),
        case(g=[1, 10, 100, 1000, 7, 70], w=[1, 2, 3, 4], position=[0, 1, 0, 1, 0, 1]),
        case(g=[3, 1, 4, 1, 5, 9, 2, 6, 5], w=[1, 2, 3, 4], position=[0, 1, 2, 3, 0, 1, 0, 1, 2]),
        case(g=[4, 5, 6], w=[2], position=[0, 1, 0]),
    ],
    mistakes=[
        Mistake(
            "runs off the row's end",
            "The last tokens have fewer than W - 1 tokens after them. Ask whether t + k is still in the row.",
            raises=IndexError,
        ),
        Mistake(
            "does not stop",
            "The gradient of another sequence comes in. An output counts only if it read this token.",
            wrong=_gradient(lambda position, t, k: True),
        ),
        Mistake(
            "asks the wrong token",
            "This asks how far token t may look back. The one that looks back is its reader, token t + k.",
            wrong=_gradient(lambda position, t, k: position[t] >= k),
        ),
        Mistake(
            "looks back",
            "This is the forward pass, with g in place of x. An input was read by tokens after it: t + k.",
            wrong=_gradient(lambda position, t, k: position[t] >= k, step=-1),
        ),
        Mistake(
            "steps over a start",
            "A reader that is no first token may still be in a later sequence. Compare its position with k, not "
            "with 0.",
            wrong=_gradient(lambda position, t, k: k == 0 or position[t + k] > 0),
        ),
        Mistake(
            "taps in the wrong order",
            "Token t + k read this one k places back, with the tap k before the last: w[-1 - k].",
            wrong=_gradient(_reader_may, tap=lambda k: k),
        ),
        Mistake(
            "without the token's own output",
            "A token is in its own output too, through the last tap. Begin with k = 0.",
            wrong=_gradient(_reader_may, first=1),
        ),
        Mistake(
            "one tap too few",
            "W taps are k = 0 to W - 1. The oldest one is missing here.",
            wrong=_gradient(_reader_may, short=1),
        ),
    ],
    hints=(
        "Which outputs read x[t]? Those of t, t + 1, ... t + W - 1, as far as they are in its sequence.",
        "Token t + k looked k places back. It could do so only if its position is at least k.",
        "Add up w[-1 - k] * g[t + k] for each k where t + k < len(g) and position[t + k] >= k.",
    ),
    lesson="The reader's position is enough. A kernel that has it needs no second index.",
)


def _states(
    keep: Callable[[list[int], list[int], int], list[int]], *, before: bool = False
) -> Callable[[list[int], list[int], int], list[list[int]]]:
    """The state after (or before) each piece, where ``keep(state, piece, W)`` makes the new one."""

    def f(xs: list[int], sizes: list[int], W: int) -> list[list[int]]:
        state, at = [0] * (W - 1), 0
        found = []
        for n in sizes:
            new = keep(state, xs[at : at + n], W)
            found.append(state if before else new)
            state, at = new, at + n
        return found

    return f


def _newest(window: list[int], n: int) -> list[int]:
    return window[len(window) - n :]


check_states = Exercise(
    "The state that a piece hands on",
    reference=_states(lambda state, piece, W: _newest(state + piece, W - 1)),
    cases=[
        case(xs=[1, 2, 3], sizes=[3], W=4),
        case(xs=[1, 2, 3, 4, 5], sizes=[5], W=4),
        case(xs=[1, 2], sizes=[2], W=4),
        case(xs=[1, 2, 3, 4, 5, 6, 7, 8], sizes=[4, 4], W=4),
        case(xs=[1, 2, 3, 4, 5, 6, 7], sizes=[4, 1, 2], W=4),
        case(xs=[1, 2, 3, 4], sizes=[3, 0, 1], W=3),
        case(xs=[1, 2, 3], sizes=[2, 1], W=2),
        case(xs=[1, 2, 3], sizes=[2, 1], W=1),
    ],
    mistakes=[
        Mistake(
            "forgets the state before",
            "A piece shorter than W - 1 does not fill the state. What is missing comes from the state before, not from "
            "zeros.",
            wrong=_states(lambda state, piece, W: _newest([0] * (W - 1) + piece, W - 1)),
        ),
        Mistake(
            "a state too short",
            "After a short piece the state has fewer than W - 1 inputs. Put the old state in front of the piece first.",
            wrong=_states(lambda state, piece, W: piece[max(0, len(piece) - W + 1) :]),
        ),
        Mistake(
            "W inputs",
            "A next token brings itself. It looks back on W - 1 inputs, so the state holds that many.",
            wrong=lambda xs, sizes, W: [_newest([0] * W + xs[: sum(sizes[: i + 1])], W) for i in range(len(sizes))],
        ),
        Mistake(
            "newest first",
            "The inputs are right. Give them in the order in which they came, the oldest first.",
            wrong=lambda xs, sizes, W: [
                s[::-1] for s in _states(lambda state, piece, W: _newest(state + piece, W - 1))(xs, sizes, W)
            ],
        ),
        Mistake(
            "the state before each piece",
            "This is what each piece begins with. Wanted is what it leaves behind.",
            wrong=_states(lambda state, piece, W: _newest(state + piece, W - 1), before=True),
        ),
        Mistake(
            "the oldest inputs",
            "These are the first inputs of a piece. A next token looks back on the last ones.",
            wrong=_states(lambda state, piece, W: (state + piece)[: W - 1] if not piece else (piece + state)[: W - 1]),
        ),
        Mistake(
            "a slice from -0",
            "With W = 1 the state is empty. Yet window[-0:] is the whole window: write window[len(window) - (W - 1):].",
            wrong=_states(lambda state, piece, W: (state + piece)[-(W - 1) :]),
        ),
    ],
    hints=(
        "Begin with W - 1 zeros. What does a token see that comes after the first piece?",
        "Lay the piece behind the old state. The new state is the end of that list.",
    ),
    lesson="A state of W - 1 inputs is all that a convolution remembers: 3 numbers a channel.",
)
