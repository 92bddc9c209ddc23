"""Forward mode: right on the reference, refused on a native backend, where PyTorch would hand on a tangent of 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, jvp

from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.ops import conv1d_pack, ssm_pack

X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
A, B = -torch.rand(4, 3).double(), torch.randn(6, 3).double()
CALLS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "x": lambda x, backend: conv1d_pack(x, X[:4], activation="silu", backend=backend),
    "weight": lambda x, backend: conv1d_pack(X, x[:4], backend=backend),
    "u": lambda x, backend: ssm_pack(x, X, A, B, B, delta_softplus=True, backend=backend),
    "z": lambda x, backend: ssm_pack(X, X, A, B, B, z=x, delta_softplus=True, backend=backend),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_tangent_is_refused_and_never_lost(name: str) -> None:
    call = CALLS[name]
    direction = torch.ones_like(X)
    _, tangent = jvp(lambda x: call(x, "reference"), (X,), (direction,))
    step = 1e-6
    slope = (call(X + step, "reference") - call(X - step, "reference")) / (2 * step)
    torch.testing.assert_close(tangent, slope, rtol=1e-5, atol=1e-7)
    with pytest.raises(RuntimeError, match=r"no forward-mode derivative .* Use backend='reference'"):
        jvp(lambda x: call(x, "cpu"), (X,), (direction,))
    with forward_ad.dual_level():
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            call(forward_ad.make_dual(X, direction), "cpu")
        assert torch.equal(call(X, "cpu"), call(X, "auto"))  # no tangent, nothing to lose


def test_a_model_refuses_it_too() -> None:
    model, ids = MambaLM(MambaConfig(8, 1, 9)), torch.arange(7)[None]
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    for name, value in parameters.items():
        if name.endswith(("embedding.weight", "D", "x_proj.weight", "out_proj.weight")):
            with pytest.raises(RuntimeError, match="no forward-mode derivative"):
                jvp(lambda v, n=name: functional_call(model, {**parameters, n: v}, (ids,)), (value,), (value,))
