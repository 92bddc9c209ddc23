"""From token sequences to training batches that know their boundaries."""

from __future__ import annotations

from .audit import BatchAudit, audit_batches
from .batch import Batch
from .boundaries import Boundaries
from .bucketing import Buckets, bucket_by_length
from .chunking import chunk_fixed
from .collate import pack_collate, pad_collate
from .packing import pack_best_fit, pack_greedy, pack_sequential
from .plan import PackingPlan
from .sampler import TokenBudgetSampler
from .stream import PackedStream, StreamCounts
from .target_check import TargetReport, check_targets
from .targets import make_targets

__all__ = [
    "Batch",
    "BatchAudit",
    "Boundaries",
    "Buckets",
    "PackedStream",
    "PackingPlan",
    "StreamCounts",
    "TargetReport",
    "TokenBudgetSampler",
    "audit_batches",
    "bucket_by_length",
    "check_targets",
    "chunk_fixed",
    "make_targets",
    "pack_best_fit",
    "pack_collate",
    "pack_greedy",
    "pack_sequential",
    "pad_collate",
]
