"""MambaLM keeps its promises: packed is alone, nothing leaks, padding counts nowhere, logits are never all held."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from mamba_lab.batching import Boundaries, chunk_fixed, pack_collate, pad_collate
from mamba_lab.models import MambaConfig, MambaLM, cross_entropy
from mamba_lab.models.cross_entropy import chunk_tokens, chunked_cross_entropy, cross_entropy_of_module
from mamba_lab.models.mamba import MambaBlock

LENGTHS = [4, 2, 3, 7]
CONFIG = MambaConfig(d_model=16, n_layer=2, vocab_size=50, d_state=4)


def make(backend: str = "auto", config: MambaConfig = CONFIG) -> MambaLM:
    torch.manual_seed(0)
    return MambaLM(config, backend=backend)


def some_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: MambaLM) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_parameters_have_the_names_of_mamba_ssm() -> None:
    names = {name for name in make().state_dict() if ".layers.1." not in name}
    mixer = ("in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias")
    mixer += ("A_log", "D", "out_proj.weight")
    expected = {f"backbone.layers.0.mixer.{name}" for name in mixer}
    expected |= {"backbone.layers.0.norm.weight", "backbone.norm_f.weight", "backbone.embedding.weight"}
    assert names == expected | {"lm_head.weight"}
    assert make().backbone.layers[0].mixer.conv1d.weight.shape == (32, 1, 4)


def test_it_starts_as_mamba_ssm_does() -> None:
    torch.manual_seed(0)
    config = MambaConfig(d_model=64, n_layer=9, vocab_size=2000, bias=True)
    model = MambaLM(config)
    mixer = model.backbone.layers[3].mixer
    assert torch.allclose(mixer.A_log, torch.log(torch.arange(1.0, 17.0)).expand(128, 16))
    assert mixer.D.eq(1).all()
    assert mixer.in_proj.bias.eq(0).all()
    assert mixer.out_proj.bias.eq(0).all()
    steps = F.softplus(mixer.dt_proj.bias)
    assert 0.00099 < steps.min() < 0.003
    assert 0.04 < steps.max() < 0.101
    # On a log scale: the middle step is near the geometric mean, 0.01, and far from the arithmetic one.
    assert 0.006 < steps.median() < 0.017
    assert mixer.dt_proj.weight.abs().max() <= 4**-0.5
    assert mixer.dt_proj.weight.abs().max() > 0.9 * 4**-0.5
    assert model.backbone.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    # nn.Linear starts within 1 / sqrt(128); the root of nine blocks is three.
    assert mixer.out_proj.weight.abs().max().item() == pytest.approx(128**-0.5 / 3, rel=0.01)
    assert model.lm_head.weight is model.backbone.embedding.weight
    assert mixer.A_log._no_weight_decay
    assert mixer.D._no_weight_decay
    constant = MambaLM(MambaConfig(8, 1, 9, dt_init="constant", dt_scale=2.0)).backbone.layers[0].mixer
    assert constant.dt_proj.weight.unique().tolist() == [2.0]
    assert MambaLM(MambaConfig(8, 1, 9, tie_embeddings=False)).lm_head.weight.shape == (16, 8)


def test_the_tie_holds_where_parameters_are_made_anew() -> None:
    state, ids = make().state_dict(), some_ids(1, 9)
    with torch.device("meta"):
        assigned, emptied = MambaLM(CONFIG), MambaLM(CONFIG)
    assigned.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
    emptied.to_empty(device="cpu").load_state_dict(state)
    inside = torch.nn.Sequential(MambaLM(CONFIG)).to("meta").to_empty(device="cpu")
    for model in (assigned, emptied, inside[0], pickle.loads(pickle.dumps(assigned)), copy.deepcopy(emptied)):
        assert model.lm_head.weight is model.backbone.embedding.weight
    assert torch.equal(assigned(ids), make()(ids))
    assert torch.equal(emptied(ids), make()(ids))
    # A head that is another one stays, and so does a model that is not tied.
    other = state | {"lm_head.weight": torch.ones(56, 16)}
    assigned.load_state_dict({name: value.clone() for name, value in other.items()}, assign=True)
    assert assigned.to(torch.float64).lm_head.weight.eq(1).all()
    assert not assigned.backbone.embedding.weight.eq(1).any()
    free = make(config=dataclasses.replace(CONFIG, tie_embeddings=False))
    free.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
    free.tie_weights()
    assert free.lm_head.weight is not free.backbone.embedding.weight


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_packed_sequence_equals_the_sequence_alone(backend: str) -> None:
    model, pack = make(backend), some_ids(1, 16)
    packed = model(pack, Boundaries.from_lengths(LENGTHS))[0]
    alone = torch.cat([model(ids[None])[0] for ids in pack[0].split(LENGTHS)])
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_gradients_of_a_pack_are_the_sums_of_gradients_alone(lengths: list[int], seed: int) -> None:
    model, total = make(), sum(lengths)
    ids, targets = some_ids(1, total, seed=seed), some_ids(1, total, seed=seed + 100)
    loss, count = model(ids, Boundaries.from_lengths(lengths), targets=targets)
    loss.backward()
    packed = gradients(model)
    model.zero_grad()
    losses = []
    for one, wanted in zip(ids.split(lengths, 1), targets.split(lengths, 1), strict=True):
        loss_alone, _ = model(one, targets=wanted)
        loss_alone.backward()
        losses.append(loss_alone.item())
    assert count == total
    assert loss.item() == pytest.approx(sum(losses), rel=1e-5)
    for name, grad in gradients(model).items():
        scale = grad.abs().max().item()
        torch.testing.assert_close(packed[name], grad, rtol=1e-4, atol=1e-5 * scale + 1e-9, msg=name)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_a_change_in_one_sequence_changes_no_bit_of_another(backend: str, changed: int) -> None:
    """Case 2: logits, and the gradients of what was embedded."""
    model, boundaries = make(backend), Boundaries.from_lengths(LENGTHS)
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
    targets = some_ids(1, 16, seed=2)
    found = []
    for shift in (0, 7):
        ids = some_ids(1, 16)
        ids[0, owner == changed] = (ids[0, owner == changed] + shift) % 50
        logits = model(ids, boundaries)[0]
        inner = []
        handle = model.backbone.embedding.register_forward_hook(lambda _, __, out, seen=inner: seen.append(out))
        loss, _ = model(ids, boundaries, targets=targets)
        handle.remove()
        (grad,) = torch.autograd.grad(loss, inner)
        found.append((logits, grad))
    for before, after in zip(*found, strict=True):
        assert torch.equal(before[owner != changed], after[owner != changed])
        assert not torch.equal(before[owner == changed], after[owner == changed])


@pytest.mark.parametrize("part", ["conv1d_pack", "ssm_pack"])
def test_each_reset_alone_is_not_enough(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 3: with one of the two resets missing, the second sequence hears the first."""
    from mamba_lab.models import mixer

    model, ids, boundaries = make("reference"), some_ids(1, 16), Boundaries.from_lengths(LENGTHS)
    exact, original = model(ids, boundaries), getattr(mixer, part)
    monkeypatch.setattr(mixer, part, lambda *a, boundaries, **k: original(*a, boundaries=None, **k))
    assert (model(ids, boundaries) - exact)[0, 4:].abs().max() > 1e-5


