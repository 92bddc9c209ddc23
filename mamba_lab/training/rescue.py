"""An error ends a run, not what it has reached: the last finished step is saved before the error goes on its way."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("mamba_lab")


@contextmanager
def saved_on_error(session: Session) -> Iterator[None]:
    """Around the steps: whatever error ends the block, a checkpoint of the last finished step is written first.

    The error goes on, and a line of the log says where the run goes on from. An error in the middle of an update leaves
    weights of no step; they are not written. A second Ctrl-C is no error: it ends at once.
    """
    try:
        yield
    except Exception as error:
        if session.folder is not None and session.state.step:
            log.error("%s", _keep(session, error))
        raise


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was what was missing, for the error or for what caused it.

    Of the CPU's PyTorch says so in words. An operator in C++ only says which call failed, on either device.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or _IN_WORDS.search(str(error)):
            return True
        error = error.__cause__
    return False


_IN_WORDS = re.compile(
    r"can't allocate memory|out of memory|\"aten::(new_empty|contiguous)\".*API call failed", re.DOTALL
)


def _keep(session: Session, error: Exception) -> str:
    """Save what was reached. Returns what became of it, in words."""
    step = session.state.step
    ended = f"{'out of memory' if is_out_of_memory(error) else type(error).__name__} after step {step:,}"
    if not session.whole:
        return (
            f"{ended}, in the middle of an update: the weights are of no step and are not saved. --resume (in Python "
            f"resume=True) goes on from the newest checkpoint, if there is one."
        )
    # Room first, for the copies that writing takes. The gradients belong to the step that is lost; so do what its
    # frames hold, which only a debugger would want.
    session.model.zero_grad(set_to_none=True)
    if is_out_of_memory(error):
        traceback.clear_frames(error.__traceback__)
    try:
        session.save()
    except Exception as second:  # such as a GPU that answers nothing any more
        first = (str(second).splitlines() or [type(second).__name__])[0]
        return (
            f"{ended}, and that step cannot be saved: {first} --resume (in Python resume=True) goes on from the newest "
            f"checkpoint, if there is one."
        )
    return f"{ended}, which is saved. --resume (in Python resume=True) goes on from there."
