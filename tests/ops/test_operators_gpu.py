"""The operators on a GPU: what runs there, and what they say about tensors on two devices."""

from __future__ import annotations

import pytest
import torch
from operator_cases import Tensors, normal

from mamba_lab.batching import Boundaries
from mamba_lab.ops import conv1d_pack, ssm_pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
LENGTHS = [5, 0, 1, 9]
T, D, N, W = 15, 4, 3, 4


def conv_inputs() -> Tensors:
    return {"x": normal(T, D), "weight": normal(D, W, seed=1), "initial_state": normal(4, D, W - 1, seed=2)}


def scan_inputs() -> Tensors:
    made = {"u": normal(T, D), "delta": normal(T, D, seed=1), "A": -normal(D, N, seed=2).exp()}
    return made | {"B": normal(T, N, seed=3), "C": normal(T, N, seed=4), "initial_state": normal(4, D, N, seed=5)}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("operator", "inputs"), [(conv1d_pack, conv_inputs()), (ssm_pack, scan_inputs())])
def test_a_gpu_gives_what_the_cpu_gives(
    operator: object, inputs: Tensors, dtype: torch.dtype, tolerance: float
) -> None:
    """Outputs, final states and every gradient, with the backend that `auto` takes; boundaries in both forms."""
    boundaries = Boundaries.from_lengths(LENGTHS)
    found = []
    for device, where in (
        ("cpu", boundaries),
        ("cuda", boundaries.to("cuda")),
        ("cuda", boundaries.cu_seqlens.to("cuda")),
    ):
        leaves = {name: value.to(device, dtype).requires_grad_() for name, value in inputs.items()}
        y, final = operator(**leaves, boundaries=where, return_final_state=True)
        assert y.device.type == final.device.type == device
        grads = torch.autograd.grad(y.square().sum() + final.sum(), list(leaves.values()))
        found.append([value.detach().cpu() for value in (y, final, *grads)])
    for on_gpu in found[1:]:
        for got, expected in zip(on_gpu, found[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("operator", "inputs"), [(conv1d_pack, conv_inputs()), (ssm_pack, scan_inputs())])
def test_tensors_on_two_devices_are_refused(operator: object, inputs: Tensors) -> None:
    first, second = list(inputs)[:2]
    on_gpu = {name: value.cuda() for name, value in inputs.items()}
    boundaries = Boundaries.from_lengths(LENGTHS)
    with pytest.raises(
        ValueError, match=r"boundaries are on cpu, \w is on cuda:0. Move them with boundaries.to\('cuda:0'\)"
    ):
        operator(**on_gpu, boundaries=boundaries)
    with pytest.raises(ValueError, match=f"{second} is on cpu, {first} is on cuda:0"):
        operator(**{**on_gpu, second: inputs[second]}, boundaries=boundaries.to("cuda"))
    with pytest.raises(ValueError, match="backend 'cpu' works on cpu tensors, these are on cuda"):
        operator(**on_gpu, boundaries=boundaries.to("cuda"), backend="cpu")
