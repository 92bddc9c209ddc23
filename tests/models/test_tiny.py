"""TinyMamba is the model of the first notebooks: its promises about boundaries are the course's first lesson."""

import pytest
import torch

from mamba_lab.batching import Boundaries, pad_collate
from mamba_lab.models import TinyMamba, batch_loss, train_tiny
from mamba_lab.models.tiny import TinyMambaBlock

LENGTHS = [4, 2, 3, 7]


@pytest.fixture
def model() -> TinyMamba:
    torch.manual_seed(0)
    return TinyMamba(50, d_model=16, n_layers=2)


@pytest.fixture
def pack() -> torch.Tensor:
    return torch.randint(0, 50, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))


def test_a_packed_sequence_equals_the_sequence_alone(model: TinyMamba, pack: torch.Tensor) -> None:
    packed = model(pack, Boundaries.from_lengths(LENGTHS))[0]
    alone = torch.cat([model(ids[None])[0] for ids in pack[0].split(LENGTHS)])
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_a_change_in_one_sequence_changes_no_bit_of_another(model: TinyMamba, pack: torch.Tensor, changed: int) -> None:
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
    other = pack.clone()
    other[0, owner == changed] = (pack[0, owner == changed] + 7) % 50
    before = model(pack, Boundaries.from_lengths(LENGTHS))[0]
    after = model(other, Boundaries.from_lengths(LENGTHS))[0]
    assert torch.equal(before[owner != changed], after[owner != changed])
    assert not torch.equal(before[owner == changed], after[owner == changed])


def test_no_gradient_crosses_a_boundary(model: TinyMamba, pack: torch.Tensor) -> None:
    embedded = model.embedding(pack).detach().requires_grad_()
    position = Boundaries.from_lengths(LENGTHS).position_indices.view(1, -1)
    model.layers[0](embedded, position)[0, 4:6].sum().backward()
    reached = embedded.grad[0].abs().sum(-1) > 0
    assert reached.tolist() == [False] * 4 + [True] * 2 + [False] * 10


@pytest.mark.parametrize("part", ["convolve", "scan"])
def test_each_reset_alone_is_not_enough(
    model: TinyMamba, pack: torch.Tensor, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 3: with one of the two resets missing, the second sequence hears the first."""
    original = getattr(TinyMambaBlock, part)

    def leaky(self, *arguments):
        *inputs, position = arguments
        return original(self, *inputs, torch.arange(position.shape[1]).expand_as(position))

    boundaries = Boundaries.from_lengths(LENGTHS)
    exact = model(pack, boundaries)
    monkeypatch.setattr(TinyMambaBlock, part, leaky)
    assert (model(pack, boundaries) - exact)[0, 4:].abs().max() > 1e-5


def test_the_recurrence_and_the_convolution_match_their_definitions() -> None:
    """Written again as sums: y_t = sum_s C_t . (prod a) b_s, and conv over the taps that exist."""
    torch.manual_seed(3)
    block = TinyMambaBlock(16, d_state=3).double()
    u, delta = torch.randn(1, 5, 32).double(), torch.rand(1, 5, 32).double()
    B, C = torch.randn(1, 5, 3).double(), torch.randn(1, 5, 3).double()
    position = torch.tensor([[0, 1, 2, 0, 1]])
    A = -torch.exp(block.A_log)
    y = torch.zeros(1, 5, 32).double()
    convolved = torch.zeros_like(y)
    for t in range(5):
        for s in range(t - int(position[0, t]), t + 1):
            decay = torch.exp(delta[0, s + 1 : t + 1].sum(0).unsqueeze(-1) * A)
            y[0, t] += (decay * (delta[0, s] * u[0, s]).unsqueeze(-1) * B[0, s] * C[0, t]).sum(-1)
            if t - s < 4:
                convolved[0, t] += block.conv_weight[:, 3 - (t - s)] * u[0, s]
    torch.testing.assert_close(block.scan(u, delta, B, C, position), y)
    torch.testing.assert_close(block.convolve(u, position), convolved + block.conv_bias)


def test_sequences_shorter_than_the_convolution(model: TinyMamba) -> None:
    ids = torch.arange(6)[None]
    ones = model(ids, Boundaries.from_lengths([1] * 6))[0]
    alone = torch.cat([model(ids[:, i : i + 1])[0] for i in range(6)])
    torch.testing.assert_close(ones, alone, rtol=1e-5, atol=1e-6)


def test_errors_name_the_argument_and_the_remedy(model: TinyMamba, pack: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"input_ids: expected \[B, L\], L >= 1, got \[16\]; add a row"):
        model(pack[0])
    with pytest.raises(ValueError, match="boundaries: they cover 9 tokens, input_ids has 16"):
        model(pack, Boundaries.from_lengths([4, 5]))
    with pytest.raises(ValueError, match="input_ids: expected a tensor of ids, got list"):
        model([[1, 2]])
    with pytest.raises(ValueError, match=r"got torch.float32 \[1, 2\]"):
        model(torch.ones(1, 2))
    with pytest.raises(ValueError, match="ids run from 3 to 50, the vocabulary from 0 to 49"):
        model(torch.tensor([[3, 50]]))
    with pytest.raises(ValueError, match=r"boundaries: expected Boundaries, got torch\.int32"):
        model(pack, torch.tensor([0, 16], dtype=torch.int32))
    with pytest.raises(ValueError, match="boundaries: a sequence runs into row 1"):
        model(pack.view(2, 8), Boundaries.from_lengths(LENGTHS))


def test_training_lowers_the_loss_and_is_the_same_twice() -> None:
    sequences = [torch.arange(start, start + 9) % 50 for start in range(12)]
    batches = [pad_collate(sequences, pad_id=49)] * 20

    def run() -> list[float]:
        torch.manual_seed(0)
        return train_tiny(TinyMamba(50, d_model=16), batches, learning_rate=1e-2)

    losses = run()
    assert losses[-1] < losses[0] / 2
    assert losses == run()


def test_padding_does_not_count_in_the_loss(model: TinyMamba) -> None:
    sequences = [torch.arange(6), torch.arange(3)]
    alone = [batch_loss(model, pad_collate([ids], pad_id=0)).item() for ids in sequences]
    together = batch_loss(model, pad_collate(sequences, pad_id=0)).item()
    assert together == pytest.approx((alone[0] * 5 + alone[1] * 2) / 7, rel=1e-5)


def test_a_batch_without_targets_is_refused(model: TinyMamba) -> None:
    with pytest.raises(ValueError, match="batch 0 has no target"):
        train_tiny(model, [pad_collate([torch.tensor([3])], pad_id=0)])


def test_training_uses_one_thread_and_gives_the_others_back(model: TinyMamba) -> None:
    seen = []
    model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train_tiny(model, [pad_collate([torch.arange(4)], pad_id=0)])
        with pytest.raises(ValueError, match="batch 0 has no target"):
            train_tiny(model, [pad_collate([torch.tensor([3])], pad_id=0)])
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_batch_without_targets_has_loss_and_gradient_zero(model: TinyMamba) -> None:
    loss = batch_loss(model, pad_collate([torch.tensor([3]), torch.tensor([4])], pad_id=0))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
