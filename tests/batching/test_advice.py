"""The costs of each scheme and the recommended capacity and buffer, on lengths whose answers are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mamba_lab.batching import TokenBudgetSampler, audit_batches, chunk_fixed, pack_best_fit, pack_greedy
from mamba_lab.batching.advice import BUFFERS, documents_cut, recommend, scheme_costs
from mamba_lab.batching.packing import pack_sequential
from mamba_lab.lengths import published_lengths

PUBLISHED = published_lengths(20_000)


def costs(lengths, capacity, **options):
    return {cost.name: cost for cost in scheme_costs(lengths, capacity, **options)}


def test_the_running_example_in_another_order() -> None:
    found = costs([4, 2, 7, 3], 9)
    assert found["padded, 16 at random"].positions == 28
    assert found["sequential packs"].rows == 3
    assert found["greedy, buffer 64"].rows == found["best fit, everything"].rows == 2
    assert found["best fit, everything"].padding_rate == pytest.approx(1 - 16 / 18)
    assert found["fixed chunks, joined"].documents_cut == 1
    assert all(cost.n_tokens == 16 and cost.seconds >= 0 for cost in found.values())


def test_every_scheme_is_what_its_own_function_says() -> None:
    found = costs(PUBLISHED, 2048)
    assert found["fixed chunks, each"].padding_rate == pytest.approx(chunk_fixed(PUBLISHED, 2048).padding_rate)
    for size in BUFFERS:
        plan = pack_greedy(PUBLISHED, 2048, buffer_size=size)
        assert found[f"greedy, buffer {size:,}"].rows == plan.n_bins
    sampler = TokenBudgetSampler(PUBLISHED, 16_384)
    valid = audit_batches(sampler, PUBLISHED).valid_ratio
    assert found["bucketed, token budget"].padding_rate == pytest.approx(1 - valid)
    assert found["padded, 16 at random"].rows == len(PUBLISHED)
    assert found["padded, 16 at random"].positions > found["bucketed, token budget"].positions


def test_a_document_longer_than_the_budget_does_not_stop_the_table() -> None:
    assert costs([20_000, 5], 64)["bucketed, token budget"].positions >= 20_005


def test_cut_documents_are_counted_once_and_dropped_tails_too() -> None:
    lengths = [121, 60, 70, 0]
    assert documents_cut(pack_best_fit(lengths, 60, overflow="split"), lengths) == 2
    assert documents_cut(pack_best_fit(lengths, 60, overflow="truncate"), lengths) == 2
    assert documents_cut(pack_best_fit(lengths, 121), lengths) == 0
    truncated = costs(lengths, 60, overflow="truncate")["sequential packs"]
    assert (truncated.documents_cut, truncated.n_tokens) == (2, 180)


def test_what_packing_refuses_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match=r"lengths\[1\] is 9, above the capacity 8"):
        next(scheme_costs([3, 9], 8, overflow="error"))


def test_the_capacity_is_the_smallest_round_one_that_cuts_under_one_per_cent() -> None:
    assert recommend(PUBLISHED).capacity == 2048
    short = np.arange(1, 200) % 90 + 1
    assert recommend(short).capacity == 96
    # One in a hundred is not fewer than one in a hundred; one in 101 is.
    assert recommend([*[32] * 98, 31, 97]).capacity == 128
    advice = recommend([*[32] * 100, 97])
    assert (advice.capacity, advice.documents_cut) == (64, 1)
    assert "cuts 1 of 101 documents" in advice.reason


def test_the_buffer_is_the_smallest_close_to_best_fit() -> None:
    advice = recommend(PUBLISHED)
    goal = pack_best_fit(PUBLISHED, 2048).padding_rate
    rates = {size: pack_greedy(PUBLISHED, 2048, buffer_size=size).padding_rate for size in BUFFERS}
    assert advice.buffer_size == min(size for size in BUFFERS if rates[size] <= goal + 0.005) == 1024
    assert advice.padding_rate == rates[1024]
    assert "1,024 is the smallest buffer" in advice.reason
    assert recommend(np.full(9000, 64)).buffer_size == 64


def test_the_largest_buffer_is_taken_where_none_is_close() -> None:
    """Short documents in a wide row: even 4,096 of them do not fill many rows."""
    lengths = np.random.default_rng(0).integers(1, 30, 40_000)
    advice = recommend(lengths, capacity=8192)
    assert advice.buffer_size == BUFFERS[-1]
    assert "largest buffer tried" in advice.reason


def test_documents_just_over_half_the_capacity_get_another_capacity() -> None:
    lengths = np.random.default_rng(0).integers(1025, 1060, 3000)
    assert pack_best_fit(lengths, 2048).padding_rate > 0.48
    advice = recommend(lengths)
    assert pack_best_fit(lengths, advice.capacity).padding_rate < 0.03
    assert "fit together badly" in advice.reason
    assert advice.documents_cut == 0
    assert recommend([1040] * 3000).capacity == 2112  # the smallest that is good, though larger ones waste less


def test_a_given_capacity_is_kept_and_split_documents_are_counted() -> None:
    advice = recommend([3000, 100, 100, 4000], capacity=1000)
    assert (advice.capacity, advice.documents_cut, advice.overflow) == (1000, 2, "split")
    assert "were given" in advice.reason


def test_savings_compare_positions() -> None:
    advice = recommend(PUBLISHED)
    found = costs(PUBLISHED, 2048)
    positions = advice.rows * 2048
    assert advice.saved_against_padding == pytest.approx(1 - positions / found["padded, 16 at random"].positions)
    sequential = pack_sequential(PUBLISHED, 2048).n_bins * 2048
    assert advice.saved_against_sequential == pytest.approx(1 - positions / sequential)
    assert advice.plan(PUBLISHED).n_bins == advice.rows
    assert str(advice).startswith("capacity 2,048, buffer 1,024: ")
    assert max(map(len, str(advice).splitlines())) <= 76


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_tokens_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="no tokens"):
        recommend(lengths)
    with pytest.raises(ValueError, match="no tokens"):
        next(scheme_costs(lengths, 8))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        recommend([3], capacity=0)
    with pytest.raises(ValueError, match=r"lengths\[1\] is -1"):
        recommend([3, -1])
    with pytest.raises(ValueError, match="overflow must be one of"):
        next(scheme_costs([3], 8, overflow="cut"))


def test_truncation_s_figures_are_those_of_its_plan() -> None:
    lengths = [9] * 50 + [100]
    advice = recommend(lengths, capacity=64, overflow="truncate")
    plan = pack_greedy(lengths, 64, buffer_size=64, overflow="truncate")
    assert (advice.rows, advice.dropped, advice.documents_cut) == (plan.n_bins, 36, 1)
    assert advice.padding_rate == plan.padding_rate == advice.plan(lengths).padding_rate
    assert f"{plan.n_bins} rows, {plan.padding_rate:.1%} padding, 36 tokens dropped." in str(advice)
    assert recommend(lengths, capacity=64).dropped == 0
    assert "dropped" not in str(recommend(lengths, capacity=64))
    # Nothing may be cut: the capacity holds all.
    assert recommend([16] * 500 + [100]).capacity == 64
    assert recommend([16] * 500 + [100], overflow="error").capacity >= 100
    with pytest.raises(ValueError, match=r"lengths\[50\] is 100, above the capacity 64"):
        recommend(lengths, capacity=64, overflow="error")


def test_one_giant_among_few_documents_does_not_decide() -> None:
    advice = recommend([5_000] + [10] * 99)
    assert (advice.capacity, advice.documents_cut) == (64, 1)
    assert "cuts only the longest document (cuts 1 of 100 documents)" in advice.reason
    # Among very few it may be what matters; and twice as long as the others is no giant.
    assert recommend([5_000] + [10] * 9).capacity == 6144
    assert recommend([1_000] + [500] * 49).documents_cut == 0
    assert recommend([2_000_000] * 2 + [10] * 98).documents_cut == 0


def test_equal_lengths_just_over_a_round_capacity_get_a_finer_one() -> None:
    advice = recommend([65] * 1000)
    assert advice.capacity == 264  # 4 * 65 = 260
    assert advice.padding_rate < 0.02
