"""The loop: packed is one at a time at every step, a bad batch is named, and the same run has the same bits."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_help import config, documents, lines, same_weights

from mamba_lab.document import Document
from mamba_lab.log import log_once
from mamba_lab.models import MambaLM
from mamba_lab.training import (
    TrainConfig,
    TrainingData,
    TrainResult,
    evaluate,
    latest_checkpoint,
    read_metrics,
    train,
)
from mamba_lab.training.documents import validation_numbers
from mamba_lab.training.prepare import (
    make_model,
    pick_device,
    planned_steps,
    repeatable,
    seed_all,
    uses_bf16,
    write_settings,
)
from mamba_lab.training.rearrange import one_by_one
from mamba_lab.training.step import backward


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., TrainConfig]:
    """Settings of a run of a fraction of a second, which writes nothing."""

    def make(**sections: dict[str, Any]) -> TrainConfig:
        wide = {"d_model": 16, "n_layer": 2, "d_state": 4, "initializer_range": 0.2}
        sections = sections | {"model": wide | sections.get("model", {})}
        training = {"learning_rate": 1e-2, "max_steps": 12} | sections.pop("training", {})
        return config(tmp_path, None, training=training, **sections)

    return make


def run(settings: TrainConfig, **more: Any) -> TrainResult:
    return train(settings, **({"documents": documents()} | more))


def losses(result: TrainResult) -> list[float]:
    return [step.loss for step in result.history]


class Poisoned(MambaLM):
    """Its loss is no number from one call on, for so many calls."""

    calls, at, times = 0, 5, 1

    def forward(self, *inputs: Any, **options: Any) -> Any:
        found = super().forward(*inputs, **options)
        if self.training:
            self.calls += 1
            if self.at <= self.calls < self.at + self.times:
                return found[0] * math.nan, found[1]
        return found


def poisoned(settings: TrainConfig, times: int = 1) -> Poisoned:
    seed_all(0)
    model = Poisoned(settings.model.mamba(TrainingData(settings, documents=documents()).vocab_size))
    model.times = times
    return model


def test_a_run_learns_and_says_what_it_did(settings: Callable[..., TrainConfig]) -> None:
    seen: list[int] = []
    chosen = settings(training={"max_steps": None, "num_train_epochs": 4, "eval_steps": 3})
    result = run(chosen, on_step=lambda step: seen.append(step.step))
    data = TrainingData(chosen, documents=documents())
    assert result.steps == len(result.history) == planned_steps(chosen, data)
    assert seen == [step.step for step in result.history] == list(range(1, result.steps + 1))
    assert result.stopped == "finished"
    assert result.folder is None
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert [step for step, _ in result.validation] == sorted({*range(3, result.steps + 1, 3), result.steps})
    assert result.validation[-1][1] < result.validation[0][1]
    assert result.tokens == sum(step.tokens for step in result.history)
    assert result.seconds == pytest.approx(sum(step.seconds for step in result.history))
    assert {step.epoch for step in result.history} == {0, 1, 2, 3}
    for step in result.history:
        assert step.valid_ratio == step.tokens / step.positions
        assert step.tgs == pytest.approx(step.tokens / step.seconds)
        assert 0 <= step.waiting_seconds < step.seconds
        assert step.grad_norm > 0
        assert step.memory_gib > 0
        assert not step.skipped
    assert result.history[-1].seconds_left == 0
    assert result.history[0].seconds_left == pytest.approx(result.history[0].seconds * (result.steps - 1))
    assert result.history[2].learning_rate == chosen.training.learning_rate
    # And each epoch has each training document's targets once.
    targets = [sum(step.targets for step in result.history if step.epoch == epoch) for epoch in range(4)]
    assert targets == [data.counts.training_targets] * 4


def test_packed_is_one_at_a_time_at_every_step_and_concat_is_not(settings: Callable[..., TrainConfig]) -> None:
    """The same order and the same targets. Between the first two rounding alone differs; the leak is more."""
    found = {}
    for scheme in ("packed-greedy", "one-at-a-time", "concat"):
        found[scheme] = run(settings(packing={"scheme": scheme}, training={"max_grad_norm": 1.0}))
    packed, alone, leaky = found.values()
    assert [step.targets for step in packed.history] == [step.targets for step in alone.history]
    assert [step.targets for step in packed.history] == [step.targets for step in leaky.history]
    assert losses(packed) == pytest.approx(losses(alone), rel=2e-5)
    assert packed.validation[0][1] == pytest.approx(alone.validation[0][1], rel=2e-5)
    apart = [abs(a - b) / a for a, b in zip(losses(packed), losses(leaky), strict=True)]
    assert sum(share > 5e-5 for share in apart) > 9
    assert max(apart) > 1e-3


def test_accumulation_of_any_split_is_one_batch(settings: Callable[..., TrainConfig]) -> None:
    whole = run(settings(packing={"rows": 4}, training={"max_steps": 5}))
    for rows, micro_batches in ((2, 2), (1, 4)):
        chosen = settings(
            packing={"rows": rows}, training={"max_steps": 5, "gradient_accumulation_steps": micro_batches}
        )
        split = run(chosen)
        assert [step.targets for step in split.history] == [step.targets for step in whole.history]
        assert losses(split) == pytest.approx(losses(whole), rel=2e-5)


def test_sequence_weighting_is_the_mean_of_the_sequences_alone(settings: Callable[..., TrainConfig]) -> None:
    # A row that cuts no document: a piece would weigh less than one.
    chosen = settings(loss={"weighting": "sequence"}, training={"max_steps": 6}, packing={"capacity": 64})
    by_token = run(chosen.replace(loss={"weighting": "token"}))
    packed = run(chosen)
    alone = run(chosen.replace(packing={"scheme": "one-at-a-time"}))
    assert losses(packed) == pytest.approx(losses(alone), rel=2e-5)
    assert abs(losses(packed)[0] - losses(by_token)[0]) > 1e-3
    # By hand, at the first step.
    seed_all(chosen.training.seed)
    data = TrainingData(chosen, documents=documents())
    model = make_model(chosen.model, data.vocab_size)
    (batch,) = next(data.steps(0, 1))
    means = [backward(model, [single]).loss for single in one_by_one(replace(batch, weights=None))]
    assert len(means) > 1
    assert losses(packed)[0] == pytest.approx(sum(means) / len(means), rel=2e-5)


def test_a_bad_batch_is_skipped_and_named(settings: Callable[..., TrainConfig], tmp_path: Path) -> None:
    chosen = settings(training={"output_dir": tmp_path / "run"})
    result = run(chosen, model=poisoned(chosen))
    assert result.steps == 12
    assert result.stopped == "max_steps"
    assert [step.step for step in result.history if step.skipped] == [5]
    bad = result.history[4]
    assert math.isnan(bad.loss)
    assert all(math.isfinite(loss) for loss in losses(result)[5:])
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
    (warning,) = lines(tmp_path / "run", "warning")
    assert warning["step"] == 5
    assert warning["text"].startswith("loss nan in step 5 (epoch 0, sequences ")
    assert "Likely: a learning rate too high" in warning["text"]
    written = read_metrics(tmp_path / "run")
    assert written[4]["loss"] is None
    assert written[4]["skipped"]
    state = json.loads((tmp_path / "run/checkpoints/step-00000012/trainer.json").read_text())
    assert state["state"]["counters"]["skipped"] == 1


def test_a_bad_batch_stops_the_run_before_it(settings: Callable[..., TrainConfig], tmp_path: Path) -> None:
    chosen = settings(training={"output_dir": tmp_path / "run", "on_nonfinite": "stop"})
    result = run(chosen, model=poisoned(chosen))
    assert result.stopped == "nonfinite"
    assert result.steps == len(result.history) == 4
    assert result.validation == []
    (warning,) = lines(tmp_path / "run", "warning")
    assert warning["step"] == 5
    # Resumed with a sound model, the bad batch is taken; nothing was lost.
    resumed = run(chosen, resume=True)
    sound = run(settings(), model=poisoned(chosen, times=0))
    assert losses(result) + losses(resumed) == losses(sound)


def test_a_step_without_a_target_is_skipped_and_counted(settings: Callable[..., TrainConfig]) -> None:
    """Documents of one token have none."""
    short = [Document("x", str(number), "here") for number in range(8)]
    chosen = settings(
        data={"min_seq_len": 1, "add_end": False, "validation_share": 0.0},
        packing={"scheme": "padded", "capacity": 48, "rows": 1, "shuffle": False, "max_tokens": 48},
    )
    result = run(chosen, documents=[*documents(4), *short])
    skipped = [step for step in result.history if step.skipped]
    assert skipped
    assert all((step.loss, step.targets, step.grad_norm) == (0, 0, 0) for step in skipped)
    assert not any(math.isnan(loss) for loss in losses(result))
    assert result.validation == []
    assert len(skipped) < len(result.history)


def test_deterministic_runs_have_the_same_bits(settings: Callable[..., TrainConfig]) -> None:
    chosen = settings(training={"deterministic": True})
    inside: list[bool] = []
    one = run(chosen, on_step=lambda step: inside.append(torch.are_deterministic_algorithms_enabled()))
    torch.rand(7)
    two = run(chosen)
    assert losses(one) == losses(two)
    assert [step.grad_norm for step in one.history] == [step.grad_norm for step in two.history]
    assert same_weights(one.model, two.model)
    assert set(inside) == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    other = run(settings(training={"deterministic": True, "seed": 1}))
    assert losses(other) != losses(one)


def test_gradient_checkpointing_changes_no_bit(settings: Callable[..., TrainConfig]) -> None:
    plain, kept = run(settings()), run(settings(training={"gradient_checkpointing": True}))
    assert kept.model.backbone.gradient_checkpointing
    assert losses(plain) == losses(kept)
    assert same_weights(plain.model, kept.model)


def test_a_compiled_run_has_the_same_losses(
    settings: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="aot_eager"))
    small: dict[str, Any] = {"model": {"n_layer": 1}, "packing": {"pad_to_multiple_of": 48}}
    plain = run(settings(training={"max_steps": 4}, **small))
    compiled = run(settings(training={"max_steps": 4, "torch_compile": True, "output_dir": tmp_path / "run"}, **small))
    assert losses(compiled) == pytest.approx(losses(plain), rel=2e-5)
    assert isinstance(compiled.model, MambaLM)
    again = MambaLM.from_pretrained(tmp_path / "run/checkpoints/step-00000004")
    assert same_weights(again, compiled.model)


def test_bfloat16_on_the_cpu_keeps_float32_master_weights(settings: Callable[..., TrainConfig]) -> None:
    exact, rough = run(settings()), run(settings(training={"bf16": True}))
    assert {p.dtype for p in rough.model.parameters()} == {torch.float32}
    assert losses(rough) == pytest.approx(losses(exact), rel=5e-2)
    assert losses(rough) != losses(exact)
    assert rough.history[-1].loss < 0.9 * rough.history[0].loss


def test_validation_on_packs_is_validation_one_at_a_time(settings: Callable[..., TrainConfig]) -> None:
    chosen = settings(data={"validation_share": 0.4})
    result = run(chosen)
    data = TrainingData(chosen, documents=documents())
    packed = list(data.validation())
    alone = [single for batch in packed for single in one_by_one(batch)]
    assert len(alone) > 2 * len(packed)
    found = evaluate(result.model, alone)
    assert found.weight == data.counts.validation_targets
    assert result.validation == [(12, pytest.approx(found.loss, rel=1e-5))]


def test_a_signal_ends_the_run_at_a_step(settings: Callable[..., TrainConfig]) -> None:
    def interrupt(step: Any) -> None:
        if step.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = run(settings(), on_step=interrupt)
    assert (result.steps, result.stopped, result.validation) == (3, "signal", [])


def test_the_gradient_report_is_written(settings: Callable[..., TrainConfig], tmp_path: Path) -> None:
    run(settings(training={"output_dir": tmp_path / "run"}, logging={"gradient_report_steps": 5, "progress": False}))
    reports = lines(tmp_path / "run", "gradients")
    assert [report["step"] for report in reports] == [5, 10]
    steps = read_metrics(tmp_path / "run")
    for report in reports:
        norms = [layer["norm"] for layer in report["layers"]]
        assert len(norms) == 4
        # Before clipping, like the step's own norm.
        assert math.hypot(*norms) == pytest.approx(steps[report["step"] - 1]["grad_norm"], rel=1e-5)


def test_a_failed_save_on_the_way_is_no_end(
    settings: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from mamba_lab.training import CheckpointError, session

    def full(*_: Any, **__: Any) -> None:
        raise CheckpointError("the disk is full")

    chosen = settings(training={"output_dir": tmp_path / "run", "save_steps": 5})
    monkeypatch.setattr(session, "save_checkpoint", full)
    reached: list[int] = []
    with pytest.raises(CheckpointError, match="the disk is full"):
        run(chosen, on_step=lambda step: reached.append(step.step))
    assert reached[-1] == 12
    said = [record.getMessage() for record in caplog.records if "no checkpoint at step" in record.getMessage()]
    assert said == [f"no checkpoint at step {n}: the disk is full" for n in (5, 10)]


def test_a_model_goes_on_from_a_run_of_its_own(settings: Callable[..., TrainConfig], tmp_path: Path) -> None:
    first = run(settings(training={"output_dir": tmp_path / "run"}))
    second = settings(training={"max_steps": 1}).model_dump(exclude_unset=True)
    for source in (tmp_path / "run", tmp_path / "run/checkpoints/step-00000012"):
        second["model"] = {"from_pretrained": str(source)}
        tuned = run(TrainConfig(**second))
        assert tuned.history[0].loss < 0.7 * first.history[0].loss
    weights = tmp_path / "run/checkpoints/step-00000012/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"model.from_pretrained: .*step-00000012: model.safetensors "):
        run(TrainConfig(**second))


def test_what_does_not_fit_is_named(settings: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings()
    small = MambaLM(replace(chosen.model.mamba(1000), vocab_size=9))
    with pytest.raises(ValueError, match=r"the model has 9 ids and the tokenizer \d+: .*data.tokenizer"):
        run(chosen, model=small)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r'training.device is "cuda:1", but PyTorch sees 0 GPUs here'):
        pick_device("cuda:1")
    assert pick_device("auto") == torch.device("cpu")
    cpu = torch.device("cpu")
    assert [uses_bf16(chosen.training.model_copy(update={"bf16": on}), cpu) for on in ("auto", True, False)] == [
        False,
        True,
        False,
    ]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(ValueError, match="this GPU computes no bfloat16"):
        uses_bf16(chosen.training.model_copy(update={"bf16": True}), torch.device("cuda"))


def test_repeatable_gives_back_what_was_set() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with repeatable(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    with repeatable(False):
        assert not torch.are_deterministic_algorithms_enabled()


def test_the_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "try:\n    import mamba_lab.training\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "mamba_lab.training needs pydantic: pip install 'mamba-lab[train]'.", done.stderr


def test_settings_are_written_whole_or_not_at_all(
    settings: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, path = settings(), tmp_path / "config.toml"
    write_settings(chosen, path)
    assert TrainConfig.from_toml(path) == chosen
    before = path.read_bytes()

    def full(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(text.encode()[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ValueError, match=r"config.toml cannot be written: No space left on device"):
        write_settings(settings(training={"seed": 3}), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".config")] == []


def test_the_last_step_of_an_epoch_has_what_remains(settings: Callable[..., TrainConfig]) -> None:
    chosen = settings(training={"max_steps": None, "gradient_accumulation_steps": 4, "num_train_epochs": 2})
    data = TrainingData(chosen, documents=documents())
    assert data.micro_batches(0) % 4
    result = run(chosen)
    assert result.steps == planned_steps(chosen, data) == 2 * -(-data.micro_batches(0) // 4)
    assert result.history[-1].seconds_left == 0
    assert sum(step.targets for step in result.history) == 2 * data.counts.training_targets


def test_epochs_that_are_not_needed_cost_nothing(
    settings: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, asked = TrainingData.steps, []

    def steps(self: TrainingData, number: int, accumulation: int) -> Any:
        asked.append(number)
        assert number < 9, "nobody waits for two thousand million epochs"
        return real(self, number, accumulation)

    monkeypatch.setattr(TrainingData, "steps", steps)
    assert run(settings(training={"max_steps": 3, "num_train_epochs": 2**31 - 1})).steps == 3
    assert asked == [0]
    (tmp_path / "empty.jsonl").write_text("")
    data = {"corpus": str(tmp_path / "empty.jsonl"), "streaming": True}
    with pytest.raises(ValueError, match="gave no document to train on"):
        run(settings(data=data, training={"max_steps": 3, "num_train_epochs": 2**31 - 1}), documents=None)
    assert asked == [0, 0, 1]


def test_fewer_steps_than_asked_for_are_said_at_the_start(
    settings: Callable[..., TrainConfig], caplog: pytest.LogCaptureFixture
) -> None:
    for epochs, text, asked in ((1, "1 epoch", 600), (2, "2 epochs", 600), (2, "", 3)):
        caplog.clear()
        chosen = settings(training={"max_steps": asked, "num_train_epochs": epochs})
        steps = planned_steps(chosen, TrainingData(chosen, documents=documents()))
        said = [message for message in caplog.messages if "max_steps" in message]
        wanted = (
            f"the documents give {steps} steps in {text}, and training.max_steps asks for 600: the run ends after "
            f"{steps}. Raise training.num_train_epochs."
        )
        assert said == ([wanted] if text else [])


def test_the_loop_clips(settings: Callable[..., TrainConfig]) -> None:
    """A step whose gradient is clipped to next to nothing is as small as Adam's epsilon makes it."""
    free = run(settings(training={"max_steps": 1, "adam_epsilon": 1e-3, "max_grad_norm": 0.0}))
    clipped = run(settings(training={"max_steps": 1, "adam_epsilon": 1e-3, "max_grad_norm": 1e-6}))
    assert clipped.history[0].grad_norm == free.history[0].grad_norm > 0.1
    assert not same_weights(free.model, clipped.model)


