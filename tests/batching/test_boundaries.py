from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import Boundaries

lengths_lists = st.lists(st.integers(0, 9), max_size=12)


def test_case_4_positions_and_cu_seqlens() -> None:
    made = Boundaries.from_lengths([3, 5, 6, 2])
    assert made.cu_seqlens.tolist() == [0, 3, 8, 14, 16]
    assert made.position_indices.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0, 1]
    assert made.seq_idx.tolist() == [0] * 3 + [1] * 5 + [2] * 6 + [3] * 2
    assert made.order.tolist() == [2, 1, 0, 3]
    assert (made.n_tokens, made.n_sequences, made.max_seqlen) == (16, 4, 6)
    assert made.lengths.tolist() == [3, 5, 6, 2]
    for tensor in (made.cu_seqlens, made.order, made.position_indices, made.seq_idx, made.lengths):
        assert tensor.dtype == torch.int32


def test_padding_comes_last_in_the_order() -> None:
    lengths, alternate = [2, 9, 4, 7], [False, True, False, True]
    assert Boundaries.from_lengths(lengths, padding=2).order.tolist() == [1, 0, 3, 2]
    assert Boundaries.from_lengths(lengths, padding=alternate).order.tolist() == [2, 0, 1, 3]
    assert Boundaries.from_lengths(lengths, padding=np.array(alternate)).order.tolist() == [2, 0, 1, 3]
    assert Boundaries.from_lengths(lengths, padding=alternate).max_seqlen == 9


@given(lengths_lists)
@settings(max_examples=60, deadline=None)
def test_the_order_is_longest_first_and_stable(lengths: list[int]) -> None:
    order = Boundaries.from_lengths(lengths).order.tolist()
    assert order == sorted(range(len(lengths)), key=lambda s: (-lengths[s], s))


@given(lengths_lists)
@settings(max_examples=60, deadline=None)
def test_round_trips(lengths: list[int]) -> None:
    made = Boundaries.from_lengths(lengths)
    same = Boundaries.from_cu_seqlens(made.cu_seqlens, n_tokens=sum(lengths))
    assert same.lengths.tolist() == lengths
    assert same.order.tolist() == made.order.tolist()
    # An empty sequence has no token, so neither of these forms can show it.
    visible = [n for n in lengths if n]
    for back in (Boundaries.from_position_indices(made.position_indices), Boundaries.from_seq_idx(made.seq_idx)):
        assert back.lengths.tolist() == visible
        assert back.max_seqlen == max(visible, default=0)
        assert back.n_tokens == sum(lengths)


def test_case_8_a_thousand_sequences_of_one_token() -> None:
    made = Boundaries.from_lengths([1] * 1000)
    assert made.n_sequences == made.n_tokens == 1000
    assert not made.position_indices.any()
    assert Boundaries.from_position_indices(torch.zeros(1000, dtype=torch.int32)).n_sequences == 1000


def test_case_10_nothing_and_an_empty_sequence() -> None:
    nothing = Boundaries.from_lengths([])
    assert (nothing.cu_seqlens.tolist(), nothing.n_tokens, nothing.n_sequences, nothing.max_seqlen) == ([0], 0, 0, 0)
    assert nothing.position_indices.shape == (0,)
    assert Boundaries.from_lengths([0]).n_sequences == 1
    assert Boundaries.from_position_indices([]).n_sequences == 0
    assert Boundaries.from_seq_idx([]).n_sequences == 0
    assert Boundaries.from_cu_seqlens([0]).n_sequences == 0


@pytest.mark.parametrize(
    ("positions", "place", "value"),
    [
        ([1, 2, 0], r"\[0\]", "1"),
        ([0, 1, 3], r"\[2\]", "3"),
        ([0, 1, 1], r"\[2\]", "1"),
        ([0, -1], r"\[1\]", "-1"),
        ([[0, 1, 2], [3, 4, 5]], r"\[1, 0\]", "3"),
        (torch.tensor([0, 1, 2, 3, 7, 8]), r"\[4\]", "7"),
    ],
)
def test_case_5_bad_position_indices(positions: object, place: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"position_indices{place} is {value}, expected 0"):
        Boundaries.from_position_indices(positions)  # type: ignore[arg-type]


