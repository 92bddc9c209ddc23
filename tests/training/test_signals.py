"""Ctrl-C and SIGTERM: the first asks, the second ends; afterwards all is as before."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_help import config, documents, lines, run, same_weights

from mamba_lab.training import checkpoint, session, signals
from mamba_lab.training.checkpoint import latest_checkpoint
from mamba_lab.training.loop import train
from mamba_lab.training.metrics import StepMetrics
from mamba_lab.training.signals import StopRequests


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """As in a terminal, whatever started the tests; and put back if a test fails inside a block."""
    before = {number: signal.getsignal(number) for number in signals.STOPPING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two signals are two, however close."""
    monkeypatch.setattr(signals, "SAME_PRESS_SECONDS", 0.0)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_asks(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    with StopRequests() as stop:
        assert stop.requested is None
        send(number)
        assert stop.requested == number.name
    assert f"{number.name}: stopping after this step, with a checkpoint" in caplog.text


@pytest.mark.usefixtures("no_echo")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_ends(first: signal.Signals) -> None:
    with StopRequests() as stop:
        send(first)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            send(signal.SIGTERM)
        assert ended.value.code == 143
        with pytest.raises(SystemExit) as ended:
            send(signal.SIGHUP)
        assert ended.value.code == 129
        assert stop.requested == first.name


def test_an_echo_of_the_first_is_not_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C goes to all processes of a terminal, and a wrapper passes it on once more."""
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with StopRequests() as stop:
        send(signal.SIGINT)
        now[0] += signals.SAME_PRESS_SECONDS / 2
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert stop.requested == "SIGINT"
        now[0] += signals.SAME_PRESS_SECONDS
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_the_handlers_from_before_are_back() -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    before = signal.getsignal(signal.SIGINT)
    with contextlib.suppress(ZeroDivisionError), StopRequests() as outer:
        with StopRequests() as inner:
            send(signal.SIGTERM)
        assert (inner.requested, outer.requested) == ("SIGTERM", None)
        send(signal.SIGTERM)
        assert outer.requested == "SIGTERM"
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is before


def test_what_the_process_was_told_to_ignore_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopRequests() as stop:
        send(signal.SIGINT)
        assert stop.requested is None
        send(signal.SIGTERM)
        assert stop.requested == "SIGTERM"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_of_a_library_in_c_cannot_be_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals.signal, "signal", lambda number, handler: calls.append((number, handler)))
    calls: list[tuple[int, Any]] = []
    with StopRequests():
        pass
    assert calls[-1][1] is signal.SIG_DFL


def test_a_signal_while_a_line_is_being_written_asks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python refuses to write to a stream from a handler that has interrupted a write to it."""

    def refuses(*_: object) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(signals.log, "warning", refuses)
    with StopRequests() as stop:
        send(signal.SIGTERM)
        assert stop.requested == "SIGTERM"


def test_in_another_thread_nothing_is_touched() -> None:
    found: list[Any] = []

    def work() -> None:
        with StopRequests() as stop:
            found.extend((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None, signal.default_int_handler]


# In a run


def test_ctrl_c_saves_and_the_run_goes_on_from_there(tmp_path: Path) -> None:
    def at_four(step: StepMetrics) -> None:
        if step.step == 4:
            send(signal.SIGINT)

    whole = run(config(tmp_path, tmp_path / "whole"))
    part = train(config(tmp_path, tmp_path / "part"), documents=documents(), on_step=at_four)
    assert (part.stopped, part.steps) == ("signal", 4)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    rest = run(config(tmp_path, tmp_path / "part"), resume=True)
    assert rest.stopped == "finished"
    assert same_weights(rest.model, whole.model)


@pytest.mark.parametrize("place", ["validation", "checkpoint"])
def test_sigterm_at_work_other_than_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The validation or the checkpoint is finished first, and the run goes on with nothing missing or doubled."""
    settings = {"training": {"eval_steps": 3, "save_steps": 3}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    owner, name = (session, "evaluate") if place == "validation" else (checkpoint, "write_manifest")
    real = getattr(owner, name)

    def signalled(*args: Any, **kwargs: Any) -> Any:
        send(signal.SIGTERM)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, signalled)
    part = run(config(tmp_path, tmp_path / "part", **settings))
    assert (part.stopped, part.steps) == ("signal", 3)
    assert [step for step, _ in part.validation] == [3]
    monkeypatch.undo()
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert same_weights(rest.model, whole.model)
    assert rest.validation == whole.validation
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")


@pytest.mark.usefixtures("no_echo")
def test_a_second_ctrl_c_in_the_last_checkpoint_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training": {"save_steps": 3}}
    whole = run(config(tmp_path, tmp_path / "whole", **settings))
    real = checkpoint.write_manifest

    def impatient(folder: Path, step: int, *rest: Any) -> None:
        if step == 5:
            send(signal.SIGINT)
        real(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "write_manifest", impatient)
    with pytest.raises(KeyboardInterrupt):
        run(config(tmp_path, tmp_path / "part", **settings), stop_at=5)
    found = latest_checkpoint(tmp_path / "part")
    assert found is not None
    assert found.name == "step-00000003"
    assert [each.name for each in found.parent.iterdir()] == ["step-00000003"]
    monkeypatch.undo()
    rest = run(config(tmp_path, tmp_path / "part", **settings), resume=True)
    assert same_weights(rest.model, whole.model)
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")
