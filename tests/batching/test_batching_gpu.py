"""What only a GPU can show: how often building and moving a batch waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from mamba_lab.batching import Boundaries, PackingPlan, check_targets, pack_collate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

DOCUMENTS = [[10, 11, 12, 13], [20, 21], [30, 31, 32], [40, 41, 42, 43, 44, 45, 46]]


@pytest.fixture(autouse=True)
def _leave_the_debug_mode_off() -> Iterator[None]:
    torch.zeros(1, device="cuda")
    yield
    torch.cuda.set_sync_debug_mode("default")


def waits(call: Callable[[], object]) -> int:
    """How often ``call`` waits for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def test_the_count_sees_a_wait() -> None:
    assert waits(lambda: torch.ones(2, device="cuda").sum().item()) == 1


def test_from_lengths_never_waits() -> None:
    assert waits(lambda: Boundaries.from_lengths([4, 2, 3, 7], padding=1, device="cuda")) == 0
    made = Boundaries.from_lengths([4, 2, 3, 7], padding=1, device="cuda")
    assert made.order.device == made.cu_seqlens.device == torch.device("cuda", 0)
    assert waits(lambda: (made.seq_idx, made.position_indices, made.lengths)) == 0
    assert made.seq_idx.tolist() == [0] * 4 + [1] * 2 + [2] * 3 + [3] * 7


def test_the_other_forms_wait_once() -> None:
    made = Boundaries.from_lengths([4, 2, 3, 7], device="cuda")
    for build, tensor in (
        (Boundaries.from_cu_seqlens, made.cu_seqlens),
        (Boundaries.from_position_indices, made.position_indices),
        (Boundaries.from_seq_idx, made.seq_idx),
    ):
        assert waits(lambda build=build, tensor=tensor: build(tensor)) == 1  # type: ignore[misc]
        assert build(tensor).cu_seqlens.device == made.cu_seqlens.device
        assert torch.equal(build(tensor).cu_seqlens, made.cu_seqlens)
        assert torch.equal(build(tensor).order, made.order)
    copied = (made.cu_seqlens, made.order, made.n_tokens, made.n_sequences, made.max_seqlen)
    assert waits(lambda: Boundaries(*copied)) == 1


def test_a_pinned_batch_moves_without_waiting() -> None:
    plan = PackingPlan.from_bins([[0, 1], [2], [3]], [4, 2, 3, 7], 7)
    batch = pack_collate(plan, DOCUMENTS, pad_id=0)
    pinned = batch.pin_memory()
    assert pinned.input_ids.is_pinned()
    assert pinned.boundaries.order.is_pinned()
    assert waits(lambda: pinned.to("cuda", non_blocking=True)) == 0
    moved = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    for name in ("input_ids", "targets", "sequence"):
        assert torch.equal(getattr(moved, name).cpu(), getattr(batch, name))
    assert torch.equal(moved.boundaries.cu_seqlens.cpu(), batch.boundaries.cu_seqlens)


def test_the_huggingface_form_waits_once() -> None:
    plan = PackingPlan.from_bins([[0, 1], [2], [3]], [4, 2, 3, 7], 7)
    batch = pack_collate(plan, DOCUMENTS, pad_id=0)
    moved = batch.to("cuda")
    assert waits(moved.to_huggingface) == 1
    expected = batch.to_huggingface()
    for key, value in moved.to_huggingface().items():
        if isinstance(value, torch.Tensor):
            assert value.device.type == "cuda"
            value = value.cpu()
            assert torch.equal(value, expected[key])  # type: ignore[arg-type]


def test_the_target_check_waits_once() -> None:
    plan = PackingPlan.from_bins([[0, 1, 2], [3]], [4, 2, 3, 7], 10)
    batch = pack_collate(plan, DOCUMENTS, pad_id=9).to("cuda")
    assert check_targets(batch).ok
    assert waits(lambda: check_targets(batch)) == 1
