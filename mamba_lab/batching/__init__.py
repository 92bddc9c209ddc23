"""From token sequences to training batches that know their boundaries."""

from __future__ import annotations

from .batch import Batch
from .boundaries import Boundaries
from .bucketing import Buckets, bucket_by_length
from .chunking import chunk_fixed
from .collate import pack_collate, pad_collate
from .plan import PackingPlan
from .sampler import TokenBudgetSampler

__all__ = [
    "Batch",
    "Boundaries",
    "Buckets",
    "PackingPlan",
    "TokenBudgetSampler",
    "bucket_by_length",
    "chunk_fixed",
    "pack_collate",
    "pad_collate",
]
