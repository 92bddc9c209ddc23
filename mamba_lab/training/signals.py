"""Ctrl-C, SIGTERM and SIGHUP as a wish that the loop reads between two steps; a second one ends at once."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

log = logging.getLogger("mamba_lab")

STOPPING = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAME_PRESS_SECONDS = 0.3
"""A signal this soon after the first is its echo: a terminal sends Ctrl-C to every process of a group, and a wrapper
such as ``make`` or ``torchrun`` passes it on once more."""


class StopRequests:
    """Inside the block, the first SIGINT, SIGTERM or SIGHUP (a terminal was closed) asks for a stop; the second stops.

        with StopRequests() as stop:
            for batch in batches:
                ...
                if stop.requested:
                    save_checkpoint(...)
                    break

    The second raises KeyboardInterrupt (SIGINT) or SystemExit (143 for SIGTERM, 129 for SIGHUP) wherever the program
    is; a checkpoint that is being written then leaves nothing behind. Afterwards the handlers that were there before
    are back.

    A signal that this process was told to ignore, as ``nohup`` and a shell's ``&`` do, stays ignored. Signals reach the
    main thread only: in another one ``requested`` stays None.

    Attributes:
        requested: None, or the name of the signal that asked: "SIGINT", "SIGTERM", "SIGHUP".
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # None: set by a library in C, which Python can neither name nor put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if self.requested is None:
            self.requested, self._since = name, now
            again = "press Ctrl-C again" if number == signal.SIGINT else "send it again"
            with contextlib.suppress(RuntimeError):  # the signal came while that stream was being written to
                log.warning("%s: stopping after this step, with a checkpoint; %s to end at once", name, again)
        elif now - self._since >= SAME_PRESS_SECONDS:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