def test_rows_and_packs_and_padding_are_one_form() -> None:
    """Case 7: padded, packed and unpadded, the same documents have the same loss; padding has none."""
    model = make()
    texts = [some_ids(length, seed=length) for length in LENGTHS]
    padded = pad_collate(texts, pad_id=0)
    packed = pack_collate(chunk_fixed(LENGTHS, 9), texts, pad_id=0)
    losses = [model(b.input_ids, b.boundaries, targets=b.targets) for b in (padded, packed)]
    alone = [model(b.input_ids, targets=b.targets) for b in (pad_collate([text], pad_id=0) for text in texts)]
    for loss, count in losses:
        assert count == sum(LENGTHS) - 4 == sum(c for _, c in alone)
        torch.testing.assert_close(loss, sum(one for one, _ in alone))


def test_none_means_that_each_row_is_a_sequence() -> None:
    model, ids = make(), some_ids(3, 5)
    torch.testing.assert_close(model(ids), model(ids, Boundaries.from_lengths([5, 5, 5])), rtol=0, atol=0)
    torch.testing.assert_close(model(ids)[1], model(ids[1:2])[0], rtol=1e-5, atol=1e-6)
    raw = torch.tensor([0, 5, 10, 15], dtype=torch.int32)
    torch.testing.assert_close(model(ids), model(ids, raw), rtol=0, atol=0)


