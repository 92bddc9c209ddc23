"""Loss weights of one whole sequence, made before anything is cut or packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from mamba_lab.batching.batch import IGNORE


def sequence_weights(targets: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Each target's weight, so that a sequence counts as one, be it long or short: 1 over its number of targets.

    A token mean listens to whoever speaks most: of two conversations with 10 and 990 targets the second one makes 99%
    of the gradient. With these weights both make half of it (LongAlign, arXiv 2401.18058, section 3.2.2). The weight
    stands where the target stands, so the shift that made the targets holds for it too.

    Args:
        targets: int [n], of the whole sequence; -100 where none counts. A piece would get the weight of a sequence.

    Returns:
        float32 [n], 1 / (number of targets) where there is a target and 0 elsewhere. Without a target all 0.
    """
    counted = np.asarray(targets) != IGNORE
    n = int(np.count_nonzero(counted))
    return counted.astype(np.float32) / np.float32(max(n, 1))
