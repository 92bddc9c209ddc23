"""Generation: one pack of prompts, one token at a time, equal to the full forward pass, the same from the same seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mamba_lab.batching import Boundaries
from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.models.generate import generate, read, stream
from mamba_lab.models.sampling import Sampler

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2], [8, 4]]


def make(backend: str = "auto") -> MambaLM:
    torch.manual_seed(0)
    model = MambaLM(MambaConfig(d_model=16, n_layer=2, vocab_size=50, d_state=4), backend=backend)
    with torch.no_grad():  # away from the start, where a tied model repeats its last token
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_greedy_text_is_that_of_the_full_forward(backend: str) -> None:
    model = make(backend)
    texts = generate(model, PROMPTS, 12, temperature=0)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        ids = list(prompt)
        for token in text:
            assert token == int(model(torch.tensor([ids]))[0, -1].argmax())
            ids.append(token)
    assert len({tuple(text) for text in texts}) == 4
    assert min(len(set(text)) for text in texts) > 2


def test_logits_of_each_step_are_those_of_the_full_forward() -> None:
    model = make()
    texts = [list(prompt) for prompt in PROMPTS]
    logits, states = read(model, texts)
    for step in range(8):
        assert not logits.requires_grad  # no graph grows from step to step
        for text, row in zip(texts, logits, strict=True):
            torch.testing.assert_close(row, model(torch.tensor([text]))[0, -1].detach(), rtol=1e-5, atol=1e-5)
        sizes = [(state.conv.shape, state.ssm.shape) for state in states]
        assert sizes == [((4, 32, 3), (4, 32, 4))] * 2  # as much after one token as after a thousand
        new = [[(7 * step + row) % 50] for row in range(4)]
        texts = [text + one for text, one in zip(texts, new, strict=True)]
        logits, states = read(model, new, states)


def test_a_text_read_in_pieces_is_the_text() -> None:
    model = make()
    whole, after = read(model, PROMPTS)
    logits, states = read(model, [[prompt[0]] for prompt in PROMPTS])
    rest = [2, 0]  # the prompts with something left; row 0 and 2 go on together
    states = [type(state)(state.conv[rest], state.ssm[rest]) for state in states]
    logits, states = read(model, [PROMPTS[row][1:] for row in rest], states)
    torch.testing.assert_close(logits, whole[rest], rtol=1e-5, atol=1e-5)
    for here, there in zip(states, after, strict=True):
        torch.testing.assert_close(here.ssm, there.ssm[rest], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(here.conv, there.conv[rest], rtol=1e-5, atol=1e-6)


def test_a_prompts_text_does_not_depend_on_its_neighbours() -> None:
    model = make()
    together = generate(model, PROMPTS, 6, temperature=0)
    assert together == [generate(model, [prompt], 6, temperature=0)[0] for prompt in PROMPTS]
    # Also when a neighbour ends earlier: every prompt draws its own numbers.
    free = model.generate(PROMPTS, 10, seed=3)
    stop = free[1][2]
    cut = model.generate(PROMPTS, 10, seed=3, stop=[stop])
    for full, short in zip(free, cut, strict=True):
        end = full.index(stop) + 1 if stop in full else 10
        assert short == full[:end]
    assert len(cut[1]) <= 3


def test_the_same_seed_gives_the_same_text() -> None:
    model = make()
    one, two = (model.generate(PROMPTS, 8, seed=5, top_k=20, top_p=0.9, temperature=1.3) for _ in range(2))
    assert one == two
    assert one != model.generate(PROMPTS, 8, seed=6, top_k=20, top_p=0.9, temperature=1.3)
    generator = torch.Generator().manual_seed(5)
    first, second = (model.generate(PROMPTS, 8, generator=generator) for _ in range(2))
    assert first == model.generate(PROMPTS, 8, seed=5)
    assert first != second
    torch.manual_seed(1)
    free = model.generate(PROMPTS, 8)
    torch.manual_seed(1)
    assert free == model.generate(PROMPTS, 8)


def test_streaming() -> None:
    model = make()
    heard: list[tuple[int, int]] = []
    texts = model.generate(PROMPTS, 5, seed=1, on_token=lambda row, token: heard.append((row, token)))
    assert [row for row, _ in heard] == [0, 1, 2, 3] * 5
    assert [[token for row, token in heard if row == n] for n in range(4)] == texts
    steps = list(stream(model, PROMPTS, 5, seed=1))
    assert [[step[n] for step in steps] for n in range(4)] == texts
    assert model.generate(torch.tensor([[1, 2], [3, 4]]), 3, seed=1) == model.generate([[1, 2], [3, 4]], 3, seed=1)


def test_the_callers_gradients_stay_on_between_two_steps() -> None:
    for _ in stream(make(), PROMPTS, 2):
        assert torch.is_grad_enabled()


def test_nothing_to_do() -> None:
    model = make()
    assert model.generate(PROMPTS, 0) == [[], [], [], []]
    assert model.generate([], 5) == []
    assert len(model.generate([[1]], 3, stop=range(50))[0]) == 1


@settings(max_examples=60, deadline=None)
@example(scores=[0.0, 0.0], chance=0.75, temperature=0.3, top_k=None, top_p=0.5)
@given(
    scores=st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=2, max_size=9),
    chance=st.floats(0, 1, exclude_max=True),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0.05, 1),
)
def test_sampling_by_its_definition(
    scores: list[float], chance: float, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Sort, keep the k likeliest, keep the fewest that reach p, and cut what is left at the chance."""
    sampler = Sampler(temperature, top_k, top_p)
    chosen = int(sampler.choose(torch.tensor([scores]).double(), torch.tensor([chance]).double()))
    order = sorted(range(len(scores)), key=lambda n: -scores[n])[:top_k]
    weights = torch.softmax(torch.tensor([scores[n] for n in order]).double() / temperature, 0).tolist()
    allowed = []
    for slack in (-1e-12, 1e-12):  # a sum that is top_p but for rounding may have reached it or not
        kept, total = [], 0.0
        for token, weight in zip(order, weights, strict=True):
            if top_p is not None and total >= top_p + slack:
                break
            kept.append((token, weight))
            total += weight
        reached, target = 0.0, chance * total
        for token, weight in kept:
            if reached - 1e-9 <= target <= reached + weight + 1e-9:
                allowed.append(token)
            reached += weight
    assert chosen in allowed


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.3]])).expand(4000, 3)
    sampler = Sampler(seed=0)
    counts = torch.bincount(sampler.choose(logits, sampler.draw(4000)), minlength=3) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.2, 0.3]), rtol=0, atol=0.03)


