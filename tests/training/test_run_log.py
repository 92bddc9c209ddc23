"""What a run writes while it runs: lines that survive a kill, a resume and a full disk; the bar; TensorBoard."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest
from log_help import metrics

from mamba_lab.training.config import TrainConfig
from mamba_lab.training.metrics_file import METRICS, MetricsFile, read_metrics
from mamba_lab.training.run_display import Bar, Waiting, numbers
from mamba_lab.training.run_log import RunLog


def config(**logging_settings: Any) -> TrainConfig:
    return TrainConfig(training={"output_dir": "runs/x"}, logging=logging_settings)


def test_a_line_for_each_thing_that_is_said(tmp_path: Path) -> None:
    with RunLog(config(run_name="first"), tmp_path, 2) as log:
        log.step(metrics(1, loss=math.nan, grad_norm=math.inf, skipped=True))
        log.warning(1, "the loss is not finite", sequences=[3, 4])
        log.step(metrics(2))
        log.validation(2, 4.25, targets=100.0)
        log.gradients(2, {"layers": [{"name": "embedding", "norm": math.nan}], "missing": []})
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "step", "warning", "step", "validation", "gradients"]
    assert {line["format"] for line in lines} == {1}
    assert lines[0] == {"kind": "start", "format": 1, "step": 0, "run_name": "first", "total_steps": 2}
    assert lines[1]["loss"] is None
    assert lines[1]["grad_norm"] is None
    assert lines[3] == {"kind": "step", "format": 1, **metrics(2).to_dict()}
    assert lines[2] == {
        "kind": "warning",
        "format": 1,
        "step": 1,
        "text": "the loss is not finite",
        "sequences": [3, 4],
    }
    assert lines[5]["layers"] == [{"name": "embedding", "norm": None}]
    assert read_metrics(tmp_path) == read_metrics(tmp_path / METRICS) == [lines[1], lines[3]]
    assert read_metrics(tmp_path, "validation") == [lines[4]]
    assert read_metrics(tmp_path, None) == lines


def test_a_line_every_few_steps_and_none_of_weight_left_out(tmp_path: Path) -> None:
    with RunLog(config(logging_steps=4), tmp_path, 10) as log:
        for step in range(1, 11):
            log.step(metrics(step, skipped=step == 7))
    assert [line["step"] for line in read_metrics(tmp_path)] == [4, 7, 8, 10]


def test_a_line_is_in_the_file_before_the_next_step(tmp_path: Path) -> None:
    log = RunLog(config(), tmp_path)
    log.step(metrics(1))
    assert len(read_metrics(tmp_path)) == 1  # not closed: what a kill would leave
    log.close()
    log.close()


def test_a_resumed_run_takes_back_what_it_does_again(tmp_path: Path) -> None:
    with RunLog(config(), tmp_path) as log:
        for step in range(1, 6):
            log.step(metrics(step))
        log.validation(3, 5.0)
        log.validation(4, 5.0)
    with RunLog(config(), tmp_path, after_step=3) as log:
        log.step(metrics(4, loss=1.0))
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert read_metrics(tmp_path)[-1]["loss"] == 1.0
    assert [line["step"] for line in read_metrics(tmp_path, "validation")] == [3]
    assert [line["step"] for line in read_metrics(tmp_path, "start")] == [0, 3]
    with RunLog(config(), tmp_path):  # from the beginning
        pass
    assert [line["kind"] for line in read_metrics(tmp_path, None)] == ["start"]
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]


def test_what_a_kill_has_cut_is_passed_over_and_removed(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    with RunLog(config(), tmp_path) as log:
        log.step(metrics(1))
    whole = path.read_bytes()
    for cut in (b'{"kind": "st', b'{"kind": "step", "step": 2}', b"3", b"\xff\n", b'{"step": 1}\n', b"[]\n"):
        path.write_bytes(whole + cut)
        assert len(read_metrics(tmp_path)) == 1
        with RunLog(config(), tmp_path, after_step=1) as log:
            log.step(metrics(2))
        assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
        assert all(json.loads(line) for line in path.read_text().splitlines())


class Full:
    """A file on a disk that has room for ``room`` more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room, self.closed = file, room, False

    def write(self, data: memoryview) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return int(written)

    def truncate(self, size: int) -> None:
        self.file.truncate(size)

    def close(self) -> None:
        self.file.close()
        self.closed = True


def test_a_full_disk_ends_no_run_and_leaves_whole_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = MetricsFile(tmp_path / METRICS)
    file.write("step", 1, {"loss": 1.0})
    file._file = full = Full(file._file, 20)
    with caplog.at_level(logging.WARNING, "mamba_lab"):
        file.write("step", 2, {"loss": 1.0})
        file.write("step", 3, {"loss": 1.0})
        full.room = 1000
        file.write("step", 4, {"loss": 1.0})
        assert file.lost == 2
        file.close()
    assert "No space left on device" in caplog.messages[0]
    assert caplog.messages[1:] == [f"{tmp_path / METRICS} lacks 2 lines that could not be written"]
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 4]


def test_a_disk_that_is_full_until_the_end(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / METRICS)
    file.write("step", 1, {"loss": 1.0})
    file._file = Full(file._file, 20)
    file.write("step", 2, {"loss": 1.0})
    file.close()
    assert (tmp_path / METRICS).read_bytes().endswith(b"}\n")
    assert len(read_metrics(tmp_path)) == 1


