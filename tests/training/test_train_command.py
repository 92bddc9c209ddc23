"""`mamba-lab train`: what it prints and writes, how it is stopped, and that each mistake is answered in one line."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from log_help import metrics

from mamba_lab import cli
from mamba_lab.log import log_once
from mamba_lab.train_command import Lines, closing_lines
from mamba_lab.training import TrainResult, loop, read_metrics

SETTINGS = """
[data]
corpus = {corpus}
validation_share = 0.2
[packing]
capacity = 32
[training]
output_dir = {output}
max_steps = 4
warmup_steps = 1
device = "cpu"
[model]
d_model = 16
n_layer = 1
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of settings for a run of four steps on thirty documents, in the working folder."""
    monkeypatch.chdir(tmp_path)
    texts = [f"Document {n} tells of {'many ' * (n % 7)}words." for n in range(30)]
    Path("my.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    path = tmp_path / "my.toml"
    path.write_text(SETTINGS.format(corpus='"my.jsonl"', output='"run"'), "utf-8")
    return path


def run(*words: object) -> int:
    return cli.main(["train", *map(str, words)])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    said = [line for line in error.splitlines() if line.startswith("mamba-lab: ")]
    assert len(said) == 1, error
    assert error.splitlines()[-1] == said[0]
    return said[0].removeprefix("mamba-lab: ")


def test_a_run_from_its_file(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(settings) == 0
    out = capsys.readouterr()
    assert "reached training.max_steps after 4 steps, " in out.out
    assert "Validation loss " in out.out
    assert 'Read what it writes: mamba-lab generate run --prompt "The"' in out.out
    assert "step 1  loss 8." in out.err
    assert [line["step"] for line in read_metrics("run")] == [1, 2, 3, 4]
    assert "max_steps = 4\n" in Path("run/config.toml").read_text()
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["step-00000004"]


def test_a_run_goes_on(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(settings, "--set", "training.output_dir=whole", "--set", "training.max_steps=6") == 0
    assert run(settings, "--set", "training.max_steps=6", "--set", "training.save_steps=3") == 0
    assert run("run", "--resume-from", "run/checkpoints/step-00000003", "--set", "training.output_dir=second") == 0
    assert run("run", "--resume") == 0  # it is finished: nothing is left to do
    whole = [line["loss"] for line in read_metrics("whole")]
    assert [line["loss"] for line in read_metrics("second")] == whole[3:]
    assert [line["loss"] for line in read_metrics("run")] == whole
    assert capsys.readouterr().err.count("Traceback") == 0


def test_a_dry_run_says_what_would_be(
    settings: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    assert run(settings, "--dry-run", "--set", "packing.scheme=padded", "--set", "training.max_steps=none") == 0
    out = capsys.readouterr().out
    said = [line for line in [*out.splitlines(), *caplog.messages] if "documents to train on" in line]
    assert len(said) == 1, "once, be it printed or logged"
    assert said[0].startswith("data: ")
    assert logging.getLogger("mamba_lab").level == logging.INFO, "as it was"
    assert "first step (padded): 1 micro-batches, " in out
    assert "parameters, on cpu" in out
    assert "steps, run\n" in out
    assert not Path("run").exists()


def test_without_a_place_nothing_is_kept(
    settings: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(settings, "--set", "training.output_dir=none", "--set", "logging.progress=false") == 0
    out = capsys.readouterr()
    assert caplog.messages[0] == "training.output_dir is not set: neither numbers nor weights are kept"
    assert out.err == ""
    assert "generate" not in out.out
    assert {path.name for path in Path.cwd().iterdir()} == {"my.jsonl", "my.toml"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.toml"], "no.toml: there is no such file. The package has code, gpu-1.4b, gpu-130m, longalign, "),
        (["."], ".: this is a folder, expected a TOML file."),
        (["x\0y"], r"x\x00y: cannot be read: embedded null byte."),
        (["my.jsonl"], "my.jsonl: no TOML: "),
        (["my.toml", "--set", "training.lr=1"], "--set training.lr is no key of [training]. Did you mean training.le"),
        (["my.toml", "--set", "nonsense"], '--set "nonsense": expected section.key=value, such as '),
        (["my.toml", "--set", "data.corpus=no.jsonl"], "data.corpus: there is no file or folder no.jsonl."),
        (
            ["my.toml", "--set", "data.text_field=body"],
            "my.jsonl, line 1: there is no field 'body'; there is 'text'. Choose one with data.text_field.",
        ),
        (["my.toml", "--set", "data.min_seq_len=1000"], "data.corpus: 'my.jsonl' leaves no document to train on ("),
        (["my.toml", "--set", "data.tokenizer=no.json"], "data.tokenizer: there is no file no.json."),
        (["my.toml", "--set", "data.tokenizer=my.jsonl"], "my.jsonl is no tokenizer.json of the tokenizers library"),
        (["my.toml", "--set", "data.teach=assistant"], "document 'my.jsonl:1' (from my.jsonl) is no conversation"),
        (
            ["my.toml", "--set", "packing.overflow=error", "--set", "packing.capacity=4"],
            "document 0 (my.jsonl:1) has 7 tokens",
        ),
        (["my.toml", "--set", "training.output_dir=my.jsonl"], "training.output_dir is "),
        (["my.toml", "--set", "training.output_dir=/proc/no"], "training.output_dir is /proc/no, which takes no files"),
        (["my.toml", "--set", "training.device=cuda:77"], 'training.device is "cuda:77", but PyTorch sees '),
        (["my.toml", "--set", "model.vocab_size=10"], "model.vocab_size is 10, but the tokenizer has 8192 ids."),
        (["my.toml", "--resume-from", "nowhere"], "there is no checkpoint nowhere."),
        (["my.toml", "--resume-from", "my.jsonl"], "there is no checkpoint my.jsonl."),
        (["my.toml", "--resume", "--resume-from", "run"], "--resume and --resume-from were both given. Give one of"),
        (["my.toml", "--dry-run", "--resume"], "--dry-run starts nothing, so it goes without --resume and --resume-f"),
        (
            ["my.toml", "--set", "training.output_dir=none", "--resume"],
            "--resume needs training.output_dir, where the checkpoints are. Set it, or give",
        ),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    line = one_line(capsys)
    assert line.startswith(message)


@pytest.mark.parametrize("text", ["", '{"text": "too short"}\n'])
def test_a_stream_of_nothing_is_no_finished_run(text: str, settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.jsonl").write_text(text)
    given = ("data.streaming=true", "data.validation_share=0", "data.min_seq_len=30")
    assert run(settings, *(word for change in given for word in ("--set", change))) == 1
    assert one_line(capsys).startswith("data.corpus: 'my.jsonl' gave no document to train on (0 documents to train on")
    assert list(Path("run/checkpoints").iterdir()) == []


def test_a_model_to_start_from(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--set", "model.d_model=none", "--set", "model.n_layer=none"]
    assert run(settings, *sizes, "--set", "model.from_pretrained=run", "--set", "training.output_dir=tuned") == 1
    assert "run" in one_line(capsys)
    assert run(settings) == 0
    assert run(settings, *sizes, "--set", "model.from_pretrained=run", "--set", "training.output_dir=tuned") == 0
    assert len(read_metrics("tuned")) == 4
    assert run(settings, "--set", "model.from_pretrained=run", "--set", "training.output_dir=x") == 1
    assert "my.toml with --set: model.d_model is set, but model.from_pretrained" in one_line(capsys)


def test_a_run_that_is_there_is_not_written_over(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(settings) == 0
    before = Path("run/metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert run(settings) == 1
    assert "--resume" in one_line(capsys)
    assert Path("run/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("change", ["training.learning_rate=0.5", "model.d_state=8", "packing.capacity=33"])
def test_a_run_is_resumed_with_its_own_settings(
    change: str, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(settings) == 0
    before = Path("run/metrics.jsonl").read_bytes(), Path("run/config.toml").read_bytes()
    capsys.readouterr()
    assert run(settings, "--resume", "--set", change) == 1
    assert change.partition("=")[0] in one_line(capsys)
    assert (Path("run/metrics.jsonl").read_bytes(), Path("run/config.toml").read_bytes()) == before


def test_a_loss_that_is_not_finite_can_end_a_run(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--set", "training.learning_rate=1e30", "--set", "training.max_grad_norm=0"]
    code = run(settings, *changes, "--set", "training.on_nonfinite=stop", "--set", "training.warmup_steps=0")
    assert code == 1
    out = capsys.readouterr().out
    assert "ended by a loss or gradient that is not finite after " in out
    assert "generate" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_a_checkpoint_and_ends_with_0(number: signal.Signals, settings: Path) -> None:
    command = [sys.executable, "-m", "mamba_lab.cli", "train", "my.toml", "--set", "training.max_steps=100000"]
    command += ["--set", "training.num_train_epochs=100000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file = Path("run/metrics.jsonl")
    deadline = time.monotonic() + 120
    while not (file.exists() and len(read_metrics("run")) > 3):
        assert time.monotonic() < deadline
        assert child.poll() is None, child.stderr
        time.sleep(0.02)
    child.send_signal(number)
    out, error = child.communicate(timeout=60)
    assert child.returncode == 0, error
    steps = len(read_metrics("run"))
    assert f"stopped after {steps:,} steps, " in out
    assert "Go on: mamba-lab train my.toml --resume (with the same --set)" in out
    assert (Path("run/checkpoints") / f"step-{steps:08}").is_dir()


def test_out_of_memory_says_what_takes_less(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> TrainResult:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")

    monkeypatch.setattr("mamba_lab.training.train", fails)
    assert run(settings) == 1
    line = one_line(capsys)
    assert line.startswith(
        "memory does not suffice for this model and batch: CUDA out of memory. Tried to allocate 2.00 GiB. Try "
    )
    assert "training.gradient_checkpointing=true" in line
    assert run(settings, "--set", "packing.rows=4", "--set", "training.gradient_checkpointing=true") == 1
    line = one_line(capsys)
    assert "packing.rows=1" in line
    assert "gradient_checkpointing" not in line


def test_out_of_memory_after_some_steps_says_how_to_go_on(
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real, calls = loop.backward, [0]

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] in (3, 5):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")
        return real(*args, **kwargs)

    monkeypatch.setattr(loop, "backward", fails)
    assert run(settings) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        "mamba-lab: memory does not suffice for this model and batch: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "Go on with --resume --set training.gradient_checkpointing=true (and the same --set as before)."
    )
    assert "out of memory after step 2, which is saved." in caplog.text
    assert Path("run/checkpoints/step-00000002").is_dir()
    assert run(settings, "--resume", "--set", "training.gradient_checkpointing=true") == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "which can start from the weights saved: --set model.from_pretrained=run, half of packing.capacity" in line
    assert run(settings, "--resume", "--set", "training.gradient_checkpointing=true") == 0
    assert [line["step"] for line in read_metrics("run")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (["packing.rows=4"], "packing.rows=1, and"),
        (["packing.scheme=padded", "packing.rows=4", "packing.capacity=64"], "packing.max_tokens=128, and"),
        (["packing.scheme=bucketed", "packing.max_tokens=3000"], "packing.max_tokens=2048, and"),
        (["packing.scheme=bucketed"], "half of packing.capacity, and"),
    ],
)
def test_what_makes_the_batch_smaller(
    given: list[str], remedy: str, settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> TrainResult:
        raise MemoryError

    monkeypatch.setattr("mamba_lab.training.train", fails)
    settings.write_text(settings.read_text().replace("capacity = 32", "capacity = 2048"))
    assert run(settings, *(word for change in given for word in ("--set", change))) == 1
    line = one_line(capsys)
    assert "batch: out of memory. Try --set training.gradient_checkpointing=true or " in line
    assert remedy in line


def test_a_model_larger_than_the_memory(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(settings, "--set", "model.d_model=2147483647") == 1
    assert one_line(capsys).startswith("model.d_model is 2,147,483,647, model.expand 2, ")
    assert run(settings, "--set", "model.d_model=2147483647", "--dry-run") == 1
    assert one_line(capsys).startswith("model.d_model is 2,147,483,647, model.expand 2, ")


def test_a_compiler_that_is_missing_is_one_line(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    # Not monkeypatch: it takes the setting away at the end, for every later test of the process.
    with torch._inductor.config.patch({"cpp.cxx": (None, "/nonexistent/g++")}):
        assert run(settings, "--set", "training.torch_compile=true") == 1
    line = one_line(capsys)
    assert line.startswith("training.torch_compile is true, and PyTorch's compiler failed: ")
    assert "No working C++ compiler found" in line
    torch._dynamo.reset()


def test_a_missing_library_is_one_line(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.modules['pydantic'] = None; from mamba_lab.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "train", "my.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 1
    assert done.stderr == "mamba-lab: mamba_lab.training needs pydantic: pip install 'mamba-lab[train]'.\n"


def test_tensorboard_that_is_missing_is_one_line(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    assert run(settings, "--set", "logging.tensorboard=true") == 1
    assert "logging.tensorboard is true, but the package tensorboard is missing: pip install 'mamba-lab[train]'." in (
        capsys.readouterr().err
    )


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "mamba-lab train my.toml --resume" in out
    assert "exit codes:" in out
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 2


def test_lines_for_a_log_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines()
    for step in range(1, 1001):
        now[0] = 100.0 + 0.5 * step
        lines(metrics(step))
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said[:3]] == ["1", "41", "81"]
    assert len(said) == 25
    Lines(quiet=True)(metrics(1))
    assert capsys.readouterr().err == ""


def test_what_a_run_has_come_to() -> None:
    model: Any = None
    history = [metrics(step, loss=10.0 - step, skipped=step == 3) for step in range(1, 6)]
    result = TrainResult(model, 5, history, [(4, 3.0), (5, 2.5)], "finished", None, 12345, 61.7)
    assert closing_lines(result, "my.toml").splitlines() == [
        "finished after 5 steps, 12,345 tokens, 62 s in steps. Loss 9.000 at the start, 5.000 at the end. "
        "Validation loss 2.500.",
        "1 step left the weights as they were: see the warnings.",
    ]
    own = TrainResult(model, folder=Path("my runs/1"), stopped="signal")
    assert closing_lines(own, "my settings.toml").endswith(
        "mamba-lab train 'my settings.toml' --resume (with the same --set)"
    )
    own.stopped = "finished"
    assert closing_lines(own, "my.toml").endswith("mamba-lab generate 'my runs/1' --prompt \"The\"")
    assert closing_lines(TrainResult(model), "my.toml") == "finished after 0 steps, 0 tokens, 0 s in steps."
