"""Checks for notebook 10: where gradient flows in a pack, the gradients of a scan with resets, and one tile's part."""

from __future__ import annotations

from collections.abc import Callable

from mamba_lab.exercises.checking import Exercise, Mistake, case

Numbers = list[float]


def _receives(position: list[int]) -> list[bool]:
    return [p > 0 for p in position[1:]] + [False] * bool(position)


check_receives = Exercise(
    "Who receives gradient from the next token",
    reference=_receives,
    cases=[
        case(position=[0]),
        case(position=[0, 1]),
        case(position=[0, 0]),
        case(position=[0, 1, 2, 0, 1]),
        case(position=[0, 1, 2, 3, 0, 1, 0, 1, 2]),
        case(position=[0, 0, 0, 1]),
    ],
    mistakes=[
        Mistake(
            "runs off the row's end",
            "The last token of the row has no token after it. Ask for t + 1 < len(position) first.",
            raises=IndexError,
        ),
        Mistake(
            "the first in place of the last",
            "This asks the token's own position: whether it has a token before it. Gradient comes from the token after "
            "it.",
            wrong=lambda position: [p > 0 for p in position],
        ),
        Mistake(
            "crosses the boundary",
            "The last token of a document receives nothing: the token after it starts afresh and never read its state.",
            wrong=lambda position: [t + 1 < len(position) for t in range(len(position))],
        ),
        Mistake(
            "the row's last token receives",
            "There is no token after the row's last one, so nothing comes from there.",
            wrong=lambda position: [p > 0 for p in position[1:]] + [True] * bool(position),
        ),
        Mistake(
            "the wrong way round",
            "True and False are exchanged. True is where the next token continues the document.",
            wrong=lambda position: [not r for r in _receives(position)],
        ),
        Mistake(
            "one too few",
            "Each token needs an answer, the last one of the row too: it receives nothing.",
            wrong=lambda position: [p > 0 for p in position[1:]],
        ),
        Mistake(
            "places, not True and False",
            "These are the places of the tokens. Give True or False for each token of the row.",
            wrong=lambda position: [t for t, r in enumerate(_receives(position)) if r],
        ),
    ],
    hints=(
        "Token t gives its state to token t + 1, unless token t + 1 starts a document. Which position has a start?",
        "position[t + 1] > 0, and False for the last token of the row.",
    ),
    lesson="Gradient flows back over exactly the joints over which state flowed forward.",
)


def _gradients(
    *,
    carry: bool = True,
    decay: int = 1,
    read: int = -1,
    stop_g: bool = True,
    stop_h: bool = True,
    forget_start: bool = False,
    forward: bool = False,
    stop_early: bool = False,
) -> Callable[[Numbers, Numbers, Numbers, list[int]], tuple[Numbers, Numbers]]:
    """The right answer, or what comes out when one thing is wrong."""

    def f(a: Numbers, b: Numbers, dy: Numbers, position: list[int]) -> tuple[Numbers, Numbers]:
        T = len(a)
        h: Numbers = []
        for t in range(T):
            goes_on = t > 0 and (position[t] > 0 or not stop_h)
            h.append(b[t] + (a[t] * h[t - 1] if goes_on else 0.0))
        g = [0.0] * T
        for t in range(T) if forward else reversed(range(T)):
            other = t - 1 if forward else t + 1
            g[t] = dy[t]
            if carry and 0 <= other < T:
                wall = t if forward or stop_early else other
                if position[wall] > 0 or not stop_g:
                    g[t] += a[t if forward else t + decay] * g[other]
        da = []
        for t in range(T):
            has_one = read == 0 or (t > 0 and (position[t] > 0 or not stop_h or forget_start))
            da.append(g[t] * h[t + read] if has_one else 0.0)
        return da, g

    return f


def _swapped(a: Numbers, b: Numbers, dy: Numbers, position: list[int]) -> tuple[Numbers, Numbers]:
    return _gradients()(a, b, dy, position)[::-1]


def _decayed(a: Numbers, b: Numbers, dy: Numbers, position: list[int]) -> tuple[Numbers, Numbers]:
    da, db = _gradients()(a, b, dy, position)
    return [x * y for x, y in zip(a, da, strict=True)], db


_PACK = [0, 1, 2, 3, 0, 1, 0, 1, 2]

