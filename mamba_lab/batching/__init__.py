"""From token sequences to training batches that know their boundaries."""

from __future__ import annotations

from .batch import Batch
from .boundaries import Boundaries
from .chunking import chunk_fixed
from .collate import pack_collate, pad_collate
from .plan import PackingPlan

__all__ = ["Batch", "Boundaries", "PackingPlan", "chunk_fixed", "pack_collate", "pad_collate"]
