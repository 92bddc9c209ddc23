"""Checks for notebook 04: the targets of a sequence, of a conversation, and which targets of a row are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mamba_lab.exercises.checking import Exercise, Mistake, case

Turns = Sequence[tuple[str, list[int]]]
_NONE = -100


def _targets(ids: list[int]) -> list[int]:
    return [*ids[1:], _NONE]


check_targets_of = Exercise(
    "Targets of one sequence",
    reference=_targets,
    cases=[
        case(ids=[7]),
        case(ids=[5, 6]),
        case(ids=[1, 2, 3]),
        case(ids=[4, 4, 0, 9]),
        case(ids=[11, 12, 13, 14, 15, 16, 17]),
    ],
    mistakes=[
        Mistake(
            "one too short",
            "Every position needs an entry, also the last one. It has no next token: -100.",
            wrong=lambda ids: ids[1:],
        ),
        Mistake(
            "not shifted",
            "These are the inputs themselves. Position i must predict what stands at i + 1.",
            wrong=lambda ids: list(ids),
        ),
        Mistake(
            "not shifted, last one masked",
            "The last position is right, but the others predict the token that they stand at. Take the one after it.",
            wrong=lambda ids: [*ids[:-1], _NONE],
        ),
        Mistake(
            "shifted twice",
            "Each position skips a token: it must predict the next one, not the one after that.",
            wrong=lambda ids: [*ids[2:], _NONE, _NONE][: len(ids)],
        ),
        Mistake(
            "begins again",
            "The last position predicts the first token: the sequence does not go round in a circle. Put -100 there.",
            wrong=lambda ids: [*ids[1:], ids[0]],
        ),
        Mistake(
            "looks back",
            "These are the tokens before each position. The model has read those; it must predict what comes next.",
            wrong=lambda ids: [_NONE, *ids[:-1]],
        ),
        Mistake(
            "0 where nothing follows",
            "0 is a token like any other, and the model would learn to say it. The mark for no target is -100.",
            wrong=lambda ids: [*ids[1:], 0],
        ),
    ],
    hints=(
        "Write the tokens in a line, and the targets in a line below, moved one place to the left.",
        "ids[1:] is all but the last entry of the answer.",
    ),
    lesson="Shift by one, and let the last position rest. All that follows is a question of where to put -100.",
)


def _conversation(turns: Turns, keep: Callable[[int, int], bool], role: str = "assistant") -> list[int]:
    """The next token, where ``keep(tokens of the turn, place in it)`` says so in one of ``role``'s turns; else -100.

    Place -1 is the last token of the turn before, which predicts the turn's role token.
    """
    ids = [token for _, turn in turns for token in turn]
    targets = [_NONE] * len(ids)
    start = 0
    for speaker, turn in turns:
        for place in range(-1, len(turn)):
            if speaker == role and 0 <= start + place < len(ids) - 1 and keep(len(turn), place):
                targets[start + place] = ids[start + place + 1]
        start += len(turn)
    return targets


def _assistant_targets(turns: Turns) -> list[int]:
    return _conversation(turns, lambda n, place: place >= 0)


def _unshifted(turns: Turns) -> list[int]:
    return [token if role == "assistant" and k else _NONE for role, turn in turns for k, token in enumerate(turn)]


def _unshifted_with_role(turns: Turns) -> list[int]:
    return [token if role == "assistant" else _NONE for role, turn in turns for token in turn]


def _all_targets(turns: Turns) -> list[int]:
    return _targets([token for _, turn in turns for token in turn])


def _across_cut(turns: Turns) -> list[int]:
    """Each turn by itself, so that nothing crosses from one to the next."""
    return [t for role, turn in turns for t in (_targets(turn) if role == "assistant" else [_NONE] * len(turn))]


check_assistant_targets = Exercise(
    "Targets of a conversation",
    reference=_assistant_targets,
    cases=[
        case(turns=[("user", [1, 11])]),
        case(turns=[("assistant", [2, 21])]),
        case(turns=[("user", [1, 11]), ("assistant", [2, 21])]),
        case(turns=[("user", [1, 11, 12]), ("assistant", [2, 21, 22, 23])]),
        case(turns=[("user", [1, 11]), ("assistant", [2, 21, 22]), ("user", [1, 12])]),
        case(turns=[("assistant", [2, 21]), ("assistant", [2, 22]), ("user", [1])]),
        case(turns=[("user", [1]), ("assistant", [2]), ("user", [1, 2, 1])]),
        case(
            turns=[
                ("system", [3, 31]),
                ("user", [1, 11, 12, 13]),
                ("assistant", [2, 21, 21, 22]),
                ("user", [1, 21]),
                ("assistant", [2, 11, 21]),
            ]
        ),
    ],
    mistakes=[
        Mistake(
            "never stops",
            "Inside a turn all is right. But the last word of the assistant's turn must predict the role token that "
            "follows: otherwise the model never learns to end its turn.",
            wrong=_across_cut,
        ),
        Mistake(
            "first word missing",
            "The assistant's first word is predicted at its role token, and that position has -100 here. A "
            "position has a target when its next token is the assistant's.",
            wrong=lambda turns: _conversation(turns, lambda n, place: place >= 1),
        ),
        Mistake(
            "teaches who speaks next",
            "The assistant's role token is a target here, at the end of the turn before. It is given, not said: the "
            "program sets it when it is the assistant's turn.",
            wrong=lambda turns: _conversation(turns, lambda n, place: True),
        ),
        Mistake(
            "the role token instead of the stop",
            "Each assistant's turn is moved by one: it begins with its own role token as target, and ends without "
            "the one that follows.",
            wrong=lambda turns: _conversation(turns, lambda n, place: place < n - 1),
        ),
        Mistake(
            "not shifted",
            "These are the assistant's own tokens, each at its own position. Position i must predict token i + 1: "
            "shift the whole conversation first, and mask after.",
            when=lambda answer, turns: answer in (_unshifted_with_role(turns), _unshifted(turns)),
        ),
        Mistake(
            "everything teaches",
            "These are the targets of a plain text. What the user says is read, but not learned.",
            wrong=_all_targets,
        ),
        Mistake(
            "teaches the user's words",
            "The roles are swapped: here the model learns to speak for the user.",
            wrong=lambda turns: _conversation(turns, lambda n, place: place >= 0, "user"),
        ),
        Mistake(
            "leaves the others out",
            "The answer covers the assistant's tokens only. The model reads the whole conversation: every position "
            "needs an entry.",
            wrong=lambda turns: _targets([t for role, turn in turns if role == "assistant" for t in turn]),
        ),
        Mistake(
            "0 instead of -100",
            "0 is a token like any other. The mark for no target is -100.",
            wrong=lambda turns: [0 if t == _NONE else t for t in _assistant_targets(turns)],
        ),
    ],
    hints=(
        "First join all turns and make the plain targets. Then decide which of them stay.",
        "Where is the assistant's first word predicted? And the role token that ends its turn?",
        "Both positions stand in the assistant's own turn: go by the role of the turn that a position stands in.",
    ),
    lesson="A position has a target when its next token is the assistant's: its words, and the role token that ends "
    "its turn.",
)


def _right(ids: list[int], lengths: list[int]) -> list[int]:
    """The targets of the whole row when nothing is masked on purpose."""
    result: list[int] = []
    for n in lengths:
        result += _targets(ids[len(result) : len(result) + n])
    return result + [_NONE] * (len(ids) - len(result))


def _differ(targets: list[int], right: list[int], masked: bool = False) -> list[int]:
    return [i for i, (t, r) in enumerate(zip(targets, right, strict=True)) if t != r and (masked or t != _NONE)]


def _wrong_positions(ids: list[int], targets: list[int], lengths: list[int]) -> list[int]:
    return _differ(targets, _right(ids, lengths))


def _wrong_inside(ids: list[int], targets: list[int], lengths: list[int]) -> list[int]:
    right = _right(ids, lengths)
    return [i for i in _differ(targets, right) if right[i] != _NONE]


def _wrong_where_nothing_follows(ids: list[int], targets: list[int], lengths: list[int]) -> list[int]:
    right = _right(ids, lengths)
    return [i for i in _differ(targets, right) if right[i] == _NONE]


check_wrong_positions = Exercise(
    "Wrong targets of a row",
    reference=_wrong_positions,
    cases=[
        case(ids=[5, 6], targets=[6, -100], lengths=[2]),
        case(ids=[5, 6], targets=[5, -100], lengths=[2]),
        case(ids=[5, 6, 7], targets=[-100, 7, -100], lengths=[3]),
        case(ids=[5, 6, 0], targets=[6, -100, 0], lengths=[2]),
        case(ids=[5, 6, 7, 8], targets=[6, 7, 8, -100], lengths=[2, 2]),
        case(ids=[5, 6, 0, 0], targets=[6, 0, 0, -100], lengths=[2]),
        case(ids=[5, 5, 5, 5], targets=[5, -100, 5, -100], lengths=[2, 2]),
        case(ids=[4, 5, 6, 7, 8], targets=[6, 7, 8, -100, -100], lengths=[5]),
        case(ids=[1, 2, 3, 4, 5, 9, 9], targets=[2, 4, -100, 5, 9, 9, -100], lengths=[3, 2]),
    ],
    mistakes=[
        Mistake(
            "trusts the row",
            "A target may be the next token of the row and still be wrong: at the end of a sequence another one "
            "begins, or padding.",
            wrong=lambda ids, targets, lengths: _differ(targets, _targets(ids)),
        ),
        Mistake(
            "forgets padding",
            "What lies behind the last sequence is padding. A target there is wrong, whatever it is.",
            wrong=lambda ids, targets, lengths: [
                i for i in _wrong_positions(ids, targets, lengths) if i < sum(lengths)
            ],
        ),
        Mistake(
            "looks inside only",
            "Inside the sequences all is found. Their last positions and padding must have no target: look there too.",
            wrong=_wrong_inside,
        ),
        Mistake(
            "looks at the ends only",
            "Ends and padding are right. Inside a sequence a target must be the next token, too.",
            wrong=_wrong_where_nothing_follows,
        ),
        Mistake(
            "takes a mask for a mistake",
            "A position without target is not wrong: it may be masked on purpose.",
            wrong=lambda ids, targets, lengths: _differ(targets, _right(ids, lengths), masked=True),
        ),
        Mistake(
            "counts them",
            "The number is right. Return the positions, so that one can go and look.",
            wrong=lambda ids, targets, lengths: len(_wrong_positions(ids, targets, lengths)),
        ),
        Mistake(
            "yes or no for each",
            "One boolean a position tells the same. Return the positions of the wrong ones.",
            wrong=lambda ids, targets, lengths: [i in _wrong_positions(ids, targets, lengths) for i in range(len(ids))],
        ),
        Mistake(
            "runs over the end of the row",
            "Behind the row's last position there is no token. Its target must be -100.",
            raises=IndexError,
        ),
    ],
    hints=(
        "Build the targets that would be right without any mask: per sequence the shifted ids and -100, then -100 for "
        "padding.",
        "A position is wrong where its target is not -100 and differs from the right one.",
    ),
    lesson="This is the certain half of check_targets. The other half gives the mistake its name.",
)
