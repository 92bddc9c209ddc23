"""Continuous sequences: numbers in, numbers out, through the same Mamba blocks, packed without padding.

A series is a float array [n, F], such as temperatures and pressures hour by hour. Its target at each position is the
next row. Series lie end to end in a batch, and ``Boundaries`` keeps them apart, as it keeps texts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mamba_lab.batching import Boundaries, pack_greedy
from mamba_lab.batching._checks import as_int, shown, tensor_on_host
from mamba_lab.models import MambaConfig
from mamba_lab.models.initialise import initialise
from mamba_lab.models.mamba import MambaBlock
from mamba_lab.models.norm import LayerNorm, RMSNorm
from mamba_lab.ops.backends import NAMES

from .kinds import require_function
from .loss import Loss

Series: TypeAlias = "np.ndarray[Any, Any] | Tensor | Sequence[Sequence[float]]"
# From (prediction, target), [n, G] each, to the loss of each entry [n, G] or of each position [n].
Distance: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"

DISTANCES: dict[str, Distance] = {
    "mse": lambda prediction, target: F.mse_loss(prediction, target, reduction="none"),
    "l1": lambda prediction, target: F.l1_loss(prediction, target, reduction="none"),
    "smooth_l1": lambda prediction, target: F.smooth_l1_loss(prediction, target, reduction="none"),
}


class MambaRegressor(nn.Module):
    """A linear layer in, Mamba blocks, a norm, a linear layer out.

    Args:
        config: the blocks' sizes; what it says of vocabulary and embedding is not used.
        n_features: F, numbers at each position.
        n_outputs: G, numbers to predict at each; F by default.
        backend: which kernels run the operators.
    """

    def __init__(
        self, config: MambaConfig, n_features: int, n_outputs: int | None = None, *, backend: str = "auto"
    ) -> None:
        super().__init__()
        if not isinstance(config, MambaConfig):
            raise ValueError(f"config must be a MambaConfig, got {type(config).__name__}. Use MambaConfig.from_dict.")
        if backend != "auto" and backend not in NAMES:
            raise ValueError(f"backend must be 'auto' or one of {', '.join(NAMES)}, got {backend!r}.")
        self.n_features = as_int(n_features, "n_features", minimum=1)
        self.n_outputs = self.n_features if n_outputs is None else as_int(n_outputs, "n_outputs", minimum=1)
        self.in_layer = nn.Linear(self.n_features, config.d_model)
        self.layers = nn.ModuleList(MambaBlock(config, backend) for _ in range(config.n_layer))
        norm: type[RMSNorm] | type[LayerNorm] = RMSNorm if config.rms_norm else LayerNorm
        self.norm_f = norm(config.d_model, eps=config.norm_epsilon)
        self.out_layer = nn.Linear(config.d_model, self.n_outputs)
        initialise(self, config)

    def forward(self, inputs: Tensor, boundaries: Boundaries) -> Tensor:
        """Map ``inputs`` float [T, F] to predictions [T, G].

        Args:
            boundaries: where each series starts in the T positions.

        Raises:
            ValueError: another shape, or boundaries of another number of positions.
        """
        if not isinstance(inputs, Tensor) or not isinstance(boundaries, Boundaries):
            raise ValueError(
                f"inputs must be a tensor and boundaries Boundaries, got {type(inputs).__name__} and "
                f"{type(boundaries).__name__}. pack_series makes both."
            )
        if inputs.dim() != 2:
            raise ValueError(
                f"inputs must be [T, {self.n_features}], got {list(inputs.shape)}. Lay series end to end with "
                f"pack_series."
            )
        if inputs.shape[1] != self.n_features:
            raise ValueError(
                f"inputs must be [T, {self.n_features}], got {list(inputs.shape)}. Build the model with "
                f"n_features={inputs.shape[1]}, or give series of {self.n_features}."
            )
        if boundaries.n_tokens != inputs.shape[0]:
            raise ValueError(f"boundaries cover {boundaries.n_tokens} positions, inputs has {inputs.shape[0]}.")
        x = self.in_layer(inputs)
        for layer in self.layers:
            x = layer(x, boundaries)
        predicted: Tensor = self.out_layer(self.norm_f(x))
        return predicted


@dataclass(frozen=True, eq=False)
class SeriesBatch:
    """Series end to end.

    Attributes:
        inputs: float32 [T, F].
        targets: float32 [T, G]; 0 where none counts.
        counted: bool [T], which positions have a target.
        boundaries: over the T positions.
        sequence: int64 [S], each series' index in the data.
    """

    inputs: Tensor
    targets: Tensor
    counted: Tensor
    boundaries: Boundaries
    sequence: Tensor

    def to(self, device: torch.device | str) -> SeriesBatch:
        """The same batch on ``device``."""
        return replace(
            self,
            inputs=self.inputs.to(device),
            targets=self.targets.to(device),
            counted=self.counted.to(device),
            boundaries=self.boundaries.to(device),
            sequence=self.sequence.to(device),
        )


def pack_series(
    series: Sequence[Series], *, indices: Sequence[int] | None = None, targets: Sequence[Series] | None = None
) -> SeriesBatch:
    """Lay series end to end, with no padding.

    Args:
        series: float [n, F] each, on the host; n may differ.
        indices: which of them, in this order; all by default.
        targets: float [n, G] for each series, where every position counts. By default the next row of the same series:
            its last position has none.

    Raises:
        ValueError: no list of series, a series that is not [n, F], one of another F, targets of another length, an
            index that no series has, a number that is not finite.
    """
    n = _count(series, "series")
    chosen = range(n) if indices is None else [as_int(i, "indices", minimum=0) for i in indices]
    if not chosen:
        raise ValueError("series is empty: there is nothing to pack. Give at least one.")
    if (last := max(chosen)) >= n:
        raise ValueError(f"indices has {last}, but there are {n} series, 0 to {n - 1}.")
    if targets is not None and _count(targets, "targets") != n:
        raise ValueError(f"targets has {len(targets)} entries and series {len(series)}: one for each is needed.")
    rows = [_as_rows(series[i], f"series[{i}]") for i in chosen]
    _require_equal_width(rows, chosen, "series")
    if targets is None:
        after = [np.concatenate((row[1:], np.zeros_like(row[:1]))) for row in rows]
        counted = [np.arange(len(row)) < len(row) - 1 for row in rows]
    else:
        after = [_as_rows(targets[i], f"targets[{i}]") for i in chosen]
        _require_equal_width(after, chosen, "targets")
        counted = [np.ones(len(row), bool) for row in rows]
        for i, row, own in zip(chosen, rows, after, strict=True):
            if len(row) != len(own):
                raise ValueError(f"targets[{i}] has {len(own)} rows, its series {len(row)}: one for each is needed.")
    return SeriesBatch(
        inputs=torch.from_numpy(np.concatenate(rows)),
        targets=torch.from_numpy(np.concatenate(after)),
        counted=torch.from_numpy(np.concatenate(counted)),
        boundaries=Boundaries.from_lengths([len(row) for row in rows]),
        sequence=torch.tensor(list(chosen), dtype=torch.int64),
    )


def series_batches(
    series: Sequence[Series], capacity: int, *, targets: Sequence[Series] | None = None, name: str = "series"
) -> list[SeriesBatch]:
    """All series in batches of at most ``capacity`` positions; none is cut, none is left out.

    Args:
        name: what errors call them.

    Raises:
        ValueError: a series longer than ``capacity``, or as for ``pack_series``.
    """
    rows = [_as_rows(series[i], f"{name}[{i}]") for i in range(_count(series, name))]
    _require_equal_width(rows, range(len(rows)), name)
    lengths = [len(row) for row in rows]
    if longer := [number for number, length in enumerate(lengths) if length > as_int(capacity, "capacity", minimum=1)]:
        raise ValueError(
            f"{name}[{longer[0]}] has {lengths[longer[0]]} positions, above the capacity {capacity}. Raise it to at "
            f"least {max(lengths)}, or cut long series before."
        )
    plan = pack_greedy(lengths, capacity, buffer_size=max(len(lengths), 1))
    return [pack_series(rows, indices=[piece[0] for piece in pieces], targets=targets) for pieces in plan.bins()]


def regression_loss(distance: str | Distance = "mse", regulariser: Callable[[nn.Module], Tensor] | None = None) -> Loss:
    """A loss for ``backward`` and ``evaluate``: the mean, over the positions that count, of the distance to the target.

    Args:
        distance: "mse", "l1", "smooth_l1", or a function of (prediction, target), [n, G] each, to the loss of each
            entry [n, G], of which the mean over G counts, or of each position [n].
        regulariser: of the model, a scalar that is added to the mean once a step, in however many pieces it is run.

    Raises:
        ValueError: an unknown distance; when the loss is computed, a distance of another shape.
    """
    if not callable(distance) and distance not in DISTANCES:
        raise ValueError(
            f"distance must be one of {', '.join(map(repr, DISTANCES))} or a function of (prediction, target), got "
            f"{shown(distance)}."
        )
    require_function(regulariser, "regulariser", "the model")
    function = distance if callable(distance) else DISTANCES[distance]

    def loss(model: nn.Module, batch: SeriesBatch) -> tuple[Tensor, Tensor]:
        prediction = model(batch.inputs, batch.boundaries)
        if prediction.shape != batch.targets.shape:
            raise ValueError(
                f"the model predicts {list(prediction.shape)}, and targets are {list(batch.targets.shape)}. Build it "
                f"with n_outputs={batch.targets.shape[1]}."
            )
        with torch.autocast(prediction.device.type, enabled=False):
            apart = function(prediction.float()[batch.counted], batch.targets[batch.counted])
        n = int(batch.counted.sum())
        if not isinstance(apart, Tensor) or apart.shape[:1] != (n,) or apart.dim() > 2:
            got = list(apart.shape) if isinstance(apart, Tensor) else shown(apart)
            raise ValueError(
                f"distance must give a loss for each entry [{n}, {batch.targets.shape[1]}] or each position [{n}], "
                f"got {got}. Leave the reduction out."
            )
        each = apart.mean(1) if apart.dim() == 2 else apart
        weight = batch.counted.sum().float()
        total = each.sum()
        # The step divides by the weights of all its pieces: so the regulariser counts once, however many there are.
        return (total if regulariser is None else total + _scalar(regulariser(model)) * weight), weight

    return loss


def _scalar(value: Any) -> Any:
    if (isinstance(value, Tensor) and not value.dim()) or isinstance(value, int | float):
        return value
    got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else shown(value)
    raise ValueError(f"regulariser must give a scalar, got {got}. Add its entries up.")


def _count(values: Any, name: str) -> int:
    """How many there are in a list, or in an array that has an axis for them."""
    if (
        isinstance(values, str | bytes | Mapping)
        or not hasattr(values, "__getitem__")
        or not hasattr(values, "__len__")
    ):
        raise ValueError(f"{name} must be a list of arrays [n, F], got {shown(values)}.")
    return len(values)


def _as_rows(values: Series, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        array = tensor_on_host(values, name) if isinstance(values, Tensor) else np.asarray(values)
        with np.errstate(over="ignore"):  # what becomes infinite is named below
            array = array.astype(np.float32)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be an array of numbers [n, F] on the host: {error}") from error
    if array.ndim != 2 or not array.size:
        raise ValueError(f"{name} must be [n, F] with n of at least 1, got {list(array.shape)}. Write one[:, None].")
    if (bad := np.argwhere(~np.isfinite(array))).size:
        place = ", ".join(map(str, bad[0]))
        raise ValueError(
            f"{name}[{place}] is {array[tuple(bad[0])]}. Fill gaps before, scale what float32 does not hold, or leave "
            f"the series out."
        )
    return array


def _require_equal_width(rows: list[np.ndarray[Any, Any]], numbers: Sequence[int], name: str) -> None:
    for number, row in zip(numbers, rows, strict=True):
        if row.shape[1] != rows[0].shape[1]:
            raise ValueError(
                f"{name}[{number}] has {row.shape[1]} features, {name}[{numbers[0]}] has {rows[0].shape[1]}: all need "
                f"the same."
            )
