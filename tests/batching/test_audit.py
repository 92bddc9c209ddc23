"""The audit must name each mistake, and only that one."""

import pytest

from mamba_lab.batching.audit import audit_batches

LENGTHS = [4, 2, 3, 7]


def names(audit) -> list[str]:
    return [finding.split(":")[0] for finding in audit.findings]


def test_good_batches_have_no_finding() -> None:
    audit = audit_batches([[1, 2], [0], [3]], LENGTHS, max_tokens=7)
    assert audit.ok
    assert (audit.n_batches, audit.largest) == (3, 7)
    assert audit.valid_ratio == pytest.approx(16 / 17)
    assert str(audit) == "3 batches, valid ratio 94%, largest 7 positions\n- nothing found"


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[1, 2], [0]], ["lost"]),
        ([[1, 2], [0], [3], [3]], ["doubled"]),
        ([[0], [1, 2], [3]], []),
    ],
)
def test_each_sample_must_come_once(batches: list[list[int]], expected: list[str]) -> None:
    assert names(audit_batches(batches, LENGTHS)) == expected


def test_the_budget_counts_padded_positions() -> None:
    lengths = [10, 9, 9, 9]
    assert audit_batches([[0, 1, 2, 3]], lengths, max_tokens=40).ok
    audit = audit_batches([[0, 1, 2, 3]], lengths, max_tokens=39)
    assert names(audit) == ["over budget"]
    assert "batch 0 with 40 positions for a budget of 39" in audit.findings[0]


def test_one_long_sample_is_told_from_mixed_lengths() -> None:
    dragged = audit_batches([[0, 1, 2, 3]], [200, 3000, 200, 200])
    assert names(dragged) == ["dragged"]
    assert "sample 1 with 3,000 tokens" in dragged.findings[0]
    mixed = audit_batches([[0, 1, 2, 3]], [100, 400, 1600, 3000])
    assert names(mixed) == ["mixed lengths"]


def test_the_limit_on_the_valid_ratio_is_the_callers() -> None:
    assert names(audit_batches([[0, 1]], [2, 4], min_valid_ratio=0.75)) == []
    assert names(audit_batches([[0, 1]], [2, 4], min_valid_ratio=0.76)) == ["dragged"]


def test_bad_batches_are_refused_with_their_place() -> None:
    with pytest.raises(ValueError, match=r"batches\[1\] is empty"):
        audit_batches([[0], []], LENGTHS)
    with pytest.raises(ValueError, match=r"batches\[0\] names sample 4, but lengths has 4 entries"):
        audit_batches([[4]], LENGTHS)
    with pytest.raises(ValueError, match=r"batches\[0\] names sample -1"):
        audit_batches([[-1]], LENGTHS)


def test_no_batches_and_empty_sequences() -> None:
    assert audit_batches([], []).valid_ratio == 1.0
    assert audit_batches([[0, 1]], [0, 0]).ok


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batches": [[0], [0.9]]}, r"batches\[1\] must hold integers, got float64 \(batches\[1\]\[0\] is 0\.9"),
        ({"batches": [[True]]}, r"batches\[0\] must hold integers"),
        ({"batches": [0, 1]}, r"batches\[0\] must be a list.*got 0"),
        ({"batches": [iter([0])]}, r"batches\[0\] must be a list.*make a list of an iterator"),
        ({"batches": [None]}, r"batches\[0\] must be a list.*got None"),
        ({"batches": None}, "batches must be a list of batches.*got None"),
        ({"lengths": [3.9]}, r"lengths\[0\] is 3\.9"),
        ({"lengths": [-3]}, r"lengths\[0\] is -3"),
        ({"lengths": [float("nan")]}, r"lengths\[0\] is nan"),
        ({"lengths": [2**63]}, r"lengths\[0\] is 9223372036854775808"),
        ({"lengths": None}, "lengths must be a list.*got None"),
        ({"min_valid_ratio": float("nan")}, "min_valid_ratio must lie between 0 and 1, got nan"),
        ({"min_valid_ratio": 80}, "min_valid_ratio must lie between 0 and 1, got 80"),
        ({"max_tokens": -1}, "max_tokens must be at least 1"),
        ({"max_tokens": "a"}, "max_tokens must be an integer of at least 1, got 'a'"),
    ],
)
def test_bad_arguments_are_refused_with_their_place(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit_batches(**({"batches": [[0]], "lengths": [3]} | arguments))
