from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from stream_help import OneAfterAnother, contents, corpus, some_lengths, stream
from torch.utils.data import DataLoader

from mamba_lab.batching import PackedStream


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mamba_lab")]


def until(condition: Callable[[], bool]) -> None:
    """Wait for threads; fails after ten seconds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, our_threads()
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not our_threads())


def identity(document: Any) -> Any:
    return document


@pytest.mark.parametrize("workers", [1, 3])
def test_all_threads_end_with_the_epoch(workers: int) -> None:
    one = stream(corpus(some_lengths(50)), workers=workers)
    running = iter(one)
    next(running)
    assert len(our_threads()) == 2 + workers
    list(running)
    assert our_threads() == []


@pytest.mark.parametrize("way", ["break", "close", "collected", "in a cycle"])
def test_leaving_early_ends_all_threads(way: str) -> None:
    one = stream(OneAfterAnother(corpus([32] * 1_000)), workers=2)
    if way == "break":
        for _ in one:
            break
    else:
        running: Any = iter(one)
        next(running)
        assert our_threads()
        if way == "close":
            running.close()
        elif way == "in a cycle":
            cycle: list[Any] = [running]
            cycle.append(cycle)
            del cycle
        del running
        gc.collect()
    assert our_threads() == []


def test_an_error_that_is_kept_keeps_no_thread() -> None:
    # Its traceback holds all that the loop held.
    running: Any = iter(stream(corpus([32] * 100), workers=1))
    next(running)
    with pytest.raises(KeyboardInterrupt) as caught:
        running.throw(KeyboardInterrupt())
    assert our_threads() == []
    assert caught.value.__traceback__ is not None


def test_leaving_while_the_threads_are_busy() -> None:
    # Two threads are each at the beginning of a chunk. They finish the document they are at, not the chunk.
    begun: list[int] = []
    going, release = threading.Event(), threading.Event()

    def tokenize(document: Any) -> Any:
        number = int(document[0]) // 1_000
        if number >= 64:
            begun.append(number)
            if len(begun) == 2:
                going.set()
            release.wait(10)
        return document

    one = stream(OneAfterAnother(corpus([32] * 200)), workers=2, tokenize=tokenize, buffer_size=64)
    running: Any = iter(one)
    next(running)
    assert going.wait(10)
    threading.Timer(0.05, release.set).start()
    running.close()
    assert our_threads() == []
    assert sorted(begun) == [64, 80]


@pytest.mark.parametrize("by_number", [True, False])
def test_leaving_while_documents_are_read(by_number: bool) -> None:
    # The thread that reads finishes the document it is at, not the buffer.
    read: list[int] = []
    going, release = threading.Event(), threading.Event()

    class ByNumber:
        def __len__(self) -> int:
            return 200

        def __getitem__(self, number: int) -> Any:
            read.append(number)
            if number >= 64:
                going.set()
                release.wait(10)
            return [number] * 32

    documents = ByNumber()
    source: Any = documents if by_number else lambda: (documents[number] for number in range(200))
    running: Any = iter(stream(source, workers=1, buffer_size=64, shuffle=False))
    next(running)
    assert going.wait(10)
    threading.Timer(0.05, release.set).start()
    running.close()
    assert our_threads() == []
    assert len(read) == 65


def test_no_thread_without_workers() -> None:
    running = iter(stream(corpus([32] * 30), workers=0))
    next(running)
    assert our_threads() == []


@pytest.mark.parametrize(("workers", "by_number"), [(0, True), (0, False), (1, False), (3, True)])
def test_memory_is_bounded(workers: int, by_number: bool) -> None:
    documents = corpus([32] * 500)
    source = OneAfterAnother(documents)
    read: list[int] = []

    def tokenize(document: Any) -> Any:
        read.append(1)
        return document

    one = stream(
        documents if by_number else source,
        workers=workers,
        prefetch=3,
        buffer_size=20,
        check_batches=0,
        tokenize=tokenize,
    )
    running: Any = iter(one)
    for taken in range(1, 101):
        next(running)
        if taken % 25 == 0:
            time.sleep(0.02)  # as far as the threads get
            # The buffer in use and one ahead; what is prefetched lies at most a buffer further.
            ahead = 20 if workers == 0 else 20 + 20 + 3
            assert len(read) <= -(-taken // 20) * 20 + ahead
            if not by_number:
                assert source.read <= -(-taken // 20) * 20 + ahead
    running.close()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_in_tokenize_names_the_document(workers: int) -> None:
    def tokenize(document: Any) -> Any:
        number = int(document[0]) // 1_000
        if number in (33, 35):
            raise KeyError("no such word")
        return document

    one = stream(OneAfterAnother(corpus([32] * 60)), workers=workers, tokenize=tokenize, check_batches=2)
    got: list[Any] = []
    with pytest.raises(RuntimeError, match="document 33: tokenize failed: KeyError: 'no such word'") as caught:
        got.extend(one)
    assert isinstance(caught.value.__cause__, KeyError)
    # All buffers before it came out.
    assert len(got) == 30


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [OSError("disk gone"), StopIteration("odd"), ValueError("bad line")])
def test_an_error_in_the_source_names_the_document(workers: int, error: Exception) -> None:
    class Source:
        def __iter__(self) -> Iterator[Any]:
            return self.Reader()

        class Reader:
            n = -1

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> Any:
                self.n += 1
                if self.n == 25 and not isinstance(error, StopIteration):
                    raise error
                if self.n == 30:
                    raise StopIteration
                return [1] * 32

    one = stream(Source(), workers=workers, check_batches=0)
    if isinstance(error, StopIteration):
        assert len(list(one)) == 30
        return
    kind = ValueError if isinstance(error, ValueError) else RuntimeError
    with pytest.raises(kind, match=f"document 25 cannot be read: {type(error).__name__}: {error}"):
        list(one)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_by_number_and_at_the_start(workers: int) -> None:
    class Broken:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise OSError("gone")
            return [1, 2]

    with pytest.raises(RuntimeError, match="document 7 cannot be read: OSError: gone"):
        list(stream(Broken(), workers=workers))

    def opened() -> Any:
        raise FileNotFoundError("no file")

    with pytest.raises(RuntimeError, match="documents cannot be read: FileNotFoundError: no file"):
        list(stream(opened, workers=workers))


def test_a_stop_iteration_in_tokenize_does_not_end_the_epoch() -> None:
    def tokenize(document: Any) -> Any:
        raise StopIteration

    for workers in (0, 2):
        with pytest.raises(RuntimeError, match="document 0: tokenize failed: StopIteration"):
            list(stream(corpus([4] * 3), workers=workers, shuffle=False, tokenize=tokenize))


def test_an_exit_in_a_thread_reaches_the_reader() -> None:
    def tokenize(document: Any) -> Any:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        list(stream(corpus([4] * 3), workers=2, tokenize=tokenize))


def test_two_iterations_at_once_do_not_disturb_each_other() -> None:
    one = stream(corpus(some_lengths(60)), workers=1)
    whole = [contents(batch) for batch in one]
    assert [(contents(a), contents(b)) for a, b in zip(one, one, strict=True)] == list(zip(whole, whole, strict=True))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_in_a_data_loader(num_workers: int) -> None:
    documents = corpus(some_lengths(60))
    one = stream(documents, workers=2)
    expected = [(contents(batch), batch.stream_state) for batch in one]
    loader: Any = DataLoader(one, batch_size=None, num_workers=num_workers)
    assert [(contents(batch), batch.stream_state) for batch in loader] == expected
    one.load_state_dict(expected[4][1])  # type: ignore[arg-type]
    assert [contents(batch) for batch in loader] == [held for held, _ in expected[5:]]
    # A training loop names its epoch, and the next one is whole again. Leaving it early ends the worker's threads.
    one.set_epoch(1)
    other = [contents(batch) for batch in one]
    for batch in loader:
        assert contents(batch) == other[0]
        break


def test_several_loader_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A real DataLoader takes ten seconds to get over any data set's error in two workers.
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: SimpleNamespace(num_workers=2))
    with pytest.raises(ValueError, match=r"num_workers=2, and each would give every batch again.*workers=4"):
        list(stream(corpus([5] * 10)))


def test_a_collection_in_the_stream_s_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread that finds the abandoned iteration is the one that the others wait for.
    abandoned = threading.Event()
    collected = threading.Event()

    def tokenize(document: Any) -> Any:
        if int(document[0]) >= 12_000:
            abandoned.wait(10)
            gc.collect()
            collected.set()
        return document

    monkeypatch.setattr("mamba_lab.batching._stream_threads.JOIN_SECONDS", 60.0)
    gc.disable()
    try:
        running: Any = iter(stream(OneAfterAnother(corpus([32] * 100)), workers=1, tokenize=tokenize, check_batches=0))
        next(running)
        cycle: list[Any] = [running]
        cycle.append(cycle)
        del running, cycle
        abandoned.set()
        assert collected.wait(10)
        until(lambda: not our_threads())
    finally:
        gc.enable()


def test_a_pickled_stream_gives_the_same_batches() -> None:
    one = stream(OneAfterAnother(corpus(some_lengths(40))), tokenize=identity, workers=1)
    running: Any = iter(one)
    next(running)
    copy: PackedStream = pickle.loads(pickle.dumps(one))
    assert copy.state_dict() == one.state_dict()
    running.close()
    assert [contents(batch) for batch in copy] == [contents(batch) for batch in one]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle() -> None:
    one = stream(corpus([32] * 60), workers=1, prefetch=1)
    running: Any = iter(one)
    next(running)
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(20)
        try:
            try:
                next(running)
            except RuntimeError as error:
                code = 0 if "Begin a new one in this process" in str(error) else 2
            if code == 0 and len(list(one)) != 60:
                code = 3
            running.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(running)) == 59


PROGRAM = """
import sys, time
from mamba_lab.batching import PackedStream
def documents():
    for number in range(10**9):
        yield [number] * 8
