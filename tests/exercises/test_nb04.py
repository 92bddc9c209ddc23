from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from mamba_lab.batching import make_targets
from mamba_lab.exercises.nb04 import check_assistant_targets, check_targets_of, check_wrong_positions
from mamba_lab.exercises.testing import assert_solution_passes, assert_stub_fails, assert_wrong_answers


def stub(*inputs): ...


def rolled(ids):
    moved = np.roll(ids, -1)
    moved[-1] = -100
    return moved


@pytest.mark.parametrize(
    "targets_of", [lambda ids: [*ids[1:], -100], rolled, make_targets, lambda ids: torch.tensor([*ids[1:], -100])]
)
def test_targets_of_is_right(targets_of):
    assert_solution_passes(check_targets_of, targets_of)


def test_targets_of_wrong_answers():
    assert_stub_fails(check_targets_of, stub)
    assert_wrong_answers(
        check_targets_of,
        {
            "one too short": lambda ids: [b for _, b in pairwise(ids)],
            "not shifted": lambda ids: ids.copy(),
            "not shifted, last one masked": lambda ids: [*ids[:-1], -100],
            "shifted twice": lambda ids: [ids[i + 2] if i + 2 < len(ids) else -100 for i in range(len(ids))],
            "begins again": lambda ids: [ids[(i + 1) % len(ids)] for i in range(len(ids))],
            "looks back": lambda ids: [-100, *ids[:-1]],
            "0 where nothing follows": lambda ids: [*ids[1:], 0],
            "changes its input": lambda ids: [*ids[1:], -100] if ids.pop(0) else None,
            "raises": lambda ids: [ids[i + 1] for i in range(len(ids))],
        },
    )


def by_input(turns):
    ids = [token for _, turn in turns for token in turn]
    teaches = [role == "assistant" for role, turn in turns for _ in turn]
    return [after if own else -100 for own, after in zip(teaches, [*ids[1:], -100], strict=True)]


def by_mask(turns):
    ids, said, last = [], [], None
    for role, turn in turns:
        ids += turn
        ends_a_turn = last == "assistant"
        said += [ends_a_turn] + [role == "assistant"] * (len(turn) - 1)
        last = role
    return make_targets(ids, "assistant", said=said)


@pytest.mark.parametrize("assistant_targets", [by_input, by_mask])
def test_assistant_targets_is_right(assistant_targets):
    assert_solution_passes(check_assistant_targets, assistant_targets)


def marked(first=False, stop=False, role="assistant", shift=1, none=-100):
    """A mask on tokens: the role's words, its role token, the token that ends its turn; then a shift."""

    def f(turns):
        ids, said, before = [], [], None
        for speaker, turn in turns:
            ids += turn
            said += [(first and speaker == role) or (stop and before == role)]
            said += [speaker == role] * (len(turn) - 1)
            before = speaker
        moved = [*zip(ids, said, strict=True), *[(none, False)] * shift][shift:]
        return [token if is_said else none for token, is_said in moved]

    return f


def input_words_only(turns):
    ids = [token for _, turn in turns for token in turn] + [-100]
    answer = []
    for role, turn in turns:
        for place in range(len(turn)):
            answer.append(ids[len(answer) + 1] if role == "assistant" and place > 0 else -100)
    return answer


def test_assistant_targets_wrong_answers():
    assert_solution_passes(check_assistant_targets, marked(stop=True))
    assert_stub_fails(check_assistant_targets, stub)
    assert_wrong_answers(
        check_assistant_targets,
        {
            "never stops": marked(),
            "first word missing": input_words_only,
            "teaches who speaks next": marked(first=True, stop=True),
            "the role token instead of the stop": marked(first=True),
            "not shifted": marked(shift=0),
            "everything teaches": lambda turns: [*[t for _, turn in turns for t in turn][1:], -100],
            "teaches the user's words": marked(stop=True, role="user"),
            "leaves the others out": lambda turns: [
                *[t for role, turn in turns if role == "assistant" for t in turn][1:],
                -100,
            ],
            "0 instead of -100": marked(stop=True, none=0),
            "wrong type": lambda turns: dict(turns),
        },
    )


def test_the_assistants_tokens_unshifted_are_named_with_and_without_the_role_token():
    def by_role(turns):
        owners = [role for role, turn in turns for _ in turn]
        ids = [token for _, turn in turns for token in turn]
        return [token if owner == "assistant" else -100 for token, owner in zip(ids, owners, strict=True)]

    result = check_assistant_targets.run(by_role)
    assert result.mistake == "not shifted"
    assert "shift the whole conversation first" in result.message


def rebuilt(ids, targets, lengths):
    right, start = [], 0
    for n in lengths:
        right += [*ids[start + 1 : start + n], -100]
        start += n
    right += [-100] * (len(ids) - start)
    return [i for i, t in enumerate(targets) if t not in (-100, right[i])]


def with_numpy(ids, targets, lengths):
    owner = np.repeat(np.arange(len(lengths) + 1), [*lengths, len(ids) - sum(lengths)])
    follows = (np.diff(owner, append=-1) == 0) & (owner < len(lengths))
    right = np.where(follows, np.append(ids[1:], -100), -100)
    return np.flatnonzero((np.array(targets) != -100) & (np.array(targets) != right))


@pytest.mark.parametrize("wrong_positions", [rebuilt, with_numpy])
def test_wrong_positions_is_right(wrong_positions):
    assert_solution_passes(check_wrong_positions, wrong_positions)


def over_the_end(ids, targets, lengths):
    return [i for i, t in enumerate(targets) if ids[i + 1] != t != -100]


def test_wrong_positions_wrong_answers():
    ends = lambda lengths: {int(end) - 1 for end in np.cumsum(lengths)}  # noqa: E731
    assert_stub_fails(check_wrong_positions, stub)
    assert_wrong_answers(
        check_wrong_positions,
        {
            "trusts the row": lambda ids, targets, lengths: [
                i for i, t in enumerate(targets) if t != -100 and [*ids, -1][i + 1] != t
            ],
            "forgets padding": lambda ids, targets, lengths: [
                i for i in rebuilt(ids, targets, lengths) if i < sum(lengths)
            ],
            "looks inside only": lambda ids, targets, lengths: [
                i for i in rebuilt(ids, targets, lengths) if i < sum(lengths) and i not in ends(lengths)
            ],
            "looks at the ends only": lambda ids, targets, lengths: [
                i for i, t in enumerate(targets) if t != -100 and (i in ends(lengths) or i >= sum(lengths))
            ],
            "takes a mask for a mistake": lambda ids, targets, lengths: [
                i
                for i, t in enumerate(targets)
                if t != (ids[i + 1] if i + 1 < sum(lengths) and i not in ends(lengths) else -100)
            ],
            "counts them": lambda ids, targets, lengths: len(rebuilt(ids, targets, lengths)),
            "yes or no for each": lambda ids, targets, lengths: [
                i in rebuilt(ids, targets, lengths) for i in range(len(ids))
            ],
            "runs over the end of the row": over_the_end,
        },
    )
