"""The check must name each mistake, and only that one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import Batch, PackingPlan, check_targets, chunk_fixed, make_targets, pack_collate, pad_collate

# The four documents, each token another id.
DOCUMENTS = [[10, 11, 12, 13], [20, 21], [30, 31, 32], [40, 41, 42, 43, 44, 45, 46]]
LENGTHS = [len(document) for document in DOCUMENTS]
PAD = 9
PADDED = pad_collate(DOCUMENTS, pad_id=PAD)
PLAN = PackingPlan.from_bins([[0, 1, 2], [3]], LENGTHS, 10)
PACKED = pack_collate(PLAN, DOCUMENTS, pad_id=PAD)


def with_targets(batch: Batch, targets: torch.Tensor) -> Batch:
    return replace(batch, targets=targets, n_target_tokens=int((targets != -100).sum()))


def shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    """Each row moved left, -100 behind it: what people write who shift a finished batch."""
    result = torch.full_like(values, -100)
    result[:, : values.shape[1] - by] = values[:, by:]
    return result


def padding_of(batch: Batch) -> torch.Tensor:
    return (batch.sequence < 0)[batch.boundaries.seq_idx.long()].view_as(batch.input_ids)


def test_case_23_right_targets_have_no_finding() -> None:
    for batch in (PADDED, PACKED):
        report = check_targets(batch)
        assert (report.ok, report.counts, report.notes) == (True, {}, ())
        assert (report.n_tokens, report.n_targets, report.n_batches) == (16, 12, 1)
    assert check_targets(PACKED).n_padding == 4
    assert str(check_targets(PACKED)) == "1 batch, 16 tokens, 12 targets (75% of the tokens)\n- nothing found"


def test_the_report_fits_into_a_notebook_and_says_which_of_several_batches() -> None:
    wrong = with_targets(PADDED, shifted(PADDED.targets, 1))
    several = check_targets([wrong, PACKED])
    assert "first at batch 0, row 0, position 0" in several.findings[0]
    assert "first at batch 1, row 0, position 0" in check_targets([PACKED, wrong]).findings[0]
    assert "first at row 0, position 0" in check_targets(wrong).findings[0]
    lines = str(several).splitlines()
    assert max(map(len, lines)) <= 76
    assert lines[2].startswith("  ")


def test_case_23_targets_filled_with_pad_id() -> None:
    report = check_targets(with_targets(PACKED, torch.where(padding_of(PACKED), PAD, PACKED.targets)))
    assert report.counts == {"padding as target": 4}
    assert report.findings[0].startswith(
        "padding as target: 4 targets on padding, all of them 9 (the pad id); the first at row 0, position 9 (padding)"
    )


def test_case_23_shifted_after_padding() -> None:
    # What a document's last token must predict is padding, too.
    batch = pad_collate(DOCUMENTS[:3], pad_id=PAD)
    report = check_targets(with_targets(batch, shifted(batch.input_ids, 1)))
    assert report.counts == {"padding as target": 3}
    assert report.findings[0].startswith(
        "padding as target: 1 target on padding and 2 last tokens of a sequence with padding as target, all of them 9 "
        "(the pad id); the first at row 1, position 1 (sequence 1)"
    )


@pytest.mark.parametrize("batch", [PADDED, PACKED], ids=["padded", "packed"])
@pytest.mark.parametrize("cut", [None, [False] * 7], ids=["", "cut"])
def test_case_23_every_position_without_target_filled(batch: Batch, cut: list[bool] | None) -> None:
    # A full row's last token and one before a neighbour in the row get the pad id, too.
    empty = int((batch.targets == -100).sum())
    # A Batch refuses to say that it has more targets than tokens, so its count stays behind.
    filled = replace(batch, targets=torch.where(batch.targets == -100, PAD, batch.targets))
    flags = None if cut is None else cut[: batch.boundaries.n_sequences]
    for options in ({}, {"pad_id": PAD}):
        report = check_targets(filled, cut=flags, **options)
        assert report.counts == {"padding as target": empty}
        assert report.findings[0].startswith(
            f"padding as target: {empty - 4} targets on padding and 4 last tokens of a sequence with padding as "
            "target, all of them 9 (the pad id); the first at row 0, position 3 (sequence 0)"
        )
    assert report.n_targets == batch.targets.numel()
    assert ("more targets than tokens" in str(report)) is (report.n_targets > report.n_tokens)


def test_a_last_token_with_the_pad_id_as_target_counts_only_beside_other_signs() -> None:
    # A full row of a cut sequence whose true next token is 0, the pad id; a right batch with padding beside it.
    cut = pack_collate(chunk_fixed([4], 3), [[5, 6, 7, 0]], pad_id=0, rows=[0])
    padded = pad_collate([[5, 6, 7], [5]], pad_id=0)
    assert cut.targets.tolist() == [[6, 7, 0]]
    assert check_targets([cut, padded]).ok
    on_padding = with_targets(padded, torch.where(padding_of(padded), 0, padded.targets))
    assert check_targets([cut, on_padding]).counts == {"padding as target": 3}
    assert "the first at batch 0, row 0, position 2 (sequence 0)" in check_targets([cut, on_padding]).findings[0]


def test_one_padding_position_a_row_is_found_at_the_last_token() -> None:
    batch = pad_collate([[1, 2, 3], [4, 5]], pad_id=0)
    report = check_targets(with_targets(batch, shifted(batch.input_ids, 1)))
    assert report.counts == {"padding as target": 1}
    assert "row 1, position 1 (sequence 1)" in report.findings[0]


def test_the_pad_id_is_named_where_it_is_known() -> None:
    wrong = with_targets(PACKED, torch.where(padding_of(PACKED), 5, PACKED.targets))
    assert "all of them 5;" in check_targets(wrong).findings[0]
    assert "all of them 5 (the pad id);" in check_targets(wrong, pad_id=5).findings[0]


def test_case_23_shifted_twice() -> None:
    report = check_targets(with_targets(PADDED, shifted(PADDED.targets, 1)))
    assert report.counts == {"shifted twice": 8}
    assert report.findings[0].startswith(
        "shifted twice: 8 of 8 targets inside sequences are not the next token but the one after it; "
        "the first at row 0, position 0 (sequence 0)"
    )
    assert "to_huggingface" in report.findings[0]
    # Taken from the full row: the neighbour's first token is one of the wrong targets.
    plan = PackingPlan.from_bins([[0, 1, 2, 3]], LENGTHS, 16)
    full = pack_collate(plan, DOCUMENTS, pad_id=PAD)
    assert check_targets(with_targets(full, shifted(full.input_ids, 2))).counts == {"shifted twice": 11}


def test_case_23_not_shifted() -> None:
    report = check_targets(with_targets(PADDED, torch.where(padding_of(PADDED), -100, PADDED.input_ids)))
    assert report.counts == {"not shifted": 12}
    assert "row 0, position 0 (sequence 0)" in report.findings[0]


def test_targets_of_other_sequences() -> None:
    report = check_targets(pad_collate(DOCUMENTS[:1], pad_id=PAD, targets=[[21, 22, 23, -100]]))
    assert report.counts == {"not the next token": 3}


def test_case_23_everything_masked() -> None:
    nothing = with_targets(PADDED, torch.full_like(PADDED.targets, -100))
    report = check_targets(nothing)
    assert report.counts == {"all masked": 16}
    assert report.findings[0].startswith("all masked: none of 16 tokens has a target")
    assert "nan" not in str(report).lower()
    assert report.notes == ()
    # Beside a batch that teaches, it is a note.
    report = check_targets([PADDED, nothing])
    assert report.ok
    assert report.notes[0].startswith("4 of 8 sequences teach nothing")
    assert "batch 1, row 0, position 0 (sequence 0)" in report.notes[0]
    assert report.notes[1] == "1 batch without a target, first batch 1"


def test_nearly_everything_masked() -> None:
    batch = pad_collate([list(range(200))], pad_id=0, targets=[make_targets(range(200), "prompt", prompt_length=199)])
    report = check_targets(batch)
    assert report.counts == {"nearly all masked": 199}
    assert "only 1 of 200 tokens have a target" in report.findings[0]
    assert check_targets(batch, min_target_share=0.005).ok


def test_case_23_a_boundary_left_unmasked() -> None:
    # Documents laid end to end, shifted, masked on padding only.
    targets = torch.where(
        padding_of(PACKED) | shifted(padding_of(PACKED).long(), 1).eq(1), -100, shifted(PACKED.input_ids, 1)
    )
    report = check_targets(with_targets(PACKED, targets))
    assert report.counts == {"unmasked boundary": 2}
    assert report.findings[0].startswith(
        "unmasked boundary: 2 last tokens of a sequence must predict the first of another (2 boundaries inside rows); "
        "the first at row 0, position 3 (sequence 0)"
    )


def test_case_1_and_7_one_wrong_end_is_enough() -> None:
    plan = PackingPlan.from_bins([[0, 1]], [3, 2], 8)
    batch = pack_collate(plan, [[1, 2, 3], [4, 5]], pad_id=9)
    targets = batch.targets.clone()
    targets[0, 2] = 4
    assert check_targets(with_targets(batch, targets)).counts == {"unmasked boundary": 1}
    targets = batch.targets.clone()
    targets[0, 7] = 9
    assert check_targets(with_targets(batch, targets)).counts == {"padding as target": 1}


def test_case_20_ids_like_the_pad_id_are_no_padding() -> None:
    sequences = [[0, 0, 3, 0], [0, 0], [0]]
    plan = PackingPlan.from_bins([[0, 1, 2]], [4, 2, 1], 9)
    for batch in (pad_collate(sequences, pad_id=0), pack_collate(plan, sequences, pad_id=0)):
        assert check_targets(batch, pad_id=0).ok
    assert check_targets(pad_collate([[PAD, PAD, 3], [4, PAD, PAD, 5]], pad_id=PAD), pad_id=PAD).ok
    # The right next token of a piece that was cut is 0, and padding (also 0) follows it: most ends show nothing.
    cut = pack_collate(
        chunk_fixed([3, 4, 4], 3),
        [[5, 6, 7], [5, 6, 7, 0], [5, 6, 7, 8]],
        pad_id=0,
        rows=[0, 1, 3],
        pad_to_multiple_of=4,
    )
    assert check_targets(cut).ok


@pytest.mark.parametrize("batch", [PADDED, PACKED], ids=["padded", "packed"])
def test_case_19_rounded_rows(batch: Batch) -> None:
    rounded = pack_collate(PLAN, DOCUMENTS, pad_id=PAD, pad_to_multiple_of=64)
    assert check_targets(rounded).ok
    assert check_targets(rounded).n_padding == 128 - 16


def test_case_32_an_all_masked_sequence_is_a_note_not_padding() -> None:
    targets = [make_targets(ids) for ids in DOCUMENTS]
    targets[2] = make_targets(DOCUMENTS[2], "assistant", said=[False] * 3)
    report = check_targets(pad_collate(DOCUMENTS, pad_id=PAD, targets=targets))
    assert report.ok
    assert (report.n_tokens, report.n_targets) == (16, 10)
    assert report.notes == (
        "1 of 4 sequences teach nothing (no target, but real tokens, not padding); the first at row 2, position 0 "
        "(sequence 2)",
    )
    # One token alone has nothing to predict: that is no mask.
    assert check_targets(pad_collate([[1, 2], [3]], pad_id=PAD)).notes == ()


@pytest.mark.parametrize(
    "sequences",
    [[[5, 5, 5, 5]], [[5, 6, 5, 6, 5, 6]], [[5, 5, 6, 6, 5, 5]], [[5, 5], [5, 5], [5]]],
    ids=["one token", "two in turn", "pairs", "the same everywhere"],
)
def test_repeated_tokens_are_no_shift(sequences: list[list[int]]) -> None:
    lengths = [len(ids) for ids in sequences]
    plan = PackingPlan.from_bins([list(range(len(sequences)))], lengths, sum(lengths) + 2)
    for batch in (pad_collate(sequences, pad_id=5), pack_collate(plan, sequences, pad_id=5)):
        assert check_targets(batch).ok


def test_two_tokens_in_turn_still_tell_the_two_shifts_apart() -> None:
    batch = pad_collate([[5, 6, 5, 6, 5, 6]], pad_id=0)
    assert list(check_targets(with_targets(batch, batch.input_ids)).counts) == ["not shifted"]
    assert list(check_targets(with_targets(batch, shifted(batch.input_ids, 2))).counts) == ["shifted twice"]


def test_a_cut_inside_a_row_is_legal_where_the_rest_is_in_the_batch() -> None:
    # Piece 0:2 of sequence 0, then its rest; the second row starts with the rest of sequence 1.
    plan = PackingPlan(
        capacity=4,
        offsets=torch.tensor([0, 2, 4, 5]).numpy(),
        sequence=torch.tensor([0, 0, 1, 2, 1]).numpy(),
        start=torch.tensor([0, 2, 0, 0, 2], dtype=torch.int32).numpy(),
        stop=torch.tensor([2, 4, 2, 2, 3], dtype=torch.int32).numpy(),
    )
    sequences = [[1, 2, 3, 4], [5, 6, 7], [7, 8]]
    batch = pack_collate(plan, sequences, pad_id=0)
    assert batch.targets.tolist() == [[2, 3, 4, -100], [6, 7, 8, -100], [-100] * 4]
    assert check_targets(batch).ok
    # Without the rest, sequence 1's true next token looks like its neighbour's first: only cut tells.
    alone = pack_collate(plan, sequences, pad_id=0, rows=[0, 1])
    assert check_targets(alone).counts == {"unmasked boundary": 1}
    assert check_targets(alone, cut=[True, False, True, False]).ok
    assert check_targets([batch, alone], cut=[[True, False, True, False, False, False], [True, False, True, False]]).ok


def test_a_cut_before_padding_is_legal_where_the_rest_is_in_the_batch() -> None:
    # The rest begins with id 0, and padding, also 0, follows each piece.
    batch = pack_collate(chunk_fixed([7], 3), [[5, 6, 7, 0, 6, 7, 0]], pad_id=0, pad_to_multiple_of=4)
    assert batch.targets.tolist() == [[6, 7, 0, -100], [6, 7, 0, -100], [-100] * 4]
    assert check_targets(batch).ok


def test_a_neighbour_that_begins_alike_is_no_rest() -> None:
    batch = pack_collate(PackingPlan.from_bins([[0, 1]], [2, 2], 4), [[5, 6], [5, 7]], pad_id=0)
    assert check_targets(with_targets(batch, shifted(batch.input_ids, 1))).counts == {"unmasked boundary": 1}


def test_cut_makes_the_end_of_a_row_certain() -> None:
    batch = pack_collate(chunk_fixed([6, 3], 3), [[1, 2, 3, 4, 5, 6], [7, 8, 9]], pad_id=0, rows=[0, 2])
    assert batch.targets.tolist() == [[2, 3, 4], [8, 9, -100]]
    assert check_targets(batch, cut=[True, False]).ok
    assert check_targets(batch, cut=torch.tensor([False, False])).counts == {"unmasked boundary": 1}
    padded = pad_collate([[1, 2, 3], [4, 5]], pad_id=0, targets=[[2, 3, -100], [5, 0]])
    assert check_targets(padded, cut=[False] * 3).counts == {"padding as target": 1}


def test_a_wrong_count_is_found() -> None:
    report = check_targets(replace(PADDED, n_target_tokens=16))
    assert report.counts == {"miscounted": 1}
    assert "batch 0 says n_target_tokens=16 and holds 12 targets" in report.findings[0]


def test_a_wrong_count_is_found_beside_another_mistake() -> None:
    report = check_targets(replace(PADDED, targets=shifted(PADDED.targets, 1)))
    assert report.counts == {"shifted twice": 8, "miscounted": 1}


def test_batches_are_counted_together() -> None:
    report = check_targets(iter([PADDED, PACKED, with_targets(PADDED, shifted(PADDED.targets, 1))]))
    assert (report.n_batches, report.n_tokens) == (3, 48)
    assert report.counts == {"shifted twice": 8}
    assert "8 of 32 targets" in report.findings[0]
    assert "batch 2, row 0, position 0 (sequence 0)" in report.findings[0]


def test_empty_batches_and_sequences() -> None:
    for batch in (pad_collate([], pad_id=0), pad_collate([[]], pad_id=0), pad_collate([[], [5, 6]], pad_id=0)):
        assert check_targets(batch).ok
    plan = PackingPlan.from_bins([[0, 1, 2]], [2, 0, 2], 4)
    batch = pack_collate(plan, [[1, 2], [], [3, 4]], pad_id=0)
    assert check_targets(batch).ok
    assert check_targets(with_targets(batch, shifted(batch.input_ids, 1))).counts == {"unmasked boundary": 1}


def test_isolate_false_has_right_targets() -> None:
    assert check_targets(pack_collate(PLAN, DOCUMENTS, pad_id=PAD, isolate=False)).ok


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=6), st.integers(1, 9), st.booleans())
@settings(max_examples=150, deadline=None)
def test_right_targets_are_never_accused(sequences: list[list[int]], capacity: int, across: bool) -> None:
    plan = chunk_fixed([len(ids) for ids in sequences], capacity, across=across)
    targets = [make_targets(ids) for ids in sequences]
    for batch in (
        pad_collate(sequences, pad_id=1, targets=targets),
        pack_collate(plan, sequences, pad_id=1, targets=targets),
    ):
        assert set(check_targets(batch, min_target_share=0).counts) <= {"all masked"}


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=6), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_with_cut_even_chance_accuses_nobody(sequences: list[list[int]], capacity: int, multiple: int) -> None:
    lengths = [len(ids) for ids in sequences]
    plan = chunk_fixed(lengths, capacity, across=True)
    batch = pack_collate(plan, sequences, pad_id=1, pad_to_multiple_of=multiple)
    goes_on = iter((plan.stop < [lengths[s] for s in plan.sequence]).tolist())
    cut = [s >= 0 and next(goes_on) for s in batch.sequence.tolist()]
    assert set(check_targets(batch, cut=cut, min_target_share=0).counts) <= {"all masked"}
    unmasked = batch.targets.clone()
    open_ends = [
        stop - 1
        for stop, start, s, is_cut in zip(
            batch.boundaries.cu_seqlens.tolist()[1:],
            batch.boundaries.cu_seqlens.tolist(),
            batch.sequence.tolist(),
            cut,
            strict=False,
        )
        if s >= 0 and not is_cut and stop > start
    ]
    unmasked.view(-1)[open_ends] = 4
    report = check_targets(with_targets(batch, unmasked), cut=cut, min_target_share=0)
    assert report.counts.get("unmasked boundary", 0) == len(open_ends)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batches": None}, "batches must be a Batch or a list of them, got None"),
        ({"batches": PADDED.targets}, "batches must be a Batch or a list of them, got tensor"),
        ({"batches": []}, "batches is empty"),
        ({"batches": [PADDED, 5]}, r"batches\[1\] must be a Batch, got 5"),
        ({"pad_id": -1}, "pad_id must be at least 0"),
        ({"pad_id": 1.5}, "pad_id must be an integer"),
        ({"min_target_share": 5}, "min_target_share must lie between 0 and 1"),
        ({"cut": [True]}, r"cut must be bool \[7\], one entry a sequence, got bool \[1\]"),
        ({"cut": [0] * 7}, r"cut must be bool \[7\]"),
        ({"batches": [PADDED], "cut": [True] * 7}, "cut must be a list of 1 masks, one a batch"),
        ({"batches": [PADDED], "cut": [[True]]}, r"cut\[0\] must be bool \[7\]"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_targets(**({"batches": PADDED} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, 2], ids=["not shifted", "shifted twice"])
def test_a_shift_where_sequences_are_cut_is_no_boundary(wrong: int) -> None:
    # A piece's last token predicts its own sequence's token, which is sometimes the neighbour's first by chance.
    documents = [[(number + i * i) % 3 for i in range(5 + number)] for number in range(12)]
    targets = [[*document[wrong:], -100, -100][: len(document)] for document in documents]
    plan = chunk_fixed([len(document) for document in documents], 8, across=True)
    report = check_targets(pack_collate(plan, documents, pad_id=PAD, targets=targets, rows=list(range(0, 8, 2))))
    assert list(report.counts) == [{0: "not shifted", 2: "shifted twice"}[wrong]]
