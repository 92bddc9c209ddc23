"""Each layer's gradient: is it there, does it vanish, does it explode."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

# A layer whose gradient is this many times shorter or longer than the middle layer's stands out.
_FAR = 1000.0
_SHOWN = 8


@dataclass(frozen=True)
class LayerGradient:
    """One layer's gradient.

    Attributes:
        name: the block, or the module outside the blocks.
        rms: root of the mean square over the layer's gradient: comparable between layers of different sizes.
        norm: its length.
        weight_norm: length of the layer's weights.
    """

    name: str
    rms: float
    norm: float
    weight_norm: float


@dataclass(frozen=True)
class GradientReport:
    """The gradients of a model after a backward pass, layer by layer, from the embedding up.

    Attributes:
        layers: one entry a layer.
        vanishing: layers whose rms is under a thousandth of the middle layer's.
        exploding: layers whose rms is above a thousand times the middle layer's, or not finite.
        missing: trainable parameters without a gradient, or with one that is 0 everywhere.
    """

    layers: list[LayerGradient]
    vanishing: list[str]
    exploding: list[str]
    missing: list[str]

    @property
    def healthy(self) -> bool:
        """Whether nothing vanishes, explodes or is missing."""
        return not (self.vanishing or self.exploding or self.missing)

    def to_dict(self) -> dict[str, Any]:
        """Fit for strict JSON: a number that is not finite becomes None."""
        values = asdict(self)
        for layer in values["layers"]:
            for key, value in layer.items():
                if isinstance(value, float) and not math.isfinite(value):
                    layer[key] = None
        return values

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=0)
        lines = [
            f"{x.name:{width}}  rms {x.rms:.2e}  norm {x.norm:.2e}  weights {x.weight_norm:.2e}" for x in self.layers
        ]
        for title, names in (("vanishing", self.vanishing), ("exploding", self.exploding), ("missing", self.missing)):
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines += [f"{title}: {', '.join(names[:_SHOWN])}{more}"] if names else []
        return "\n".join(lines)


@torch.no_grad()
def gradient_report(model: nn.Module) -> GradientReport:
    """Read the gradients that a backward pass left in ``model``. Waits for a GPU once.

    Parameters that are not trained are left out.
    """
    trained = [(name.replace("_orig_mod.", ""), p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        return GradientReport([], [], [], [])
    squares = torch.stack([_square(t, p.device) for _, p in trained for t in (p.grad, p)]).tolist()
    missing, layers = [], dict[str, list[float]]()
    for number, (name, p) in enumerate(trained):
        square, weight_square = squares[2 * number : 2 * number + 2]
        if square == 0:
            missing.append(name)
        sums = layers.setdefault(layer_of(name), [0.0, 0.0, 0.0])
        for place, value in enumerate((square, weight_square, p.numel())):
            sums[place] += value
    found = [
        LayerGradient(name, math.sqrt(square / size), math.sqrt(square), math.sqrt(weight))
        for name, (square, weight, size) in layers.items()
    ]
    finite = [layer.rms for layer in found if math.isfinite(layer.rms)]
    middle = statistics.median(finite) if finite else 0.0
    return GradientReport(
        found,
        [layer.name for layer in found if layer.rms < middle / _FAR],
        [layer.name for layer in found if not layer.rms <= middle * _FAR],
        missing,
    )


def layer_of(name: str) -> str:
    """The layer of a parameter: "layers.3" for all of block 3, otherwise the module that has it."""
    block = re.search(r"layers\.\d+", name)
    return block.group() if block else name.rsplit(".", 1)[0].rsplit(".", 1)[-1]


def _square(tensor: Tensor | None, device: torch.device) -> Tensor:
    if tensor is None:
        return torch.zeros((), dtype=torch.float64, device=device)
    return tensor.double().square().sum()
