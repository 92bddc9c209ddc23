"""Checks for notebook 12: each sequence's share of a step, the loss of a step in pieces, the weights of a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mamba_lab.exercises.checking import Exercise, Mistake, case

Step = Sequence[Sequence[Sequence[Sequence[float]]]]
"""Ranks of micro-batches of sequences of losses, one for each target."""


def _shares(n_targets: list[int], weighting: str) -> list[float]:
    each = [float(n > 0) if weighting == "sequence" else float(n) for n in n_targets]
    return [share / (sum(each) or 1.0) for share in each]


def _shares_counting_all(n_targets: list[int], weighting: str) -> list[float]:
    if weighting == "token":
        return _shares(n_targets, weighting)
    return [1 / len(n_targets) for _ in n_targets]


def _shares_of_one_target(n_targets: list[int], weighting: str) -> list[float]:
    if weighting == "token":
        return _shares(n_targets, weighting)
    each = [1 / n if n else 0.0 for n in n_targets]
    return [share / (sum(each) or 1.0) for share in each]


check_shares = Exercise(
    "Shares of a step",
    reference=_shares,
    cases=[
        case(n_targets=[5], weighting="token"),
        case(n_targets=[3, 1], weighting="token"),
        case(n_targets=[3, 1], weighting="sequence"),
        case(n_targets=[3, 1, 2, 6], weighting="token"),
        case(n_targets=[3, 1, 2, 6], weighting="sequence"),
        case(n_targets=[4, 0, 4], weighting="token"),
        case(n_targets=[4, 0, 6], weighting="sequence"),
        case(n_targets=[0, 0], weighting="token"),
        case(n_targets=[0, 0], weighting="sequence"),
    ],
    mistakes=[
        Mistake(
            "a share for the silent",
            "A sequence without a target has no loss to give: its share is 0, and it does not count among the others.",
            wrong=_shares_counting_all,
        ),
        Mistake(
            "tokens whatever is asked",
            "These are the shares under the token mean. Look at weighting: under the sequence mean each sequence with "
            "a target has the same share.",
            wrong=lambda n_targets, weighting: _shares(n_targets, "token"),
        ),
        Mistake(
            "sequences whatever is asked",
            "All sequences have the same share here. Under the token mean a sequence counts by its targets.",
            wrong=lambda n_targets, weighting: _shares(n_targets, "sequence"),
        ),
        Mistake(
            "weights, not shares",
            "These are the numbers before the division. Shares of one step add up to 1.",
            wrong=lambda n_targets, weighting: [n if weighting == "token" else float(n > 0) for n in n_targets],
        ),
        Mistake(
            "what one target counts",
            "This is the weight of one target. A sequence's share is that of all its targets together.",
            wrong=lambda n_targets, weighting: [
                share / n if n else 0.0 for n, share in zip(n_targets, _shares(n_targets, weighting), strict=True)
            ],
        ),
        Mistake(
            "a shorter list",
            "The silent sequences were left out of the list. Give one share for each sequence: theirs is 0.",
            wrong=lambda n_targets, weighting: _shares([n for n in n_targets if n], weighting),
        ),
        Mistake(
            "shares of nothing",
            "No sequence has a target here, so there is nothing to share out. All shares are 0.",
            wrong=lambda n_targets, weighting: (
                _shares(n_targets, weighting) if any(n_targets) else [1 / len(n_targets) for _ in n_targets]
            ),
        ),
        Mistake(
            "percent",
            "These are percentages. A share is a part of 1.",
            wrong=lambda n_targets, weighting: [100 * share for share in _shares(n_targets, weighting)],
        ),
        Mistake(
            "the short ones louder",
            "Each sequence puts in 1 / its targets here: that is what one of its targets counts. All of them together "
            "make 1.",
            wrong=_shares_of_one_target,
        ),
        Mistake(
            "divides by nothing",
            "Here no sequence has a target. All shares are 0 then: ask before you divide.",
            raises=ZeroDivisionError,
        ),
    ],
    hints=(
        "First what each sequence puts in: its targets, or 1. Then divide by the sum.",
        "A sequence without a target puts in 0 either way.",
    ),
    lesson="The same step, two questions: how well is a target predicted, or how well is a sequence predicted?",
)


def _sequences(step: Step) -> Iterator[Sequence[float]]:
    return (losses for rank in step for micro_batch in rank for losses in micro_batch)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _tokens_of(sequences: Sequence[Sequence[float]]) -> list[float]:
    return [loss for losses in sequences for loss in losses]


def _over(sequences: Sequence[Sequence[float]], weighting: str) -> float:
    heard = [losses for losses in sequences if losses]
    return _mean(_tokens_of(heard)) if weighting == "token" else _mean([_mean(losses) for losses in heard])


def _step_loss(step: Step, weighting: str) -> float:
    return _over([*_sequences(step)], weighting)


def _by_micro_batch(step: Step, weighting: str) -> float:
    return _mean([_over(micro_batch, weighting) for rank in step for micro_batch in rank])


def _by_heard_micro_batch(step: Step, weighting: str) -> float:
    return _mean([_over(m, weighting) for rank in step for m in rank if _tokens_of(m)])


def _by_rank(step: Step, weighting: str) -> float:
    return _mean([_over([losses for m in rank for losses in m], weighting) for rank in step])


def _silent_counted(step: Step, weighting: str) -> float:
    if weighting == "token":
        return _step_loss(step, weighting)
    return _mean([_mean(losses) for losses in _sequences(step)])


def _sum(step: Step, weighting: str) -> float:
    return sum(sum(losses) / (len(losses) if weighting == "sequence" and losses else 1) for losses in _sequences(step))


def _sums_averaged(step: Step, weighting: str) -> float:
    if weighting == "token":
        return _step_loss(step, weighting)
    return _mean([sum(losses) for losses in _sequences(step) if losses])


def _divided_by_targets(step: Step, weighting: str) -> float:
    if weighting == "token":
        return _step_loss(step, weighting)
    return _sum(step, weighting) / max(1, len(_tokens_of([*_sequences(step)])))


check_step_loss = Exercise(
    "The loss of one step",
    reference=_step_loss,
    cases=[
        case(step=[[[[2.0]]]], weighting="token"),
        case(step=[[[[1.0, 3.0]]]], weighting="sequence"),
        case(step=[[[[4.0], [1.0, 1.0, 1.0]], [[2.0, 2.0]], [[]]]], weighting="token"),
        case(step=[[[[4.0], [1.0, 1.0, 1.0]], [[2.0, 2.0]], [[]]]], weighting="sequence"),
        case(step=[[[[5.0]]], [[[1.0, 2.0]], [[3.0]]]], weighting="token"),
        case(step=[[[[6.0], []]], [[[1.0, 2.0]], [[]]]], weighting="token"),
        case(step=[[[[6.0], []]], [[[1.0, 2.0], [3.0]], [[]]]], weighting="sequence"),
        case(step=[[[[]]]], weighting="token"),
        case(step=[[[[]]]], weighting="sequence"),
    ],
    mistakes=[
        Mistake(
            "a mean of means",
            "Each micro-batch was divided by its own count, and the means were averaged. A micro-batch with one target "
            "then counts as much as one with nine.",
            wrong=_by_micro_batch,
        ),
        Mistake(
            "a mean of means, the silent left out",
            "Micro-batches without a target are left out: good. But the others still count the same, however many "
            "targets they have.",
            wrong=_by_heard_micro_batch,
        ),
        Mistake(
            "each rank by itself",
            "Inside a rank all is added up before the division: right. Between ranks there is a mean of means again.",
            wrong=_by_rank,
        ),
        Mistake(
            "a sequence that says nothing",
            "A sequence without a target counts here as one with loss 0. It has no mean: leave it out of the count.",
            wrong=_silent_counted,
        ),
        Mistake(
            "tokens whatever is asked",
            "This is the token mean. For the sequence mean every sequence is averaged by itself first.",
            wrong=lambda step, weighting: _step_loss(step, "token"),
        ),
        Mistake(
            "sequences whatever is asked",
            "This is the sequence mean. For the token mean all losses go into one sum.",
            wrong=lambda step, weighting: _step_loss(step, "sequence"),
        ),
        Mistake(
            "not divided",
            "The sum is right. What is missing is the one division at the end.",
            wrong=_sum,
        ),
        Mistake(
            "sums of the sequences",
            "Under the sequence mean each sequence is averaged first. Here its losses are only added up, so a long one "
            "still counts more.",
            wrong=_sums_averaged,
        ),
        Mistake(
            "divided by the targets",
            "Each sequence is averaged: right. The sum of these means is then divided by the number of sequences, not "
            "of targets.",
            wrong=_divided_by_targets,
        ),
        Mistake(
            "a loop too few",
            "A step has four levels: ranks, micro-batches, sequences, losses. Is a loop missing?",
            raises=TypeError,
        ),
        Mistake(
            "divides by nothing",
            "A count is 0 here. A sequence without a target is left out; when no sequence is left, the loss is 0.",
            raises=ZeroDivisionError,
        ),
    ],
    hints=(
        "Two numbers run through all loops: the sum of the losses and the sum of what counts. Divide at the very end.",
        "For the sequence mean a loss goes in divided by its sequence's number of targets, and the sequence counts 1.",
    ),
    lesson="Sums add up over micro-batches and ranks; means do not. So divide once, at the end.",
)


def _weights(n_targets: int, cut: int, each: Callable[[int], float]) -> list[list[float]]:
    pieces = [min(cut, n_targets - start) for start in range(0, n_targets, cut)]
    return [[each(n)] * n for n in pieces]


def _weights_of_pieces(n_targets: int, cut: int) -> list[list[float]]:
    return _weights(n_targets, cut, lambda _: 1 / n_targets)


check_weights_of_pieces = Exercise(
    "Weights of a sequence that is cut",
    reference=_weights_of_pieces,
    cases=[
        case(n_targets=4, cut=2),
        case(n_targets=4, cut=4),
        case(n_targets=1, cut=4),
        case(n_targets=5, cut=2),
        case(n_targets=7, cut=3),
        case(n_targets=0, cut=3),
    ],
    mistakes=[
        Mistake(
            "each piece a sequence",
            "Each piece has weight 1 in all, so a sequence that was cut into three counts three times. Divide by the "
            "targets of the whole sequence.",
            wrong=lambda n_targets, cut: _weights(n_targets, cut, lambda n: 1 / n),
        ),
        Mistake(
            "all pieces the same",
            "The pieces share the sequence's weight evenly here, so a target in a short piece counts more. All targets "
            "of one sequence count the same.",
            wrong=lambda n_targets, cut: _weights(n_targets, cut, lambda n: 1 / n / max(1, -(-n_targets // cut))),
        ),
        Mistake(
            "divided by the cut",
            "The capacity says nothing about the sequence. Divide by the number of its targets.",
            wrong=lambda n_targets, cut: _weights(n_targets, cut, lambda _: 1 / cut),
        ),
        Mistake(
            "not divided",
            "Weights of 1 give the token mean: a long sequence counts more than a short one.",
            wrong=lambda n_targets, cut: _weights(n_targets, cut, lambda _: 1.0),
        ),
        Mistake(
            "the last piece filled up",
            "The last piece has as many weights as the cut is long. It holds only what is left of the sequence.",
            wrong=lambda n_targets, cut: [[1 / n_targets] * cut for _ in range(0, n_targets, cut)],
        ),
        Mistake(
            "the rest lost",
            "What is left after the last full piece is a piece, too. Together the weights make 1.",
            wrong=lambda n_targets, cut: [[1 / n_targets] * cut for _ in range(n_targets // cut)],
        ),
        Mistake(
            "one number a piece",
            "This is what each piece counts in all. Give a list for each piece, with one weight for each target.",
            wrong=lambda n_targets, cut: [sum(piece) for piece in _weights_of_pieces(n_targets, cut)],
        ),
        Mistake(
            "an empty piece",
            "A sequence without a target has no piece: the answer is an empty list.",
            wrong=lambda n_targets, cut: _weights_of_pieces(n_targets, cut) or [[]],
        ),
        Mistake(
            "one list",
            "The weights are right. Give a list for each piece.",
            wrong=lambda n_targets, cut: [1 / n_targets] * n_targets if n_targets else [],
        ),
        Mistake(
            "divides by nothing",
            "Without a target there are no pieces and no weights: an empty list.",
            raises=ZeroDivisionError,
        ),
    ],
    hints=(
        "What do the weights of all pieces add up to?",
        "Every target of the sequence has the weight 1 / n_targets, wherever it ends up.",
    ),
    lesson="Weights are made where targets are made: on the whole sequence, before anything is cut.",
)