@pytest.mark.parametrize("chunk", [None, 1, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_chunked_loss_is_the_loss(chunk: int | None, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(16, 8, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(50, 8, generator=generator, dtype=dtype).requires_grad_()
    targets, share = some_ids(16), torch.rand(16, generator=generator)
    targets[[2, 3, 9]] = -100
    loss, total = chunked_cross_entropy(hidden, weight, targets, share, chunk=chunk)
    (3 * loss).backward()
    found, hidden.grad, weight.grad = (hidden.grad, weight.grad), None, None
    each = F.cross_entropy(hidden @ weight.T, targets, reduction="none", ignore_index=-100)
    (3 * (each * share.to(dtype)).sum()).backward()
    torch.testing.assert_close(loss, (each * share.to(dtype)).sum())
    assert total.item() == pytest.approx(share[targets >= 0].sum().item())
    torch.testing.assert_close(found, (hidden.grad, weight.grad))


@pytest.mark.parametrize("module", [False, True])
def test_the_models_loss_is_that_of_its_logits(module: bool) -> None:
    """Also where the output layer has to be called, because a hook sits on it."""
    model, ids = make(), some_ids(2, 8)
    targets, share = some_ids(2, 8, seed=3), torch.rand(2, 8, generator=torch.Generator().manual_seed(4))
    targets[0, :3] = -100
    logits = model(ids)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    expected = (each * share.flatten())[targets.flatten() >= 0].sum()
    expected.backward()
    wanted = gradients(model)
    model.zero_grad()
    calls = []
    if module:
        model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    loss, total = model(ids, targets=targets, weights=share)
    loss.backward()
    assert bool(calls) == module
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(total, share[targets >= 0].sum())
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_does_not_count_may_be_anything(module: bool, broken: float) -> None:
    """NaN behind a target of -100, or a weight of 0, reaches neither the loss nor a gradient."""
    found = []
    for value in (0.0, broken):
        hidden, weight = (torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (16, 50))
        targets, share = some_ids(16), torch.ones(16)
        targets[[2, 9]], share[5] = -100, 0.0
        hidden[[2, 5, 9]] = value
        for leaf in (hidden, weight):
            leaf.requires_grad_()
        if module:
            loss, total = cross_entropy_of_module(hidden, lambda h, W=weight: h @ W.T, 50, targets, share)
        else:
            loss, total = chunked_cross_entropy(hidden, weight, targets, share, chunk=3)
        loss.backward()
        found.append((loss.detach(), total, hidden.grad, weight.grad))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert found[0][1] == 13
    assert found[1][2][[2, 5, 9]].eq(0).all()


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("target", [-1, -99, -101, 50])
def test_a_target_outside_the_vocabulary_trains_towards_nothing(module: bool, target: int) -> None:
    """Where ids are not looked at (on a GPU, in a compiled model) the loss itself refuses one."""
    hidden, weight, targets = torch.randn(4, 8), torch.randn(50, 8), torch.tensor([1, target, -100, 2])
    arguments = (hidden, lambda h: h @ weight.T, 50, targets) if module else (hidden, weight, targets)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        (cross_entropy_of_module if module else chunked_cross_entropy)(*arguments)


@pytest.mark.parametrize("module", [False, True])
def test_nothing_to_learn_is_zero_and_never_nan(module: bool) -> None:
    """Case 18."""
    model, ids = make(), some_ids(2, 8)
    if module:
        model.lm_head.register_forward_hook(lambda *_: None)
    loss, total = model(ids, targets=torch.full_like(ids, -100), weights=torch.rand(2, 8))
    loss.backward()
    assert (loss.item(), total.item()) == (0.0, 0.0)
    grads = gradients(model)
    assert len(grads) == len(list(model.parameters()))
    assert all(grad.eq(0).all() for grad in grads.values())


def test_the_loss_holds_a_chunk_of_logits_and_no_more() -> None:
    model = make(config=MambaConfig(d_model=4, n_layer=1, vocab_size=20_000, d_state=2))
    ids = some_ids(1, 300)
    chunk = chunk_tokens(20_000, "cpu")
    assert chunk * 4 < 300
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for value in out if isinstance(out, tuple) else (out,):
                if isinstance(value, Tensor):
                    largest = max(largest, value.numel())
            return out

    with Watch():
        loss, _ = model(ids, targets=ids)
        loss.backward()
    assert largest == 20_000 * chunk
    assert chunk_tokens(4096, "cpu") == 256


def test_padding_rows_of_the_embedding_have_no_logit_and_no_gradient() -> None:
    model, ids = make(), some_ids(1, 9)
    assert model.backbone.embedding.weight.shape[0] == 56
    assert model(ids).shape == (1, 9, 50)
    loss, _ = model(ids, targets=ids)
    loss.backward()
    assert model.lm_head.weight.grad[50:].eq(0).all()
    assert model.lm_head.weight.grad[:50].ne(0).any(1).all()


@pytest.mark.parametrize("shape", [(0, 5), (1, 0), (2, 0)])
def test_empty_batches(shape: tuple[int, int]) -> None:
    """Case 10."""
    model, ids = make(), some_ids(*shape)
    assert model(ids).shape == (*shape, 50)
    loss, total = model(ids, targets=ids)
    loss.backward()
    assert (loss.item(), total.item()) == (0.0, 0.0)
    assert all(not grad.isnan().any() for grad in gradients(model).values())


def test_gradient_checkpointing_changes_memory_and_nothing_else() -> None:
    model, ids, boundaries = make(), some_ids(1, 16), Boundaries.from_lengths(LENGTHS)
    kept = []
    results = []
    for on in (False, True):
        model.set_gradient_checkpointing(on)
        saved = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss, _ = model(ids, boundaries, targets=ids)
        kept.append(saved)
        loss.backward()
        results.append((loss.detach(), *gradients(model).values()))
        model.zero_grad()
    assert kept[1] < kept[0] / 2
    for plain, checkpointed in zip(*results, strict=True):
        assert torch.equal(plain, checkpointed)


def test_autocast_keeps_the_decay_and_the_states_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 27, on the path that calls its layers in turn and on the one that does not."""
    from mamba_lab.models import mixer

    seen = []
    original = mixer.ssm_pack

    def watched(u: Tensor, delta: Tensor, A: Tensor, *rest: object, **options: object) -> object:
        seen.append((u.dtype, delta.dtype, A.dtype))
        return original(u, delta, A, *rest, **options)

    monkeypatch.setattr(mixer, "ssm_pack", watched)
    ids, boundaries = some_ids(1, 16), Boundaries.from_lengths(LENGTHS)
    exact = make()(ids, boundaries, targets=ids)[0]
    for hooked in (False, True):
        model = make()
        if hooked:
            model.backbone.layers[0].mixer.x_proj.register_forward_hook(lambda *_: None)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = model(ids, boundaries, targets=ids)
        loss.backward()
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    assert seen == [(torch.bfloat16, torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_dtype(dtype: torch.dtype) -> None:
    model, ids = make().to(dtype), some_ids(1, 16)
    residual = []
    model.backbone.layers[1].register_forward_pre_hook(lambda _, args: residual.append(args[0].dtype))
    logits = model(ids)
    assert logits.dtype == dtype
    assert residual == [torch.float64 if dtype == torch.float64 else torch.float32]
    exact = make()(ids)
    torch.testing.assert_close(logits.float(), exact, rtol=0, atol=0.01)
    loss, _ = model(ids, targets=ids)
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in model.parameters())
    narrow = MambaLM(MambaConfig(16, 2, 50, residual_in_fp32=False)).bfloat16()
    narrow.backbone.layers[1].register_forward_pre_hook(lambda _, args: residual.append(args[0].dtype))
    narrow(ids)
    assert residual[-1] == torch.bfloat16


def test_a_float32_output_layer_on_a_bfloat16_backbone() -> None:
    model, ids = make(config=dataclasses.replace(CONFIG, tie_embeddings=False)), some_ids(1, 16)
    model.backbone.bfloat16()
    logits = model(ids)
    assert logits.dtype == torch.float32
    loss, _ = model(ids, targets=ids)
    torch.testing.assert_close(loss, F.cross_entropy(logits[0], ids[0], reduction="sum"))


def test_raw_boundaries_in_a_compiled_model() -> None:
    """They are checked outside of the graph; where there may be no outside, the error says what to do."""
    torch._dynamo.reset()
    model, ids, raw = make(), some_ids(1, 8), torch.tensor([0, 3, 8], dtype=torch.int32)
    torch.testing.assert_close(torch.compile(model, backend="eager")(ids, raw), model(ids, raw), rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Build Boundaries.from_cu_seqlens outside the compiled"):
        torch.compile(model, backend="eager", fullgraph=True)(ids, raw)
    torch._dynamo.reset()


def test_layer_norm_where_a_checkpoint_has_it() -> None:
    model, ids = make(config=MambaConfig(16, 2, 50, rms_norm=False)), some_ids(1, 16)
    assert "backbone.norm_f.bias" in model.state_dict()
    loss, _ = model(ids, targets=ids)
    loss.backward()
    assert loss.item() / 16 == pytest.approx(math.log(50), rel=0.1)


def test_backward_as_users_expect() -> None:
    """Case 27: no_grad, retain_graph, twice, and only some parameters."""
    model, ids = make(), some_ids(1, 16)
    with torch.no_grad():
        assert not model(ids, targets=ids)[0].requires_grad
    loss, _ = model(ids, targets=ids)
    loss.backward(retain_graph=True)
    first = gradients(model)
    loss.backward()
    for name, grad in gradients(model).items():
        assert torch.equal(grad, 2 * first[name]), name
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss, _ = model(ids, targets=ids)
    with pytest.raises(RuntimeError, match="no second derivative: compute the loss from the logits"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    frozen = copy.deepcopy(model)
    frozen.zero_grad()
    frozen.requires_grad_(False)
    mixer = frozen.backbone.layers[0].mixer
    mixer.x_proj.weight.requires_grad_()
    frozen(ids, targets=ids)[0].backward()
    found = gradients(frozen)
    assert list(found) == ["backbone.layers.0.mixer.x_proj.weight"]
    torch.testing.assert_close(found.popitem()[1], first["backbone.layers.0.mixer.x_proj.weight"])


def test_a_block_compiles_at_most_twice() -> None:
    """Case 28: twenty batches whose boundaries differ in number and place, without a break in the graph."""
    torch._dynamo.reset()
    counter = CompileCounter()
    block = MambaBlock(CONFIG)
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    x = torch.randn(32, 16)
    for n in range(1, 21):
        lengths = [1] * (n - 1) + [33 - n]
        boundaries = Boundaries.from_lengths(lengths)
        torch.testing.assert_close(compiled(x, boundaries), block(x, boundaries), rtol=1e-5, atol=1e-6)
    assert 1 <= counter.frame_count <= 2
    torch._dynamo.reset()


@pytest.mark.parametrize("boundaries", [None, Boundaries.from_lengths(LENGTHS)])
def test_the_model_compiles_whole(boundaries: Boundaries | None) -> None:
    torch._dynamo.reset()
    model, ids = make(), some_ids(2, 8)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, boundaries), model(ids, boundaries), rtol=1e-5, atol=1e-6)
    loss, expected = (run(ids, boundaries, targets=ids)[0] for run in (compiled, model))
    torch.testing.assert_close(loss, expected)
    torch._dynamo.reset()


def test_a_training_step_is_compiled_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it one chunk of logits or thirty."""
    monkeypatch.setitem(cross_entropy._CHUNK_LOGITS, "cpu", 64 * 50)
    torch._dynamo.reset()
    counter, model = CompileCounterWithBackend("aot_eager"), make()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in (30, 400, 1500, 77, 2100):
        ids = some_ids(1, length)
        boundaries = Boundaries.from_lengths([length // 2, length - length // 2])
        grads = []
        for run in (compiled, model):
            model.zero_grad()
            loss, _ = run(ids, boundaries, targets=ids)
            (2 * loss).backward()
            grads.append((loss.detach(), *gradients(model).values()))
        for got, expected in zip(*grads, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
    assert counter.frame_count <= 2
    torch._dynamo.reset()


def test_errors_name_the_argument_and_the_remedy() -> None:
    model, ids = make(), some_ids(2, 8)
    boundaries = Boundaries.from_lengths([16])
    with pytest.raises(ValueError, match=r"boundaries are on meta, input_ids on cpu. Move the whole batch"):
        model(ids, boundaries.to("meta"))
    with pytest.raises(ValueError, match="boundaries cover 9 tokens, input_ids has 16"):
        model(ids, Boundaries.from_lengths([4, 5]))
    with pytest.raises(ValueError, match=r"boundaries: cu_seqlens\[1\] is 9, but there are 16 tokens"):
        model(ids, torch.tensor([0, 9], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"boundaries must be Boundaries, .* got list"):
        model(ids, [0, 16])
    with pytest.raises(ValueError, match=r"input_ids must be \[B, L\], got \[16\]"):
        model(ids.flatten())
    with pytest.raises(ValueError, match=r"input_ids must be an int64 tensor \[B, L\], got torch.float32 \[2, 8\]"):
        model(ids.float())
    with pytest.raises(ValueError, match=r"ids run from -1 to .*, the vocabulary from 0 to 49"):
        model(ids.clone().fill_diagonal_(-1))
    with pytest.raises(ValueError, match=r"targets: ids run from .* to 50"):
        model(ids, targets=ids.clone().fill_diagonal_(50))
    with pytest.raises(ValueError, match=r"targets must be torch.int64 \[2, 8\] as input_ids, got torch.int64 \[16\]"):
        model(ids, targets=ids.flatten())
    with pytest.raises(ValueError, match=r"weights must be torch.float32"):
        model(ids, targets=ids, weights=torch.ones(2, 8).double())
    with pytest.raises(ValueError, match="weights must not require a gradient"):
        model(ids, targets=ids, weights=torch.ones(2, 8).requires_grad_())
    with pytest.raises(ValueError, match="weights were given without targets"):
        model(ids, weights=torch.ones(2, 8))
    with pytest.raises(ValueError, match="targets is on meta"):
        model(ids, targets=ids.to("meta"))
    with pytest.raises(ValueError, match="input_ids has 4294967296 tokens, above the int32 limit"):
        model(torch.zeros(1, 1, dtype=torch.int64, device="meta").expand(2**16, 2**16))
    with pytest.raises(ValueError, match="input_ids is on meta, which has no values"):
        make().to("meta")(ids.to("meta"))
    with pytest.raises(ValueError, match="backend must be 'auto' or one of reference, cpu, triton, cuda, got 'cdua'"):
        MambaLM(CONFIG, backend="cdua")
    with pytest.raises(ValueError, match="config must be a MambaConfig, got dict"):
        MambaLM(CONFIG.to_dict())