def test_a_place_that_takes_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be written: No such file or directory"):
        RunLog(config(), tmp_path / "no")
    (tmp_path / METRICS).mkdir()
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be written: Is a directory"):
        RunLog(config(), tmp_path)


def test_reading_what_is_not_there_or_from_another_time(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no metrics\.jsonl\. Give the folder that a run has written"):
        read_metrics(tmp_path)
    with pytest.raises(ValueError, match=r"there is no metrics\.jsonl"):
        read_metrics(tmp_path / "no.jsonl")
    (tmp_path / METRICS).write_text('{"kind": "step", "format": 2, "step": 1}\n')
    with pytest.raises(ValueError, match=r"is of format 2, and this version of mamba-lab reads 1"):
        read_metrics(tmp_path)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunLog(config(tensorboard=True), None, 3) as log:
        log.step(metrics(1))
        log.validation(1, 2.0)
        log.gradients(1, {"layers": []})
        assert log.name == "train"
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_run(tmp_path: Path) -> None:
    for settings, name in ((config(), tmp_path.name), (config(run_name="x y"), "x y")):
        with RunLog(settings, tmp_path) as log:
            assert log.name == name


def test_a_warning_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mamba_lab"), RunLog(config(), tmp_path) as log:
        log.warning(12, "100% of it is wrong")
    assert caplog.messages == ["100% of it is wrong"]


def test_a_step_in_one_line() -> None:
    assert numbers(metrics(3), 0.0123) == (
        "loss 3.000  valid 100%  longest 2,048  grad 0.75  1,020 tok/s  lr 1.0e-03  1.2 GiB  wait 1.2%  1:02:05 left"
    )
    line = numbers(metrics(3, seconds_left=59.6, skipped=True, loss=math.nan), 0.0, 2.5)
    assert line.startswith("loss nan  val 2.500  ")
    assert line.endswith("  1:00 left  SKIPPED")
    assert "left" not in numbers(metrics(3, seconds_left=None), 0.0)


def test_the_share_of_waiting_is_over_all_steps() -> None:
    waiting = Waiting()
    assert waiting.add(metrics(1, seconds=0.0, waiting_seconds=0.0)) == 0.0
    assert waiting.add(metrics(1, seconds=3.0, waiting_seconds=1.0)) == pytest.approx(1 / 3)
    assert waiting.add(metrics(2, seconds=1.0, waiting_seconds=0.0)) == pytest.approx(1 / 4)


def test_the_bar_shows_the_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with RunLog(config(progress=True, run_name="bar"), tmp_path, 12, after_step=10) as log:
        log.validation(10, 4.5)
        log.step(metrics(11))
        log.warning(11, "look here")
        log.step(metrics(12))
    shown = capsys.readouterr().err
    assert "bar 12/12 |" in shown
    assert "val 4.500" in shown
    assert "longest 2,048" in shown


@pytest.mark.parametrize("show", [None, False])
def test_no_bar_where_there_is_no_terminal(show: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("x", 2, 0, show)
    bar.step(metrics(1))
    with bar.aside():
        pass
    bar.close()
    assert capsys.readouterr().err == ""


def test_tensorboard_has_the_curves(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLog(config(tensorboard=True), tmp_path, 4) as log:
        for step in range(1, 4):
            log.step(metrics(step, loss=math.nan if step == 2 else float(step)))
        log.validation(3, 7.0)
        log.gradients(3, {"layers": [{"name": "layers.0", "norm": 0.5}]})
    with RunLog(config(tensorboard=True), tmp_path, 4, after_step=2) as log:
        log.step(metrics(3, loss=30.0))
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("watch/loss")] == [(1, 1.0), (3, 30.0)]
    assert [event.step for event in found.Scalars("watch/grad_norm")] == [1, 2, 3]
    assert {"watch/valid_ratio", "watch/longest", "run/learning_rate", "run/tgs"} <= set(found.Tags()["scalars"])


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    text = "wörter, 言葉, a name that is no UTF-8: \udcff"
    file = MetricsFile(tmp_path / METRICS)
    file.write("warning", 1, {"text": text, "x": (1.0, -math.inf), "y": {"z": math.nan}})
    file.close()
    (line,) = read_metrics(tmp_path, "warning")
    assert line == {"kind": "warning", "format": 1, "step": 1, "text": text, "x": [1.0, None], "y": {"z": None}}
    assert "NaN" not in (tmp_path / METRICS).read_text()


@pytest.mark.parametrize("place", ["add_scalar", "close"])
def test_a_disk_that_becomes_full_under_tensorboard_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunLog(config(tensorboard=True), tmp_path, 4) as log:
        monkeypatch.setattr(tensorboard.SummaryWriter, place, full)
        for step in (1, 2):
            log.step(metrics(step))
        log.validation(2, 1.5)
    said = [message for message in caplog.messages if "tensorboard" in message]
    assert said == [f"{tmp_path}/tensorboard cannot be written (No space left on device): training goes on without it"]
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


def test_a_folder_that_tensorboard_cannot_write_is_named_at_the_start(tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(
        ValueError, match=r"^logging\.tensorboard is true, but .*/tensorboard cannot be written: .*exists"
    ):
        RunLog(config(tensorboard=True), tmp_path, 4)
