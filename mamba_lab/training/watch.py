"""Looks at every step's numbers and says which batch is wrong, and what it usually is."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from mamba_lab.batching import Batch

from .metrics import StepMetrics

_SHOWN = 8


class Watch:
    """Warns of padding that pays for nothing, of numbers that are none, and of a gradient unlike those before.

    Args:
        low_ratio: a valid ratio under it is low.
        patience: steps that the ratio is taken over, all their tokens over all their positions. It is said once, and
            again only after the ratio has recovered.
        jump: a gradient norm above this many medians is a jump.
        window: steps that the median is taken over.
        settled: steps before which there is no median yet: the first gradients of a new model are large.
    """

    def __init__(
        self, *, low_ratio: float = 0.8, patience: int = 50, jump: float = 10.0, window: int = 100, settled: int = 20
    ) -> None:
        self.low_ratio, self.patience, self.jump, self.settled = low_ratio, patience, jump, settled
        self._norms: deque[float] = deque(maxlen=window)
        self._filled: deque[tuple[int, int]] = deque(maxlen=patience)  # tokens and positions of a step
        self._said_low = self._said_empty = False

    def look(self, step: StepMetrics, batches: Sequence[Batch], micro_losses: Sequence[float] = ()) -> list[str]:
        """What is wrong with this step, each with the batch's name and the likely cause.

        Args:
            batches: the step's micro-batches.
            micro_losses: the sum of losses of each; with them the one is named that is not finite.
        """
        found = [self._not_finite(step, batches, micro_losses), self._jump(step, batches)]
        found += [self._padding(step, batches), self._empty(step, batches)]
        return [message for message in found if message is not None]

    def state_dict(self) -> dict[str, Any]:
        """What later warnings depend on, fit for JSON."""
        return {
            "norms": list(self._norms),
            "filled": [list(pair) for pair in self._filled],
            "said_low": self._said_low,
            "said_empty": self._said_empty,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as after ``state``."""
        self._norms.clear()
        self._norms.extend(state["norms"])
        self._filled.clear()
        self._filled.extend((tokens, positions) for tokens, positions in state["filled"])
        self._said_low, self._said_empty = bool(state["said_low"]), bool(state["said_empty"])

    def _not_finite(self, step: StepMetrics, batches: Sequence[Batch], micro_losses: Sequence[float]) -> str | None:
        if math.isfinite(step.loss) and math.isfinite(step.grad_norm):
            return None
        wrong = [number for number, value in enumerate(micro_losses) if not math.isfinite(value)]
        what = f"loss {step.loss}" if wrong or not math.isfinite(step.loss) else f"gradient norm {step.grad_norm}"
        where = f", micro-batch {wrong[0] + 1} of {len(batches)}" if wrong and len(batches) > 1 else ""
        guilty = [batches[wrong[0]]] if wrong and wrong[0] < len(batches) else batches
        return (
            f"{what} in {name_of(step, guilty, where)}. The weights stay as they were. Likely: a learning rate too "
            f"high (it was {step.learning_rate:.3g}), no warm-up, or float16 where bfloat16 belongs. If every step "
            f"says this from here on, the weights themselves are broken: go back to a checkpoint."
        )

    def _jump(self, step: StepMetrics, batches: Sequence[Batch]) -> str | None:
        if step.skipped:
            return None
        median = statistics.median(self._norms) if len(self._norms) >= self.settled else math.inf
        self._norms.append(step.grad_norm)
        if step.grad_norm <= self.jump * median:
            return None
        return (
            f"gradient norm {step.grad_norm:.3g}, {step.grad_norm / median:.0f} times its median {median:.3g}, in "
            f"{name_of(step, batches)}. Likely: a batch unlike the others (read its sequences), a step with few "
            f"targets (it had {step.targets:,}), or a learning rate too high. Clipping shortens it."
        )

    def _padding(self, step: StepMetrics, batches: Sequence[Batch]) -> str | None:
        self._filled.append((step.tokens, step.positions))
        tokens, positions = (sum(values) for values in zip(*self._filled, strict=True))
        # Over all of them together: one full batch among many half empty ones changes little.
        low = tokens < self.low_ratio * positions
        if len(self._filled) < self.patience or low == self._said_low:
            return None
        self._said_low = low
        if not low:
            return None
        return (
            f"valid ratio {tokens / positions:.0%} over the last {self.patience} steps, under {self.low_ratio:.0%}, up "
            f"to {name_of(step, batches)}: the rest of the work is padding. Likely: one long sequence among short "
            f"ones, or batches drawn first and bucketed after. Use buckets with a token budget, or pack: "
            f"packing.scheme."
        )

    def _empty(self, step: StepMetrics, batches: Sequence[Batch]) -> str | None:
        if step.targets or self._said_empty:
            return None
        self._said_empty = True
        return (
            f"no target in {name_of(step, batches)}: nothing was learnt, and the weights stay as they were. Likely: "
            f"too much is masked (data.teach), or the labels are. Later steps without a target are counted as skipped "
            f"and not named."
        )


def name_of(step: StepMetrics, batches: Sequence[Batch], where: str = "") -> str:
    """A step's batch in words: where it came, the data-set indices of its sequences, and its longest sequence."""
    indices = list(dict.fromkeys(i for batch in batches for i in batch.sequence.tolist() if i >= 0))
    shown = ", ".join(map(str, indices[:_SHOWN]))
    more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
    longest = max((batch.max_seqlen for batch in batches), default=0)
    return f"step {step.step}{where} (epoch {step.epoch}, sequences {shown or 'none'}{more}, longest {longest:,})"