def test_the_optimiser_has_the_rate_of_the_schedule(settings: Callable[..., TrainConfig]) -> None:
    """A warm-up that never gets far leaves the weights nearly where they were."""
    slow, fast = (run(settings(training={"warmup_steps": steps})) for steps in (10**6, 1))
    seed_all(0)
    before = make_model(settings().model, slow.model.config.vocab_size).state_dict()
    moved = [
        max((now - before[name]).abs().max().item() for name, now in result.model.state_dict().items())
        for result in (slow, fast)
    ]
    assert moved[0] < 1e-5 < 1e-2 < moved[1]


def test_documents_without_any_target_are_refused(settings: Callable[..., TrainConfig]) -> None:
    chosen = settings(data={"min_seq_len": 1, "add_end": False})
    short = [Document("x", str(number), "here") for number in range(8)]
    with pytest.raises(
        ValueError, match=r"no document has a target to learn from \(7 documents to train on .* Is data"
    ):
        run(chosen, documents=short)


def test_validation_without_a_target_is_said_and_is_no_number(
    settings: Callable[..., TrainConfig], caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    own = documents(12)
    held_out = validation_numbers(range(12), 0.2, 0)
    own = [Document("x", one.id, "here") if number in held_out else one for number, one in enumerate(own)]
    chosen = settings(data={"min_seq_len": 1, "add_end": False, "validation_share": 0.2}, training={"eval_steps": 2})
    assert run(chosen, documents=own).validation == []
    assert [text for text in caplog.messages if "no validation loss" in text] == [
        "no validation loss: the documents held out, if there are any, have no target"
    ]


def test_documents_that_cannot_be_read_end_a_run_and_not_what_it_has_reached(
    settings: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    """Without save_steps a broken line after hours of a stream lost all of them."""
    good = [json.dumps({"text": one.text}) for one in documents(40)]
    file = tmp_path / "own.jsonl"
    chosen = settings(
        data={"corpus": str(file), "streaming": True},
        packing={"buffer_size": 4, "workers": 0},
        training={"max_steps": 500, "output_dir": tmp_path / "run"},
    )
    file.write_text("\n".join([*good[:30], "{broken", *good[31:]]))
    with pytest.raises(ValueError, match=r'own.jsonl, line 31: .* Mend it, or set data.on_error = "skip"'):
        run(chosen, documents=None)
    reached = latest_checkpoint(tmp_path / "run")
    assert reached is not None
    file.write_text("\n".join(good))
    rest = run(chosen, documents=None, resume=True)
    whole = run(chosen.replace(training={"output_dir": None}), documents=None)
    assert 0 < len(rest.history) < rest.steps == whole.steps
    assert same_weights(rest.model, whole.model)


def test_a_stream_that_ends_before_the_schedule_is_said(
    settings: Callable[..., TrainConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The learning rate was near its height, and the run said "finished" and no more."""
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps({"text": one.text}) for one in documents(12)))
    chosen = settings(data={"corpus": str(tmp_path / "own.jsonl"), "streaming": True}, training={"max_steps": 500})
    result = run(chosen, documents=None)
    assert result.steps < 500
    assert f"the documents end at step {result.steps:,} of the 500 that the learning rate was planned for. Lower " in (
        caplog.text
    )