def test_equal_scores_and_broken_ones() -> None:
    assert Sampler(0).choose(torch.zeros(2, 4), None).tolist() == [0, 0]
    assert Sampler(top_k=1).choose(torch.zeros(2, 4), torch.tensor([0.0, 0.99]).double()).tolist() == [0, 0]
    never = torch.tensor([[0.0, -torch.inf]])
    assert Sampler().choose(never, torch.ones(1).double()).tolist() == [0]
    with pytest.raises(ValueError, match="logits hold NaN"):
        Sampler().choose(torch.tensor([[0.0, torch.nan]]), torch.zeros(1).double())


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, r"prompts\[1\] is empty"),
        ([[1], [50]], {}, r"prompts\[1\] has the id 50, the vocabulary runs from 0 to 49"),
        ([1, 2], {}, r"prompts\[0\] is the number 1, expected a list"),
        ("text", {}, "prompts must be a list of lists"),
        (torch.tensor([1, 2]), {}, r"prompts must be a list of lists of ids, or a tensor \[B, L\]"),
        ([[1.5]], {}, r"prompts\[0\] must hold integers"),
        ([[1]], {"temperature": -1.0}, "temperature must be 0 or above"),
        ([[1]], {"temperature": "hot"}, "temperature must be a number"),
        ([[1]], {"top_k": 0}, "top_k must be at least 1"),
        ([[1]], {"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ([[1]], {"seed": 1, "generator": torch.Generator()}, "seed and generator were both given"),
        ([[1]], {"stop": [-1]}, "stop must be at least 0"),
        ([[1]], {"stop": 5}, "stop must be ids, got 5. Put a single id in a list"),
        ([[1]], {"seed": 2**70}, r"seed must be below 2\*\*64"),
    ],
)
def test_errors(prompts: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().generate(prompts, 3, **options)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 0"):
        stream(make(), [[1]], -1)  # at the call, not at the first step


def test_states_cross_into_training_with_gradients() -> None:
    """A cut document: the second half's gradient reaches the first half through the states."""
    model, ids = make(), torch.arange(12) * 4
    halves, states = [], None
    for half in ids.split(6):
        hidden, states = model.backbone(half, Boundaries.from_lengths([6]), states, return_states=True)
        halves.append(hidden)

    def grads(hidden: Tensor) -> list[Tensor]:
        return torch.autograd.grad(hidden[6:].square().sum(), [model.backbone.layers[0].mixer.A_log])

    whole = model.backbone(ids, Boundaries.from_lengths([12]))
    torch.testing.assert_close(torch.cat(halves), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grads(torch.cat(halves)), grads(whole), rtol=1e-4, atol=1e-6)


def test_generation_calls_every_module() -> None:
    """A hook that steers or records has to be met as in training."""
    model, met = make(), set()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: met.add(name))
    model(torch.tensor([[1, 2]]))
    in_training = set(met)
    met.clear()
    model.generate([[1, 2], [3]], 2)
    assert met == in_training
    assert {"", "backbone", "backbone.layers.0", "backbone.layers.1.mixer.conv1d"} <= met


class Wrapped(torch.nn.Module):
    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: object, **options: object) -> object:
        return self.block(*inputs, **options)


def test_generation_with_wrapped_blocks() -> None:
    model = make()
    expected = model.generate(PROMPTS, 4, temperature=0)
    model.backbone.layers[0] = Wrapped(model.backbone.layers[0])
    model.backbone.layers[1] = torch.compile(model.backbone.layers[1], backend="eager")
    assert model.generate(PROMPTS, 4, temperature=0) == expected
    torch._dynamo.reset()


def test_states_that_do_not_fit() -> None:
    model, ids = make(), torch.tensor([[1, 2]])
    _, states = model(ids, return_states=True)
    with pytest.raises(ValueError, match="states has 1 entries, expected one for each of the 2 blocks"):
        model(ids, states=states[:1], return_states=True)
    with pytest.raises(ValueError, match="states were given without return_states=True"):
        model(ids, states=states)
    with pytest.raises(ValueError, match="targets and return_states were both given"):
        model(ids, targets=ids, return_states=True)
