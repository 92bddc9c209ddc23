"""Run a reader's function once, whatever it does: raise, print, loop for ever, change its input."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import io
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from mamba_lab.exercises.compare import AnswerTooLarge, differences, plain, same

_KEPT_PRINTS = 2000


class TimeIsUp(BaseException):
    """Raised inside a function that ran past its time.

    Not an Exception, so that ``except Exception`` doesn't hold it.
    """


@dataclass(frozen=True)
class Outcome:
    """What one call did: its value, or the error that ended it."""

    value: Any = None
    error: str | None = None
    """Class name of the exception; "TimeIsUp" when it ran too long."""
    message: str = ""
    line: str = ""
    """The line of the reader's function that raised, where its source is known."""
    printed: str = ""
    changed: tuple[str, ...] = ()
    """Names of the inputs that the call changed."""

    def agrees(self, other: Outcome) -> bool:
        """The same error, or no error and the same value."""
        return self.error == other.error and (
            self.error is not None or not differences(self.value, other.value, most=1)
        )


def call(f: Callable[..., Any], inputs: dict[str, Any], seconds: float) -> Outcome:
    """``f(*inputs.values())`` on copies of the inputs; never raises. ``seconds`` bounds a loop that doesn't end.

    A single step in C that doesn't end, such as ``sum(itertools.repeat(0))`` in ``f``, can't be stopped.
    """
    given: dict[str, Any] = {}
    kept = _Prints()
    value: Any = None
    error, message, line = None, "", ""
    try:
        with contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept), deadline(seconds):
            given = copy.deepcopy(inputs)
            value = plain(f(*given.values()))
    except BaseException as raised:  # readers' code may raise anything, SystemExit too
        error = type(raised).__name__
        message, line = _describe(raised, f)
    changed = tuple(name for name in given if not _unchanged(given[name], inputs[name]))
    return Outcome(value, error, message, line, kept.getvalue(), changed)


class _Prints(io.StringIO):
    """Keeps the first characters only: an endless loop may print for ever."""

    def write(self, text: str) -> int:
        room = _KEPT_PRINTS - self.tell()
        if room > 0:
            super().write(text[:room])
        return len(text)


def _unchanged(now: Any, before: Any) -> bool:
    try:
        return same(now, before)
    except (AnswerTooLarge, RecursionError):
        return False  # the inputs of an exercise are small and hold no cycle
    except Exception:
        return True  # an input that can't be compared can't be blamed on the reader


def _describe(raised: BaseException, f: Callable[..., Any]) -> tuple[str, str]:
    try:
        message = str(raised)
    except Exception:
        message = ""
    line = ""
    with contextlib.suppress(Exception):
        line = _line(raised, f)
    return message, line


def _line(raised: BaseException, f: Any) -> str:
    """The innermost line in the file of ``f``, counted from the start of the function that holds it."""
    code, line = f.__code__, ""
    inside, walk = _nested(code), traceback.walk_tb(raised.__traceback__)
    for (frame, _), seen in zip(walk, traceback.extract_tb(raised.__traceback__), strict=False):
        if seen.filename != code.co_filename or not seen.lineno or not seen.line:
            continue
        # A comprehension is counted as part of its function; of another function's nothing is said.
        owner = code if frame.f_code in inside else frame.f_code
        if not owner.co_name.startswith("<") or owner is code:
            line = f"line {seen.lineno - owner.co_firstlineno + 1} of {owner.co_name}: {seen.line}"
    return line


def _nested(code: CodeType) -> set[CodeType]:
    """``code`` and the comprehensions and functions written inside it."""
    return {code}.union(*(_nested(const) for const in code.co_consts if isinstance(const, CodeType)))


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in the body after ``seconds``. May be nested: the outer one goes on when the inner one ends."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            yield
    else:
        with _watcher(seconds):
            yield


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """A timer signal: ends sleeps and loops. It repeats, for a loop whose bare ``except`` holds the first one."""

    running, began = True, time.monotonic()

    def stop(signum: int, frame: Any) -> None:
        if running:  # not while the handler below is being taken down
            raise TimeIsUp

    previous = signal.signal(signal.SIGALRM, stop)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - began)), every)


@contextlib.contextmanager
def _watcher(seconds: float) -> Iterator[None]:
    """Where no timer signal exists (Windows, other threads): a thread that raises in this one between two bytecodes."""
    here, done = threading.get_ident(), threading.Event()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(TimeIsUp))
            wait = 0.5

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), None)  # one that came too late