check_scan_gradients = Exercise(
    "The gradients of a scan with resets",
    reference=_gradients(),
    cases=[
        case(a=[0.5], b=[4.0], dy=[3.0], position=[0]),
        case(a=[0.5, 0.25], b=[4.0, 2.0], dy=[1.0, 10.0], position=[0, 1]),
        case(a=[0.5, 0.25], b=[4.0, 2.0], dy=[1.0, 10.0], position=[0, 0]),
        case(a=[0.5, 0.25, 2.0], b=[4.0, 2.0, 3.0], dy=[1.0, 10.0, 100.0], position=[0, 1, 2]),
        case(
            a=[0.5, 0.25, 2.0, 3.0, 0.5],
            b=[4.0, 2.0, 3.0, 5.0, 7.0],
            dy=[1.0, 2.0, 5.0, 7.0, 3.0],
            position=[0, 1, 0, 1, 2],
        ),
        case(
            a=[0.5, 0.25, 2.0, 0.5, 3.0, 0.25, 0.5, 2.0, 4.0],
            b=[4.0, 3.0, 5.0, 4.0, 2.0, 4.0, 6.0, 4.0, 5.0],
            dy=[1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0],
            position=_PACK,
        ),
        case(a=[0.0, 0.0, 0.5], b=[4.0, 2.0, 1.0], dy=[1.0, 1.0, 2.0], position=[0, 1, 2]),
    ],
    mistakes=[
        Mistake(
            "forgets the carried gradient",
            "This takes g = dy. A state is also read by the next one: add a[t + 1] * g[t + 1].",
            wrong=_gradients(carry=False),
        ),
        Mistake(
            "a_t instead of a_{t+1}",
            "What token t receives from behind was multiplied by the next token's decay, a[t + 1].",
            wrong=_gradients(decay=0),
        ),
        Mistake(
            "h_t instead of h_{t-1}",
            "a[t] multiplied the state before token t. So da[t] is g[t] times that one, not the state after it.",
            wrong=_gradients(read=0),
        ),
        Mistake(
            "crosses the boundary",
            "The gradient runs on into the document before. The next token hands nothing on if its position is 0.",
            wrong=_gradients(stop_g=False),
        ),
        Mistake(
            "stops one token early",
            "This asks the position of the token that receives. Ask the one that hands on: a document's first token "
            "still receives from its second.",
            wrong=_gradients(stop_early=True),
        ),
        Mistake(
            "the states do not stop",
            "db is right. The states that da uses must start afresh at position 0, like those of the forward pass.",
            wrong=_gradients(stop_h=False),
        ),
        Mistake(
            "no reset at all",
            "This is the answer for one long document. Both the states and the gradient stop at a position 0.",
            wrong=_gradients(stop_h=False, stop_g=False),
        ),
        Mistake(
            "a start reads a foreign state",
            "A token at position 0 found no state, so its da is 0. Here it reads the last state of the document "
            "before.",
            wrong=_gradients(forget_start=True),
        ),
        Mistake(
            "runs forward",
            "g is filled from the first token on. It needs g of the token after: begin at the end.",
            wrong=_gradients(forward=True),
        ),
        Mistake("da and db exchanged", "Both lists are right. Return da first, then db.", wrong=_swapped),
        Mistake(
            "multiplied by a once more",
            "db is right. This da has the factor a[t] too much: it is the gradient of a's logarithm.",
            wrong=_decayed,
        ),
    ],
    hints=(
        "Two loops. Forward: note the state that each token finds, 0 at position 0. Then go through the tokens from "
        "the last to the first.",
        "Keep one number, carried. At each token: g = dy[t] + carried, and then carried = a[t] * g, or 0 at a start.",
        "db[t] = g, and da[t] = g times the state that token t found.",
    ),
    lesson="Two scans, one in each direction, which stop at the same places.",
)


def _tile(
    *,
    checkpoint: bool = True,
    handed: bool = True,
    decay_first: bool = False,
    last_decay: bool = True,
    read: int = 0,
    only: bool = False,
) -> Callable[..., object]:
    def f(a: Numbers, b: Numbers, dy: Numbers, h: float, carried: float) -> object:
        before = [h if checkpoint else 0.0]
        for t in range(len(a)):
            before.append(a[t] * before[t] + b[t])
        g = carried if handed else 0.0
        da = [0.0] * len(a)
        if decay_first:
            g = a[-1] * g
        for t in reversed(range(len(a))):
            g += dy[t]
            da[t] = g * before[t + read]
            if t > 0 or last_decay:
                g = a[t] * g
        return da if only else (da, g)

    return f


check_one_tile = Exercise(
    "One tile of the backward pass",
    reference=_tile(),
    cases=[
        case(a=[0.5], b=[4.0], dy=[3.0], h=2.0, carried=0.0),
        case(a=[0.5], b=[4.0], dy=[3.0], h=2.0, carried=10.0),
        case(a=[0.5, 0.25], b=[4.0, 2.0], dy=[1.0, 10.0], h=0.0, carried=0.0),
        case(a=[0.5, 0.25, 2.0], b=[4.0, 2.0, 3.0], dy=[1.0, 2.0, 5.0], h=8.0, carried=4.0),
        case(a=[0.5, 0.0, 2.0, 0.25], b=[1.0, 2.0, 3.0, 4.0], dy=[1.0, 2.0, 5.0, 7.0], h=6.0, carried=16.0),
    ],
    mistakes=[
        Mistake(
            "forgets the checkpoint",
            "The tile lies in the middle of a document. Its first token finds the state h, not 0.",
            wrong=_tile(checkpoint=False),
        ),
        Mistake(
            "forgets what the later tile hands on",
            "The last state of this tile was read by the next tile too. Begin with carried, not with 0.",
            wrong=_tile(handed=False),
        ),
        Mistake(
            "decays what came in",
            "carried has been multiplied by the later tile's decay already. Add it as it is.",
            wrong=_tile(decay_first=True),
        ),
        Mistake(
            "hands on too much",
            "The state before the tile was multiplied by the first token's decay: hand on a[0] times its g.",
            wrong=_tile(last_decay=False),
        ),
        Mistake(
            "h_t instead of h_{t-1}",
            "a[t] multiplied the state before token t. For the first token that is the checkpoint.",
            wrong=_tile(read=1),
        ),
        Mistake(
            "keeps the gradient to itself",
            "da is right. The tile before waits for its part: return da, and what is handed on.",
            wrong=_tile(only=True),
        ),
    ],
    hints=(
        "First the states: before = [h], and then one more for each token but the last.",
        "Then from the last token to the first: g = dy[t] + carried, use it for da[t], and then carried = a[t] * g.",
    ),
    lesson="This is what a kernel does with a tile: a state comes in from the left, a gradient from the right.",
)
