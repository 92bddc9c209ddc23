from __future__ import annotations

import hashlib
import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mamba_lab.batching import TokenBudgetSampler, pad_collate
from mamba_lab.lengths import published_lengths

ORDERS = ("random", "sorted", "none")


def ranks(lengths: Any, max_tokens: int, world_size: int, **settings: Any) -> list[list[list[int]]]:
    """What every rank gets in an epoch."""
    return [
        list(TokenBudgetSampler(lengths, max_tokens, rank=rank, world_size=world_size, **settings))
        for rank in range(world_size)
    ]


def padded(lengths: np.ndarray, batch: list[int]) -> int:
    return len(batch) * int(lengths[batch].max())


@given(
    st.lists(st.integers(0, 60), max_size=80),
    st.integers(60, 300),
    st.integers(1, 5),
    st.sampled_from(ORDERS),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([1, 3, 8]),
    st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_once_on_one_rank_within_the_limits(
    lengths: list[int], max_tokens: int, world_size: int, order: str, max_padding: float, n_buckets: int, seed: int
) -> None:
    refused = ""
    try:
        made = ranks(
            lengths, max_tokens, world_size, order=order, max_padding=max_padding, n_buckets=n_buckets, seed=seed
        )
    except ValueError as error:
        refused = str(error)
    if refused:
        # Only where it cannot be done: batches cannot be split into more batches than there are samples.
        n = len(lengths)
        told = re.search(r"so (\d+) batches must become (\d+) .* only (\d+) samples", refused)
        if told is None:
            assert 0 < n < world_size
        else:
            batches, needed, samples = map(int, told.groups())
            assert samples == n < needed == -(-batches // world_size) * world_size
        return
    assert len({len(batches) for batches in made}) == 1, "ranks differ in steps"
    flat = [sample for batches in made for batch in batches for sample in batch]
    assert sorted(flat) == list(range(len(lengths)))
    array = np.array(lengths, np.int64)
    for batch in itertools.chain.from_iterable(made):
        assert batch, "an empty batch"
        size = padded(array, batch)
        assert size <= max_tokens
        assert size - array[batch].sum() <= max_padding * size


@pytest.mark.parametrize("order", ORDERS)
def test_case_21_ranks_do_equal_work(order: str) -> None:
    lengths = published_lengths(20_000)
    made = ranks(lengths, 16_384, 8, order=order)
    work = np.array([[padded(lengths, batch) for batch in batches] for batches in made])
    assert work.shape[0] == 8
    total = work.sum(1)
    assert total.max() / total.mean() < 1.02
    # In nearly every step, too: the others wait for the largest.
    assert np.median(work.max(0) / work.mean(0)) < 1.02
    # The budget is used, not just kept.
    assert work.mean() > 0.9 * 16_384


@pytest.mark.parametrize("order", ["random", "none"])
def test_the_ranks_of_a_step_share_a_bucket(order: str) -> None:
    lengths = published_lengths(20_000)
    made = ranks(lengths, 16_384, 8, order=order)
    bucket_of = TokenBudgetSampler(lengths, 16_384).buckets.bucket_of
    steps = [[b for batches in step for b in bucket_of[batches].tolist()] for step in zip(*made, strict=True)]
    assert np.mean([max(step) - min(step) <= 1 for step in steps]) > 0.97
    assert np.mean([max(step) == min(step) for step in steps]) > 0.5


def test_what_is_left_of_a_bucket_joins_the_next() -> None:
    # Two buckets of 5 samples, 4 to a batch: the fifth of the first bucket must not become a batch of its own.
    lengths = [100] * 5 + [101] * 5
    made = list(TokenBudgetSampler(lengths, 404, n_buckets=2, order="none"))
    assert made == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_sorted_batches_have_neighbours_in_length_and_shuffled_steps() -> None:
    lengths = published_lengths(5_000)
    sampler = TokenBudgetSampler(lengths, 16_384, order="sorted")
    made = list(sampler)
    spans = sorted((int(lengths[batch].min()), int(lengths[batch].max())) for batch in made)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    firsts = [int(lengths[batch].min()) for batch in made]
    assert firsts != sorted(firsts)
    valid = lengths.sum() / sum(padded(lengths, batch) for batch in made)
    assert valid > 0.97
    # Equal lengths change places from epoch to epoch.
    same = TokenBudgetSampler([7] * 40, 70, order="sorted")
    first = sorted(map(sorted, same))
    same.set_epoch(1)
    assert sorted(map(sorted, same)) != first


def test_random_order_mixes_within_the_bucket_only() -> None:
    lengths = published_lengths(5_000)
    sampler = TokenBudgetSampler(lengths, 16_384)
    made = list(sampler)
    buckets = [set(sampler.buckets.bucket_of[batch].tolist()) for batch in made]
    assert np.mean([len(bucket) == 1 for bucket in buckets]) > 0.9
    firsts = [min(bucket) for bucket in buckets]
    assert firsts != sorted(firsts)
    assert all(batch != sorted(batch) for batch in made if len(batch) > 8)


def test_none_shuffles_nothing() -> None:
    lengths = published_lengths(2_000)
    sampler = TokenBudgetSampler(lengths, 16_384, order="none", max_padding=1.0)
    made = list(sampler)
    assert all(batch == sorted(batch) for batch in made if len(set(sampler.buckets.bucket_of[batch])) == 1)
    firsts = [sampler.buckets.bucket_of[batch].max() for batch in made]
    assert firsts == sorted(firsts)
    sampler.set_epoch(3)
    assert list(sampler) == made


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_case_22_order_depends_on_seed_and_epoch_alone(order: str) -> None:
    lengths = published_lengths(1_000)
    first = list(TokenBudgetSampler(lengths, 8_192, order=order, seed=5))
    np.random.default_rng().random()
    again = TokenBudgetSampler(list(lengths), 8_192, order=order, seed=5)
    assert list(again) == first
    assert list(again) == first
    again.set_epoch(1)
    assert list(again) != first
    again.set_epoch(0)
    assert list(again) == first
    assert list(TokenBudgetSampler(lengths, 8_192, order=order, seed=6)) != first


def test_case_22_the_order_on_every_machine() -> None:
    # Recorded once. It fails when the order changes, which would break the resume of every stored checkpoint.
    lengths = (np.arange(500) * 7919) % 997 + 1
    digest = hashlib.sha256()
    for rank in range(2):
        for batch in TokenBudgetSampler(lengths, 4_096, seed=3, rank=rank, world_size=2):
            digest.update(np.array([len(batch), *batch], "<i8").tobytes())
    assert digest.hexdigest()[:16] == "f68b5b9c86a395f7"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("done", [0, 1, 7])
def test_case_15_exact_resume(order: str, done: int) -> None:
    lengths = published_lengths(1_000)
    settings: dict[str, Any] = {"order": order, "rank": 1, "world_size": 2}
    sampler = TokenBudgetSampler(lengths, 8_192, **settings)
    sampler.set_epoch(4)
    everything = list(sampler)
    running = iter(sampler)
    assert [next(running) for _ in range(done)] == everything[:done]
    state = sampler.state_dict() if done else sampler.state_dict(step=0)

    resumed = TokenBudgetSampler(lengths, 8_192, **settings)
    resumed.load_state_dict(state)
    assert resumed.epoch == 4
    resumed.set_epoch(4)  # a training loop says so at the start of each epoch
    assert len(resumed) == len(everything)
    assert list(resumed) == everything[done:]
    # Only the first epoch after a restore is shorter.
    assert list(resumed) == everything
    resumed.load_state_dict(state)
    resumed.set_epoch(5)
    assert len(list(resumed)) == len(resumed)


def test_a_finished_epoch_stays_finished() -> None:
    sampler = TokenBudgetSampler([5] * 20, 20)
    assert len(list(sampler)) == 5
    state = sampler.state_dict()
    assert (state["epoch"], state["step"]) == (0, 5)
    resumed = TokenBudgetSampler([5] * 20, 20)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    resumed.set_epoch(1)
    assert len(list(resumed)) == 5


def test_a_state_of_another_run_is_refused() -> None:
    lengths = [5, 6, 7, 8] * 10
    good = TokenBudgetSampler(lengths, 40)
    running = iter(good)
    next(running)
    before = good.state_dict()
    others = {
        "samples": TokenBudgetSampler([*lengths, 5], 40),
        "lengths_crc32": TokenBudgetSampler(lengths[::-1], 40),
        "max_tokens": TokenBudgetSampler(lengths, 41),
        "seed": TokenBudgetSampler(lengths, 40, seed=1),
        "world_size": TokenBudgetSampler(lengths, 40, world_size=2),
        "order": TokenBudgetSampler(lengths, 40, order="sorted"),
        "n_buckets": TokenBudgetSampler(lengths, 40, n_buckets=2),
        "max_spread": TokenBudgetSampler(lengths, 40, max_spread=None),
        "max_padding": TokenBudgetSampler(lengths, 40, max_padding=0.3),
    }
    for key, other in others.items():
        with pytest.raises(ValueError, match=rf"another run: .*{key} is "):
            good.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"state must be what TokenBudgetSampler\.state_dict returned, got None"):
        good.load_state_dict(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="state has no epoch, step"):
        good.load_state_dict({"seed": 0})
    with pytest.raises(ValueError, match="step is 999, but epoch 0 has"):
        good.load_state_dict(before | {"step": 999})
    with pytest.raises(ValueError, match="step is 999, but epoch 7 has"):
        good.load_state_dict(before | {"step": 999, "epoch": 7})
    with pytest.raises(ValueError, match="step is 999"):
        good.state_dict(step=999)
    assert good.state_dict() == before


def test_a_rank_may_load_the_state_of_another() -> None:
    lengths = published_lengths(500)
    first, second = (TokenBudgetSampler(lengths, 8_192, rank=rank, world_size=2) for rank in range(2))
    running = iter(first)
    next(running)
    everything = list(second)
    second.load_state_dict(first.state_dict())
    assert list(second) == everything[1:]


class Dataset:
    """Token sequences by index, as a DataLoader wants them."""

    lengths = (3, 9, 4, 4, 8, 2, 6, 6, 5, 7, 1, 9)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> list[int]:
        return [index] * self.lengths[index]


def collate(samples: list[list[int]]) -> Any:
    return pad_collate(samples, pad_id=99)


@pytest.mark.parametrize("workers", [0, 2])
def test_case_15_a_data_loader_with_any_number_of_workers(workers: int) -> None:
    sampler = TokenBudgetSampler(Dataset.lengths, 20, n_buckets=2, max_padding=0.5)
    expected = list(sampler)
    loader: Any = DataLoader(Dataset(), batch_sampler=sampler, collate_fn=collate, num_workers=workers)  # type: ignore[arg-type]
    assert len(loader) == len(expected)
    seen = [[row[0] for row in batch.input_ids.tolist()] for batch in loader]
    assert seen == expected
    # Workers fetch ahead, so a checkpoint gives its own count.
    running = iter(loader)
    next(running)
    state = sampler.state_dict(step=1)
    del running
    sampler.load_state_dict(state)
    assert [[row[0] for row in batch.input_ids.tolist()] for batch in loader] == expected[1:]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "settings", "message"),
    [
        ([5, 12, 3], 10, {}, r"lengths\[1\] is 12, above max_tokens 10.*chunk_fixed"),
        ([5] * 500 + [11] + [5] * 500, 10, {}, r"lengths\[500\] is 11"),
        ([5, -1], 10, {}, r"lengths\[1\] is -1"),
        ([5], 0, {}, "max_tokens must be at least 1"),
        ([5], 10, {"world_size": 2}, "world_size is 2, but there are only 1 samples"),
        ([5, 5], 10, {"rank": 2, "world_size": 2}, "rank is 2, but world_size 2"),
        ([5], 10, {"rank": -1}, "rank must be at least 0"),
        ([5], 10, {"world_size": 0}, "world_size must be at least 1"),
        ([5], 10, {"max_padding": 1.5}, "max_padding must lie between 0 and 1"),
        ([5], 10, {"max_padding": float("nan")}, "max_padding must lie between 0 and 1"),
        ([5], 10, {"max_padding": None}, "max_padding must lie between 0 and 1.*got None"),
        ([5], 10, {"max_padding": "0.3"}, "max_padding must lie between 0 and 1.*got '0.3'"),
        ([5], 10, {"max_padding": [0.1]}, r"max_padding must lie between 0 and 1.*got \[0\.1\]"),
        ([5], 10, {"max_padding": True}, "max_padding must lie between 0 and 1.*got True"),
        ([5], 10, {"order": "shuffled"}, "order must be one of 'random', 'sorted', 'none', got 'shuffled'"),
        ([5], 10, {"seed": -1}, "seed must be at least 0"),
        ([5], 10, {"n_buckets": 0}, "n_buckets must be at least 1"),
        ([5], 10, {"max_spread": -1}, "max_spread must be at least 0"),
    ],
)
def test_bad_arguments(lengths: list[int], max_tokens: int, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenBudgetSampler(lengths, max_tokens, **settings)


def test_equal_steps_that_cannot_be_are_refused() -> None:
    # Three samples of which each fills a batch cannot make two equal steps for two ranks.
    with pytest.raises(ValueError, match=r"3 batches must become 4 .* only 3 samples.*Use fewer ranks"):
        TokenBudgetSampler([10, 10, 10], 10, world_size=2)
    # One that can be split, anywhere in the epoch, is enough.
    made = ranks([10, 10, 10, 10, 10, 10, 2, 2, 10], 10, 2, n_buckets=2, max_spread=None)
    assert sorted(itertools.chain(*made[0], *made[1])) == list(range(9))
    assert len(made[0]) == len(made[1]) == 5 or len(made[0]) == len(made[1]) == 4


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("lengths", "max_tokens", "world_size", "max_padding"),
    [
        ([50, 1, 50, 1, 1], 51, 2, 1.0),
        ([37, 39, 30, 34, 11, 42, 16, 5], 100, 3, 0.05),
    ],
)
def test_no_epoch_fails_where_another_does_not(
    lengths: list[int], max_tokens: int, world_size: int, max_padding: float, order: Any
) -> None:
    # Shuffled, some epochs cut one batch more than can be made up to whole steps.
    samplers = [
        TokenBudgetSampler(
            lengths,
            max_tokens,
            n_buckets=1,
            max_padding=max_padding,
            order=order,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    epochs = []
    for epoch in range(40):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        made = [list(sampler) for sampler in samplers]
        assert len({len(batches) for batches in made}) == 1
        assert sorted(i for batches in made for batch in batches for i in batch) == list(range(len(lengths)))
        for batch in itertools.chain.from_iterable(made):
            size = padded(np.array(lengths), batch)
            assert size <= max_tokens
            assert len(batch) == 1 or size - sum(lengths[i] for i in batch) <= max_padding * size
        epochs.append(made)
    samplers[0].set_epoch(8)
    assert list(samplers[0]) == epochs[8][0]


@given(st.lists(st.integers(1, 30), min_size=2, max_size=7), st.integers(30, 90), st.sampled_from([0.05, 0.2, 1.0]))
@settings(max_examples=60, deadline=None)
def test_the_constructor_knows_for_every_epoch(lengths: list[int], max_tokens: int, max_padding: float) -> None:
    def legal(batch: list[int]) -> bool:
        size = len(batch) * max(batch)
        return len(batch) == 1 or (size <= max_tokens and size - sum(batch) <= max_padding * size)

    ranked = sorted(lengths)
    fewest = min(
        len(cuts) + 1
        for count in range(len(ranked))
        for cuts in itertools.combinations(range(1, len(ranked)), count)
        if all(legal(ranked[a:b]) for a, b in itertools.pairwise([0, *cuts, len(ranked)]))
    )
    for world_size in range(2, len(lengths) + 1):
        possible = -(-fewest // world_size) * world_size <= len(lengths)
        for order in ORDERS:
            arguments: dict[str, Any] = {"order": order, "max_padding": max_padding, "world_size": world_size}
            if not possible:
                with pytest.raises(ValueError, match="to give every rank the same number"):
                    TokenBudgetSampler(lengths, max_tokens, **arguments)
                continue
            sampler = TokenBudgetSampler(lengths, max_tokens, **arguments)
            for epoch in range(6):
                sampler.set_epoch(epoch)
                assert len(sampler) * world_size <= len(lengths)


def test_no_samples_give_no_batches() -> None:
    for order in ORDERS:
        sampler = TokenBudgetSampler([], 10, order=order, world_size=4)
        assert len(sampler) == 0
        assert list(sampler) == []


def test_a_long_tail_does_not_make_a_batch_a_document() -> None:
    # Every length in a bucket of its own: without carrying, each bucket would end in a batch of one.
    lengths = list(range(1000, 2000, 10))
    made = list(TokenBudgetSampler(lengths, 16_000, n_buckets=100, max_spread=0))
    assert np.mean([len(batch) for batch in made]) > 5