stream = PackedStream(documents, 32, pad_id=0, workers=2, buffer_size=16, check_batches=0)
running = iter(stream)
next(running)
print("begun", flush=True)
if WAIT:
    try:
        for batch in running:
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(7)
"""


def test_ctrl_c_ends_the_program() -> None:
    program = PROGRAM.replace("WAIT", "True")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "interrupted\n"
        assert process.returncode == 7
    finally:
        process.kill()


def test_the_program_ends_with_an_iteration_open() -> None:
    program = PROGRAM.replace("WAIT", "False")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "begun\n", "")


def test_a_reader_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("mamba_lab.batching._stream_threads.JOIN_SECONDS", 0.05)
    release, hangs = threading.Event(), threading.Event()

    def documents() -> Iterator[Any]:
        for number in range(100):
            if number == 15:
                hangs.set()
                release.wait(10)
            yield [number] * 32

    running: Any = iter(stream(documents, workers=1, check_batches=0))
    next(running)
    assert hangs.wait(10)  # closed before that, the reader would stop in time
    running.close()
    assert "still inside the documents or tokenize after 0.05 seconds" in caplog.text
    release.set()


FULL = """
import time
from mamba_lab.batching import PackedStream
batches = iter(PackedStream([[1, 2, 3]] * 50_000, 64, pad_id=0, buffer_size=64))
next(batches)
time.sleep(0.3)
"""


def test_the_program_ends_while_the_threads_wait_for_their_reader() -> None:
    # What was made last is ended first: the thread that reads, which waits for nobody but is waited for.
    result = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_worker_that_stays_refuses_a_second_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    one = stream(corpus([32] * 10))
    assert len(list(one)) == len(list(one)) == 10
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: SimpleNamespace(num_workers=1))
    assert len(list(one)) == 10
    with pytest.raises(ValueError, match=r"has given epoch 0 already.*persistent_workers=False"):
        list(one)
    # A loop of one's own inside the worker names its epoch, be it the same, or restores a place.
    one.set_epoch(0)
    batches = list(one)
    one.load_state_dict(batches[3].stream_state)  # type: ignore[arg-type]
    assert len(list(one)) == 6


def test_persistent_workers() -> None:
    loader: Any = DataLoader(stream(corpus([32] * 10)), batch_size=None, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 10
    with pytest.raises(ValueError, match="persistent_workers=False"):
        list(loader)


def test_a_thread_that_the_system_does_not_start_is_the_error_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of joining a thread which never ran."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "mamba_lab tokenize":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(stream(corpus(some_lengths(9)), workers=2))
