"""The block as one step: equal to its layers called in turn, with less kept, and out of the way where it must be."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mamba_lab import log
from mamba_lab.batching import Boundaries
from mamba_lab.models import MambaConfig, mixer
from mamba_lab.models.mixer import MambaMixer
from mamba_lab.models.plain import why_not_plain

LENGTHS = [4, 2, 0, 3, 7, 1, 40]
BOUNDARIES = Boundaries.from_lengths(LENGTHS)
PROJECTIONS = ("x_proj", "dt_proj", "out_proj")


def make(**sizes: object) -> MambaMixer:
    torch.manual_seed(0)
    from mamba_lab.models import MambaLM

    return MambaLM(MambaConfig(**{"d_model": 16, "n_layer": 1, "vocab_size": 9, **sizes})).backbone.layers[0].mixer


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two paths each call took."""
    taken: list[str] = []

    def watch(name: str, label: str) -> None:
        original = getattr(mixer, name)

        def watched(*arguments: object, **options: object) -> object:
            taken.append(label)
            return original(*arguments, **options)

        monkeypatch.setattr(mixer, name, watched)

    watch("mamba_inner", "one step")
    watch("ssm_pack", "in turn")
    return taken


def run(block: MambaMixer, hidden: Tensor, seed: int = 2) -> dict[str, Tensor]:
    block.zero_grad()
    hidden = hidden.clone().requires_grad_()
    out = block(hidden, BOUNDARIES)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype))
    grads = {name: p.grad.clone() for name, p in block.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "hidden": hidden.grad, **grads}


