"""Messages that a reader should see once, not once a batch, and those of another library as a list."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

logger = logging.getLogger("mamba_lab")


@lru_cache(maxsize=256)
def log_once(level: int, message: str) -> None:
    """Log ``message`` the first time it comes up in this process."""
    logger.log(level, message)


@contextmanager
def messages_of(library: str) -> Iterator[list[str]]:
    """What ``library`` logs inside the block, and what Python warns of, as a list that is complete at its end.

    Nothing of it is shown meanwhile. The list has the log's messages first, each as a reader would see it. Handlers
    that the library has set up on its logger are back afterwards; import it before, so that there are some.

    Args:
        library: the name of its logger, such as "transformers".
    """
    messages: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    its_logger = logging.getLogger(library)
    usual, passes_on = its_logger.handlers[:], its_logger.propagate
    its_logger.handlers[:], its_logger.propagate = [listener], False
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield messages
    finally:
        its_logger.handlers[:], its_logger.propagate = usual, passes_on
    messages += [str(warning.message) for warning in warned]
