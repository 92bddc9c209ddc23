"""Threads that work ahead, a bounded distance, and end when nobody needs them any more."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from mamba_lab.log import logger

T = TypeVar("T")
A = TypeVar("A")

# A thread inside a reader or a tokenizer cannot be interrupted. Longer than this nobody waits for it.
JOIN_SECONDS = 5.0


class Stopped(Exception):
    """Raised in a thread that was told to stop. It never reaches the reader."""


class _Thread(threading.Thread):
    """One of a stream's own threads. It never waits for another: the other may wait for it."""


class Stop:
    """What the threads of one iteration share: the flag that ends them, and who they are."""

    def __init__(self) -> None:
        self.requested = False
        self._threads: list[_Thread] = []
        self._waits: list[SimpleQueue[bool]] = []

    def check(self) -> None:
        """Raise ``Stopped`` once a stop was requested."""
        if self.requested:
            raise Stopped

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Run ``target`` in a thread of this iteration."""
        thread = _Thread(target=target, args=args, name=f"mamba_lab {name}", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the system has none left: nobody can wait for a thread that never ran
            self._threads.remove(thread)
            raise

    def waits_for(self, free: SimpleQueue[bool]) -> None:
        """A thread of this iteration waits for ``free`` when its reader is behind. ``request`` wakes it."""
        self._waits.append(free)

    def request(self) -> None:
        """End all threads of this iteration, whichever of them was told to."""
        self.requested = True
        for free in self._waits:
            free.put(False)

    def join(self) -> None:
        """Wait until all threads have ended. In one of a stream's threads this does nothing.

        A garbage collection in such a thread may end the iteration that the thread itself works for.
        """
        if isinstance(threading.current_thread(), _Thread):
            return
        end = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:  # A thread may add some more until it has ended.
            thread.join(max(end - time.monotonic(), 0))
        if any(thread.is_alive() for thread in self._threads):
            logger.warning(
                f"A thread of a PackedStream is still inside the documents or tokenize after {JOIN_SECONDS:g} seconds. "
                f"It ends when that call returns."
            )


class Background(Iterator[T], Generic[T]):
    """The items of an iterator that runs in a thread of its own, at most ``ahead`` items ahead of its reader.

    What the iterator raises, the reader gets, after the items before it. ``close`` ends the thread; so do garbage
    collection and the end of the program. It waits for all threads that share ``stop``.

    Args:
        make: called in the thread; returns the generator.
        ahead: items made but not yet taken, the one in the making included.
        stop: the flag that ``close`` sets.
    """

    # Only SimpleQueues and one plain flag: a garbage collection may run close() in any thread at any place, and
    # queue.Queue, Event and Semaphore hold locks that the interrupted code may hold already.

    def __init__(self, make: Callable[[], Generator[T, None, None]], ahead: int, stop: Stop) -> None:
        self._free: SimpleQueue[bool] = SimpleQueue()
        self._items: SimpleQueue[tuple[Any, BaseException | None, bool]] = SimpleQueue()
        self._process = os.getpid()
        self._ended = False
        for _ in range(ahead):
            self._free.put(True)
        # The thread knows nothing of this object, so this object can be collected while the thread runs.
        stop.waits_for(self._free)
        stop.start("stream", _produce, make, self._free, self._items, stop)
        self.close = weakref.finalize(self, _end, stop, self._process)

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        if os.getpid() != self._process:
            raise RuntimeError(
                "This iteration was begun before the process forked, and its threads stayed in the parent. "
                "Begin a new one in this process: iter(stream)."
            )
        item, error, last = self._items.get()
        if last:
            self._ended = True
            if error is not None:
                raise error
            raise StopIteration
        self._free.put(True)
        result: T = item
        return result


def _produce(
    make: Callable[[], Generator[Any, None, None]],
    free: SimpleQueue[bool],
    items: SimpleQueue[tuple[Any, BaseException | None, bool]],
    stop: Stop,
) -> None:
    failed: BaseException | None = None
    try:
        made = make()
        try:
            while free.get():
                stop.check()
                try:
                    item = next(made)
                except StopIteration:
                    break
                items.put((item, None, False))
                del item
        finally:
            made.close()
    except Stopped:
        pass
    except BaseException as error:
        failed = error
    items.put((None, failed, True))


def _end(stop: Stop, process: int) -> None:
    if os.getpid() == process:
        stop.request()
        stop.join()


class Workers(Generic[A, T]):
    """``n`` threads that apply a function to lists of items; with ``n`` 0 the calling thread does it."""

    def __init__(self, function: Callable[[A], T], n: int, stop: Stop) -> None:
        self._function = function
        self._tasks: SimpleQueue[tuple[list[A], SimpleQueue[Any]] | None] = SimpleQueue()
        self._n = n
        for _ in range(n):
            stop.start("tokenize", _work, function, self._tasks, stop)

    def start(self, items: list[A]) -> Callable[[], list[T]]:
        """Begin with ``items``. The function returned waits for their results, or raises what one of them raised."""
        if not self._n:
            results = [self._function(item) for item in items]
            return lambda: results
        answer: SimpleQueue[Any] = SimpleQueue()
        self._tasks.put((items, answer))
        return lambda: _result(answer)

    def close(self) -> None:
        """End the threads."""
        for _ in range(self._n):
            self._tasks.put(None)


def _work(
    function: Callable[[Any], Any], tasks: SimpleQueue[tuple[list[Any], SimpleQueue[Any]] | None], stop: Stop
) -> None:
    while (task := tasks.get()) is not None:
        _answer(function, *task, stop)
        del task  # The documents need not wait in memory for the next ones.


def _answer(function: Callable[[Any], Any], items: list[Any], answer: SimpleQueue[Any], stop: Stop) -> None:
    try:
        results = []
        for item in items:
            stop.check()
            results.append(function(item))
        answer.put((results, None))
    except BaseException as error:
        answer.put((None, error))


def _result(answer: SimpleQueue[Any]) -> Any:
    results, error = answer.get()
    if error is not None:
        raise error
    return results