def test_case_5_good_position_indices_in_other_forms() -> None:
    rows = Boundaries.from_position_indices(torch.tensor([[0, 1, 2], [0, 0, 1]]))
    assert rows.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert Boundaries.from_position_indices(np.array([0, 1, 0], np.int32)).cu_seqlens.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("cu_seqlens", "message"),
    [
        ([0, 5, 3], r"cu_seqlens\[2\] is 3, below the 5"),
        ([1, 5], r"cu_seqlens\[0\] is 1, expected 0"),
        ([], r"cu_seqlens is empty"),
        ([0.0, 5.0], r"cu_seqlens must hold integers"),
        ([0, float("nan"), 5], r"cu_seqlens\[1\] is nan"),
        (torch.tensor([0.0, 5.0]), r"must be int32, got torch.float32.*\.to\(torch\.int32\)"),
        (torch.tensor([0, 5]), r"must be int32, got torch.int64"),
        (np.array([0, 5]), r"must be int32, got int64"),
        (torch.zeros(1, 2, dtype=torch.int32), r"one dimension, got shape \(1, 2\)"),
        ([0, 2**31], r"cu_seqlens\[1\] is 2147483648, above the int32 limit"),
    ],
)
def test_case_6_bad_cu_seqlens(cu_seqlens: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Boundaries.from_cu_seqlens(cu_seqlens)  # type: ignore[arg-type]


def test_case_6_the_last_entry_and_empty_sequences() -> None:
    assert Boundaries.from_cu_seqlens([0, 3, 3, 5], n_tokens=5).lengths.tolist() == [3, 0, 2]
    with pytest.raises(ValueError, match=r"cu_seqlens\[1\] is 5, but there are 6 tokens"):
        Boundaries.from_cu_seqlens([0, 5], n_tokens=6)


@pytest.mark.parametrize(
    ("seq_idx", "message"),
    [
        ([0, 1, 0], r"seq_idx\[2\] is 0 and follows 1"),
        ([0, -1], r"seq_idx\[1\] is -1 and is negative"),
        ([-1, 0], r"seq_idx\[0\] is -1 and is negative"),
        ([[0, 1], [1, 0]], r"seq_idx\[1, 1\] is 0 and follows 1"),
    ],
)
def test_bad_seq_idx(seq_idx: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Boundaries.from_seq_idx(seq_idx)  # type: ignore[arg-type]


@pytest.mark.parametrize("build", [Boundaries.from_seq_idx, Boundaries.from_position_indices])
def test_rows_are_checked_before_their_values(build: Callable[[object], Boundaries]) -> None:
    for bad, message in (
        ([[0], [0, 1]], "rows of equal length"),
        ([[[0]]], r"must be \[T\] or \[B, L\], got shape \(1, 1, 1\)"),
        ([[0, True]], r"got a bool \(\w+\[0\]\[1\] is True\)"),
        ([[0, 0.5]], r"\w+\[0, 1\] is 0\.5"),
        (torch.zeros(2, dtype=torch.int32, device="meta"), "tensor on meta, which has no values"),
    ):
        with pytest.raises(ValueError, match=message):
            build(bad)


def test_rows_of_seq_idx_may_start_over() -> None:
    made = Boundaries.from_seq_idx(torch.tensor([[0, 0, 1], [0, 1, 1]], dtype=torch.int32))
    assert made.lengths.tolist() == [2, 1, 1, 2]
    assert Boundaries.from_seq_idx([[0, 0], [0, 0]]).lengths.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("lengths", "padding", "message"),
    [
        ([3, -1], 0, r"lengths\[1\] is -1"),
        ([3, 1.5], 0, r"lengths must hold integers.*lengths\[1\] is 1\.5"),
        ([[1]], 0, r"lengths must have one dimension"),
        ([True], 0, r"lengths must hold integers"),
        ([True, 3], 0, r"lengths must hold integers, got a bool \(lengths\[0\] is True\)"),
        ([2, np.bool_(True)], 0, r"got a bool \(lengths\[1\]"),
        ([2, torch.tensor(True)], 0, r"got a bool \(lengths\[1\]"),
        ([[1], [1, 2]], 0, r"lengths must be a list.*rows of equal length"),
        ([2, 2**63], 0, r"lengths\[1\] is 9223372036854775808"),
        ([-1, 2**63], 0, r"lengths\[1\] is 9223372036854775808, outside int64"),
        ([2, 2**70], 0, r"lengths\[1\] is 1180591620717411303424, outside int64"),
        (np.array([1, 2**63], np.uint64), 0, r"lengths\[1\] is 9223372036854775808, above the int64 limit"),
        (torch.tensor([1.0, 2.5], dtype=torch.bfloat16), 0, r"got torch.bfloat16 \(lengths\[1\] is 2\.5\)"),
        (torch.tensor([1, 2]).to_sparse(), 0, "lengths must be a plain dense tensor"),
        (np.ma.array([1, 2], mask=[0, 1]), 0, "lengths must be a plain array, got a masked array"),
        (None, 0, "lengths must be a list.*got None"),
        ("12", 0, "lengths must be a list.*got '12'"),
        ([2**31], 0, r"lengths\[0\] is 2147483648.*int32"),
        ([2**30, 2**30], 0, r"add up to 2147483648 tokens.*smaller batches"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), 0, r"must lie on the host, got a tensor on meta"),
        ([1, 2], 3, r"padding is 3, but there are only 2"),
        ([1, 2], [True], r"padding must be bool \[2\]"),
        ([1, 2], [0, 1], r"padding must be bool \[2\]"),
    ],
)
def test_bad_lengths(lengths: object, padding: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Boundaries.from_lengths(lengths, padding=padding)  # type: ignore[arg-type]


def test_the_constructor_checks_values_too() -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    assert Boundaries(ints(0, 2, 5), ints(1, 0), 5, 2, 3).lengths.tolist() == [2, 3]
    bad = [
        ((torch.tensor([0, 2]), ints(0), 2, 1, 2), "cu_seqlens must be an int32 tensor"),
        ((ints(0, 2), torch.zeros(1), 2, 1, 2), "order must be an int32 tensor"),
        ((ints(0, 2), ints(0).to("meta"), 2, 1, 2), "cu_seqlens is on cpu and order on meta"),
        ((ints(0, 2), ints(0), 3, 1, 2), "but there are 3 tokens"),
        ((ints(0, 2), ints(0), None, 1, 2), "n_tokens must be an integer of at least 0, got None"),
        ((ints(0, 2), ints(0), 2, 1.0, 2), "n_sequences must be an integer of at least 0, got 1.0"),
        ((ints(0, 2), ints(0), 2, 1, True), "max_seqlen must be an integer"),
        ((ints(0, 2).to("meta"), ints(0).to("meta"), 2, 1, 2), "cu_seqlens is on meta"),
        ((ints(0, 2), ints(0), 2, 2, 2), "n_sequences is 2"),
        ((ints(0, 2, 4), ints(1, 1), 4, 2, 2), "order must hold each of"),
        ((ints(0, 2), ints(0), 2, 1, 3), "max_seqlen is 3"),
    ]
    for arguments, message in bad:
        with pytest.raises(ValueError, match=message):
            Boundaries(*arguments)


def test_what_was_checked_cannot_change_afterwards() -> None:
    cu, order = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    made = [Boundaries(cu, order, 5, 2, 3), Boundaries.from_cu_seqlens(cu), Boundaries.from_cu_seqlens(cu.numpy())]
    cu[1], order[0] = 4, 7
    for boundaries in made:
        assert boundaries.cu_seqlens.tolist() == [0, 2, 5]
        assert boundaries.order.tolist() == [1, 0]


def test_moving_keeps_the_host_values() -> None:
    made = Boundaries.from_lengths([2, 3]).to("meta")
    assert made.cu_seqlens.device.type == made.order.device.type == "meta"
    assert (made.n_tokens, made.n_sequences, made.max_seqlen) == (5, 2, 3)
    assert Boundaries.from_lengths([2, 3], device="meta").order.device.type == "meta"


def test_a_compiled_function_takes_boundaries() -> None:
    compilations = []

    def counting(graph: torch.fx.GraphModule, _: object) -> object:
        compilations.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=counting)
    def starts(x: torch.Tensor, boundaries: Boundaries) -> torch.Tensor:
        return x[boundaries.cu_seqlens[:-1].long()] * boundaries.cu_seqlens.diff()

    torch.compiler.reset()
    for n in range(2, 12):
        lengths = [1 + (i * n) % 4 for i in range(n)]
        x = torch.arange(sum(lengths), dtype=torch.float32)
        made = Boundaries.from_lengths(lengths)
        assert torch.equal(starts(x, made), x[made.cu_seqlens[:-1].long()] * made.lengths)
    assert len(compilations) <= 2