def in_turn(block: MambaMixer, monkeypatch: pytest.MonkeyPatch, hidden: Tensor) -> dict[str, Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(mixer, "fused_backends", lambda *_: None)
        return run(block, hidden)


@pytest.mark.parametrize("sizes", [{}, {"bias": True, "conv_bias": False, "d_state": 3, "d_conv": 2, "dt_rank": 5}])
def test_one_step_equals_the_layers_in_turn(
    sizes: dict[str, object], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every gradient alone, in float64."""
    block, hidden = make(**sizes).double(), torch.randn(sum(LENGTHS), 16, dtype=torch.float64)
    one, turn = run(block, hidden), in_turn(block, monkeypatch, hidden)
    assert calls == ["one step", "in turn"]
    assert set(one) == set(turn) == {"out", "hidden", *(name for name, _ in block.named_parameters())}
    for name, value in turn.items():
        torch.testing.assert_close(one[name], value, rtol=1e-10, atol=1e-13, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_one_step_in_each_precision(dtype: torch.dtype, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    block, hidden = make(bias=True).to(dtype), torch.randn(sum(LENGTHS), 16).to(dtype)
    exact = run(make(bias=True).double(), hidden.double())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        one, turn = run(block, hidden), in_turn(block, monkeypatch, hidden)
    rough = autocast or dtype == torch.bfloat16
    for name, value in turn.items():
        assert one[name].dtype == value.dtype, name
        error, other = (
            ((found.double() - exact[name]).norm() / exact[name].norm()).item() for found in (one[name], value)
        )
        # No further from float64 than the layers in turn are, give or take.
        assert error <= 1.5 * other + (1e-2 if rough else 1e-6), name
        assert error < (0.2 if rough else 1e-5), name


def test_a_frozen_layer_costs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 27."""
    block, hidden = make(bias=True), torch.randn(sum(LENGTHS), 16)
    everything = run(block, hidden)
    for name, parameter in block.named_parameters():
        block.requires_grad_(False)
        parameter.requires_grad_()
        found = run(block, hidden)
        assert set(found) == {"out", "hidden", name}
        torch.testing.assert_close(found[name], everything[name], rtol=1e-5, atol=1e-6, msg=name)


def test_it_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept for backward, in numbers a token: 4 d_inner at N = 16, where the layers in turn keep 6 d_inner."""
    block, hidden = make(d_model=64), torch.randn(512, 64)
    boundaries, kept = Boundaries.from_lengths([512]), []
    for one in (True, False):
        seen: dict[int, int] = {}

        def pack(tensor: Tensor, seen: dict[int, int] = seen) -> Tensor:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes() // 4
            return tensor

        with monkeypatch.context() as patch, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            if not one:
                patch.setattr(mixer, "fused_backends", lambda *_: None)
            out = block(hidden, boundaries)
        parameters = {p.untyped_storage().data_ptr() for p in block.parameters()}
        kept.append(sum(size for pointer, size in seen.items() if pointer not in parameters) / (512 * 128))
        del out
    assert kept[0] < 5.1
    assert kept[1] - kept[0] == pytest.approx(2, abs=0.1)


class LowRank(nn.Module):
    """An adapter as PEFT makes them: another class around the layer, which it calls."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, layer.in_features))
        self.b = nn.Parameter(torch.randn(layer.out_features, 2) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + x @ self.a.T @ self.b.T


@pytest.mark.parametrize("name", ["in_proj", *PROJECTIONS])
def test_an_adapter_is_called_and_gets_gradients(name: str, calls: list[str]) -> None:
    """Case 33: and the result is that of the merged weights."""
    block, hidden = make(), torch.randn(sum(LENGTHS), 16)
    adapter = LowRank(getattr(block, name))
    setattr(block, name, adapter)
    found = run(block, hidden)
    assert calls == ["one step" if name == "in_proj" else "in turn"]
    assert found[f"{name}.a"].abs().sum() > 0
    assert found[f"{name}.b"].abs().sum() > 0
    merged = make()
    getattr(merged, name).weight.data += adapter.b.detach() @ adapter.a.detach()
    torch.testing.assert_close(found["out"], run(merged, hidden)["out"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["conv1d", "in_proj", *PROJECTIONS])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_hook_runs(name: str, kind: str, calls: list[str]) -> None:
    """Case 33."""
    block, hidden, ran = make(), torch.randn(sum(LENGTHS), 16), []
    expected = run(block, hidden)
    handle = getattr(getattr(block, name), f"register_{kind}_hook")(lambda *_: ran.append(1))
    if name == "dt_proj" and kind.startswith("forward"):
        block.dt_proj.register_forward_hook(lambda _, __, out: out + 0)
    found = run(block, hidden)
    assert ran == [1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    handle.remove()
    assert calls == ["one step", "one step" if name == "in_proj" else "in turn"]


@pytest.mark.parametrize("name", PROJECTIONS)
def test_parametrised_replaced_and_foreign_layers_are_called(name: str, calls: list[str]) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    class Mine(nn.Linear):
        pass

    hidden = torch.randn(sum(LENGTHS), 16)
    block = make()
    parametrize.register_parametrization(getattr(block, name), "weight", Doubled())
    doubled = make()
    getattr(doubled, name).weight.data.mul_(2)
    torch.testing.assert_close(run(block, hidden)["out"], run(doubled, hidden)["out"], rtol=1e-4, atol=1e-5)
    assert calls == ["in turn", "one step"]

    replaced = make()
    layer = getattr(replaced, name)
    layer.forward = lambda x: x.sum(1, keepdim=True).expand(-1, layer.out_features)
    run(replaced, hidden)
    foreign = make()
    setattr(foreign, name, Mine(layer.in_features, layer.out_features))
    run(foreign, hidden)
    assert calls[2:] == ["in turn", "in turn"]


def test_what_is_not_plain() -> None:
    class Sharded(Tensor):
        pass

    layer = nn.Linear(3, 4)
    assert why_not_plain(layer, nn.Linear) is None
    layer.weight = nn.Parameter(torch.randn(4, 3).as_subclass(Sharded))
    assert why_not_plain(layer, nn.Linear) == "has a weight that is a Sharded"
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert why_not_plain(nn.Linear(3, 4), nn.Linear) == "has a global hook"
    handle.remove()
    assert why_not_plain(nn.Linear(3, 4), nn.Linear) is None


def test_the_reference_runs_in_turn(calls: list[str]) -> None:
    block, hidden = make(), torch.randn(sum(LENGTHS), 16)
    expected = run(block, hidden)
    block.backend = block.conv1d.backend = "reference"
    torch.testing.assert_close(run(block, hidden), expected, rtol=1e-4, atol=1e-5)
    assert calls == ["one step", "in turn"]


def test_the_path_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    log.log_once.cache_clear()
    hooked = make()
    hooked.out_proj.register_forward_hook(lambda *_: None)
    with caplog.at_level(logging.INFO, logger="mamba_lab"):
        for block in (make(), make(), hooked, hooked):
            block(torch.randn(sum(LENGTHS), 16), BOUNDARIES)
    said = [record.message for record in caplog.records if "Mamba blocks" in record.message]
    assert said == [
        "Mamba blocks run from in_proj to out_proj in one step.",
        "Mamba blocks call their layers in turn, which takes more memory: out_proj has a hook.",
    ]


def test_boundaries_are_checked(calls: list[str]) -> None:
    block = make()
    with pytest.raises(ValueError, match="MambaMixer: boundaries cover 57 tokens, the output of in_proj has 5"):
        block(torch.randn(5, 16), BOUNDARIES)
    with pytest.raises(ValueError, match="MambaMixer: boundaries are on meta, the output of in_proj is on cpu"):
        block(torch.randn(57, 16), BOUNDARIES.to("meta"))


def test_a_kernel_never_meets_a_dtype_that_it_does_not_know() -> None:
    block = make()
    block(torch.randn(57, 16), BOUNDARIES)  # what was found right once is not looked at again
    block.conv1d.bfloat16()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"MambaMixer: conv1d\.weight is torch\.bfloat16, expected torch\.float32"):
            block(torch.randn(57, 16), BOUNDARIES)


@pytest.mark.parametrize("place", ["A_log", "D", "dt_proj.bias"])
def test_what_the_states_meet_is_widened(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, hidden = make(), torch.randn(sum(LENGTHS), 16)
    parameter = block.get_parameter(place)
    parameter.data = parameter.data.bfloat16()
    one, turn = run(block, hidden), in_turn(block, monkeypatch, hidden)
    assert one[place].dtype == torch.bfloat16
    for name, value in turn.items():
        torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_parameter_of_another_shape_is_named() -> None:
    block = make()
    block.D = nn.Parameter(torch.ones(31))
    with pytest.raises(ValueError, match=r"MambaMixer: D must be \[D\] with D = 32"):
        block(torch.randn(57, 16), BOUNDARIES)


def test_a_second_derivative_is_refused() -> None:
    hidden = torch.randn(sum(LENGTHS), 16).requires_grad_()
    (grad,) = torch.autograd.grad(make()(hidden, BOUNDARIES).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"only first derivatives are native.*backend='reference'"):
        grad.sum().backward()


def test_a_weight_is_cast_once_a_step() -> None:
    """Autocast's precision, in the forward pass; the backward pass takes what was made there."""
    block = make()
    shapes = {tuple(getattr(block, name).weight.shape): name for name in ("in_proj", *PROJECTIONS)}
    cast: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            # Below autograd a call of .to() is seen, and above it what becomes of it.
            wanted = args[1] if func is torch.ops.aten.to.dtype else (kwargs or {}).get("dtype")
            is_cast = func in (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default)
            if is_cast and wanted == torch.bfloat16 != args[0].dtype:
                cast.append(shapes.get(tuple(args[0].shape), ""))
            return func(*args, **(kwargs or {}))

    with Watch():
        with torch.autocast("cpu", torch.bfloat16):
            out = block(torch.randn(sum(LENGTHS), 16, requires_grad=True), BOUNDARIES)
        out.sum().backward()
    assert sorted(filter(None, cast)) == sorted(shapes.values())
