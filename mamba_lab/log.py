"""Messages that a reader should see once, not once a batch."""

from __future__ import annotations

import logging
from functools import lru_cache

logger = logging.getLogger("mamba_lab")


@lru_cache(maxsize=256)
def log_once(level: int, message: str) -> None:
    """Log ``message`` the first time it comes up in this process."""
    logger.log(level, message)
