"""Settings of a run: what each may be, which go together, and one line for each mistake."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mamba_lab.models import MambaConfig
from mamba_lab.training.config import (
    SCHEMES,
    SECTIONS,
    ConfigError,
    DataConfig,
    PackingConfig,
    TrainConfig,
    TrainingConfig,
)
from mamba_lab.training.config_errors import _ELSEWHERE


def refused(**sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**sections)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all("\n" not in line for line in caught.value.problems)
    return caught.value.problems


def only(**sections: Any) -> str:
    (line,) = refused(**sections)
    return line


def test_the_defaults_are_a_run() -> None:
    config = TrainConfig()
    assert (config.data.corpus, config.packing.scheme, config.loss.weighting) == ("docs", "packed-greedy", "token")
    assert (config.training.max_grad_norm, config.training.adam_beta2, config.training.weight_decay) == (1.0, 0.95, 0.1)
    assert config.training.output_dir is None
    assert len(SCHEMES) == 8
    for scheme in SCHEMES:
        assert TrainConfig(packing={"scheme": scheme}).packing.scheme == scheme


def test_sections_may_be_given_as_classes_or_dictionaries() -> None:
    one = TrainConfig(training=TrainingConfig(max_steps=3), data={"corpus": "code"})
    assert one == TrainConfig(training={"max_steps": 3}, data=DataConfig(corpus="code"))
    assert one != TrainConfig()
    for again in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again == one


def test_settings_do_not_change() -> None:
    config = TrainConfig()
    with pytest.raises(ValidationError):
        config.training.max_steps = 3  # type: ignore[misc]
    changed = config.replace(training={"max_steps": 3}, packing={"scheme": "padded"})
    assert (changed.training.max_steps, changed.packing.scheme) == (3, "padded")
    assert config == TrainConfig()
    assert changed.replace(training={"max_steps": None}).training.max_steps is None
    assert changed.replace(training=TrainingConfig(seed=1)).training == TrainingConfig(seed=1)
    with pytest.raises(ConfigError, match=r"training\.max_step is no key"):
        config.replace(training={"max_step": 3})


def test_values_of_numpy_and_paths_are_kept_as_python_has_them() -> None:
    config = TrainConfig(
        training={"seed": np.int64(7), "learning_rate": np.float32(0.5), "output_dir": "runs/ä"},
        data={"corpus": Path("a/b.jsonl"), "streaming": np.bool_(False)},
    )
    assert type(config.training.seed) is int
    assert type(config.training.learning_rate) is float
    assert config.training.output_dir == Path("runs/ä")
    assert config.data.corpus == "a/b.jsonl"
    assert config.data.streaming is False


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("training", "learning_rate", "fast", 'is "fast": expected a number above 0.'),
        ("training", "learning_rate", 0, "is 0: expected a number above 0."),
        ("training", "learning_rate", -1e-3, "is -0.001: expected a number above 0."),
        ("training", "learning_rate", math.inf, "is inf: expected a number above 0."),
        ("training", "learning_rate", math.nan, "is nan: expected a number above 0."),
        ("training", "learning_rate", True, "is true: expected a number above 0."),
        ("training", "max_steps", 0, "is 0: expected a whole number from 1 to 2147483647."),
        ("training", "max_steps", 1.0, "is 1.0: expected a whole number from 1 to 2147483647."),
        ("training", "max_steps", True, "is true: expected a whole number from 1 to 2147483647."),
        ("training", "num_train_epochs", "3", 'is "3": expected a whole number from 1 to 2147483647.'),
        ("training", "seed", -1, "is -1: expected a whole number from 0 to 9223372036854775807."),
        ("training", "seed", 2**63, "is 9223372036854775808: expected a whole number from 0 to 9223372036854775807."),
        ("training", "weight_decay", -0.1, "is -0.1: expected a number, 0 or more."),
        ("training", "adam_beta2", 1, "is 1: expected a number from 0 to below 1."),
        ("training", "warmup_ratio", 1.5, "is 1.5: expected a number from 0 to 1."),
        ("training", "bf16", "yes", 'is "yes": expected true or false or "auto".'),
        ("training", "deterministic", 1, "is 1: expected true or false."),
        ("training", "device", "tpu", 'is "tpu": expected "auto", "cpu", "cuda", or one GPU such as "cuda:0".'),
        ("training", "device", "cuda:", 'is "cuda:": expected "auto", "cpu", "cuda", or one GPU such as "cuda:0".'),
        ("training", "on_nonfinite", "go on", 'is "go on": expected "skip" or "stop".'),
        ("training", "output_dir", "", 'is "": expected text that is not empty.'),
        ("training", "output_dir", 3, 'is 3: expected a folder in quotes, such as "runs/first".'),
        ("training", "output_dir", "a\0b", r'is "a\x00b": expected text without control characters, in UTF-8.'),
        ("data", "corpus", "a\udc80", r'is "a\udc80": expected text without control characters, in UTF-8.'),
        ("data", "corpus", 7, "is 7: expected text in quotes."),
        ("data", "corpus", " ", 'is " ": expected text that is not empty.'),
        ("data", "validation_share", 1, "is 1: expected a number from 0 to below 1."),
        ("data", "teach", "all", 'is "all": expected one of "whole", "assistant", "prompt".'),
        ("data", "min_seq_len", None, "is None: expected a whole number from 1 to 2147483647."),
        ("packing", "scheme", ["fixed"], 'is [\'fixed\']: expected one of "fixed", "padded"'),
        ("packing", "capacity", 2**31, "is 2147483648: expected a whole number from 1 to 2147483647."),
        ("model", "dt_rank", "big", 'is "big": expected a whole number from 1 to 2147483647 or "auto".'),
        ("logging", "run_name", "a\nb", r'is "a\nb": expected text without control characters, in UTF-8.'),
    ],
)
def test_a_wrong_value(section: str, key: str, value: object, words: str) -> None:
    assert only(**{section: {key: value}}).startswith(f"{section}.{key} {words}")


def test_a_long_value_is_cut() -> None:
    assert len(only(training={"max_steps": "9" * 5000})) < 160


def test_each_mistake_has_its_line() -> None:
    lines = refused(training={"lr": 1, "seed": "x"}, data={"teach": 3}, modle={})
    assert [line.split()[0] for line in lines] == ["data.teach", "training.seed", "training.lr", "modle"]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"training": {"learning_rat": 1}}, "training.learning_rat is no key of [training]. Did you mean training."),
        ({"training": {"Learning-Rate": 1}}, "Did you mean training.learning_rate?"),
        ({"training": {"lr": 1}}, "Did you mean training.learning_rate?"),
        ({"training": {"fp16": True}}, "Did you mean training.bf16 (float16 overflows where bfloat16 does not)?"),
        ({"model": {"learning_rate": 1}}, "model.learning_rate is no key of [model]. Did you mean training.learning_"),
        ({"packing": {"seed": 1}}, "packing.seed is no key of [packing]. Did you mean data.seed or training.seed?"),
        ({"loss": {"zzz": 1}}, "loss.zzz is no key of [loss]. Its keys are weighting."),
        ({"data": {3: 1}}, "data.3 is no key of [data]. Its keys are corpus, "),
        ({"trainig": {}}, "trainig is no section. Did you mean training?"),
        ({"optimizer": {}}, "optimizer is no section. There are data, packing, loss, training, model, logging."),
        ({"lr": 1}, "lr is no section. Did you mean training.learning_rate?"),
        ({"learning_rate": 1}, "learning_rate stands outside the sections. Say training.learning_rate."),
        ({"seed": 1}, "seed stands outside the sections. Say data.seed or training.seed."),
        ({"training": 3}, "training is 3: expected a table of keys."),
        ({"training": None}, "training is None: expected a table of keys."),
        ({"training": [{}]}, "training is [{}]: expected a table of keys."),
    ],
)
def test_an_unknown_key(sections: dict[str, Any], line: str) -> None:
    assert line in only(**sections)


def test_what_others_call_it_names_keys_that_exist() -> None:
    there = {f"{section}.{key}" for section, kind in SECTIONS.items() for key in kind.model_fields}
    own = {key for kind in SECTIONS.values() for key in kind.model_fields}
    for name, ours in _ELSEWHERE.items():
        named = {word.strip(",") for word in ours.split() if "." in word}
        assert named
        assert named <= there, name
        assert name not in own


RUN = {"output_dir": "runs/x"}


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"data": {"min_seq_len": 9, "max_seq_len": 8}}, "data.max_seq_len is 8, below data.min_seq_len 9: no"),
        (
            {"data": {"teach": "assistant"}},
            'data.teach is "assistant", but docs has no conversations. Say "whole", or data.corpus = "chat"; for '
            "documents given in Python, any name of your own.",
        ),
        ({"data": {"teach": "prompt", "corpus": "code"}}, 'data.teach is "prompt", but code has no conversations.'),
        ({"packing": {"capacity": 2**20, "rows": 2**11}}, "packing.capacity is 1048576 and packing.rows is 2048: a"),
        (
            {"packing": {"capacity": 2**31 - 1, "pad_to_multiple_of": 8}},
            "packing.capacity is 2147483647 and packing.rows is 1: a",
        ),
        ({"packing": {"max_tokens": 2047}}, "packing.max_tokens is 2047, below packing.capacity 2048: a sequence"),
        ({"packing": {"sort": "sorted"}}, 'packing.sort is "sorted", but packing.scheme is "packed-greedy".'),
        (
            {"packing": {"sort": "sorted", "scheme": "padded", "shuffle": False}},
            'packing.sort is "sorted", but packing.shuffle is false.',
        ),
        ({"training": {"warmup_ratio": 0.0, "warmup_steps": 0}}, "training.warmup_ratio is 0.0 and training.warmup"),
        ({"training": {"save_steps": 5}}, "training.save_steps is 5, but training.output_dir is not set"),
        (
            {"training": {"eval_steps": 5}, "data": {"validation_share": 0}},
            "training.eval_steps is 5, but data.validation_share is 0: there is nothing to validate on.",
        ),
        ({"logging": {"tensorboard": True}}, "logging.tensorboard is true, but training.output_dir is not set"),
        ({"data": {"streaming": True}}, "data.streaming is true, and training.max_steps is not set"),
        (
            {"data": {"streaming": True}, "training": {"max_steps": 5}, "packing": {"scheme": "bucketed"}},
            'data.streaming is true, but packing.scheme "bucketed" must know all lengths first.',
        ),
        ({"model": {"from_pretrained": "x", "n_layer": 4}}, 'model.n_layer is set, but model.from_pretrained "x"'),
        ({"model": {"d_state": 257}}, "model.d_state must be at most 256, which the operators take, got 257."),
        ({"model": {"dt_min": 1.0}}, "model.dt_min must not be above dt_max, got 1.0 and 0.1. Swap them."),
    ],
)
def test_what_cannot_go_together(sections: dict[str, Any], line: str) -> None:
    assert only(**sections).startswith(line)


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"min_seq_len": 8, "max_seq_len": 8}},
        {"data": {"teach": "assistant", "corpus": "chat"}},
        {"data": {"teach": "prompt", "corpus": "my.jsonl"}},
        {"packing": {"capacity": 2**20, "rows": 2047}},
        {"packing": {"max_tokens": 2048}},
        {"packing": {"sort": "sorted", "scheme": "bucketed"}},
        {"training": {"save_steps": 5, **RUN}},
        {"training": {"eval_steps": 5}},
        {"logging": {"tensorboard": True}, "training": RUN},
        {"data": {"streaming": True}, "training": {"max_steps": 5}, "packing": {"scheme": "one-at-a-time"}},
        {"model": {"from_pretrained": "x", "backend": "cpu"}},
        {"model": {"d_state": 256}},
        {"training": {"device": "cuda:11"}},
    ],
)
def test_what_can(sections: dict[str, Any]) -> None:
    TrainConfig(**sections)


def test_what_follows_from_the_settings() -> None:
    config = TrainConfig(packing={"capacity": 100, "rows": 3}, training={"seed": 4})
    assert config.packing.budget == 300
    assert config.replace(packing={"max_tokens": 150}).packing.budget == 150
    assert config.data_seed == 4
    assert config.replace(data={"seed": 0}).data_seed == 0
    assert TrainingConfig().warmup(1000) == 0
    assert TrainingConfig(warmup_steps=7).warmup(1000) == 7
    assert TrainingConfig(warmup_ratio=0.03).warmup(1000) == 30


def test_the_model_of_the_settings() -> None:
    names = set(MambaConfig.__dataclass_fields__)
    assert set(SECTIONS["model"].model_fields) == names | {"from_pretrained", "backend"}
    config = TrainConfig(model={"d_model": 32, "n_layer": 2, "tie_embeddings": False})
    assert config.model.mamba(100) == MambaConfig(d_model=32, n_layer=2, vocab_size=100, tie_embeddings=False)
    larger = config.replace(model={"vocab_size": 128})
    assert larger.model.mamba(100).vocab_size == 128
    with pytest.raises(ConfigError, match=r"model\.vocab_size is 128, but the tokenizer has 129 ids"):
        larger.model.mamba(129)


def test_defaults_of_the_model_are_those_of_mamba_ssm() -> None:
    ours = TrainConfig().model.mamba(100)
    assert ours == MambaConfig(d_model=ours.d_model, n_layer=ours.n_layer, vocab_size=100)


def test_an_error_travels_between_processes() -> None:
    error = ConfigError(["training.seed is wrong."], "my.toml")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "my.toml: training.seed is wrong."
    assert isinstance(error, ValueError)


def test_threads_and_batches_ahead_have_a_limit() -> None:
    """Two thousand million places to be filled ahead took the memory, a hundred thousand threads the process."""
    assert PackingConfig(workers=256, prefetch=65536).workers == 256
    with pytest.raises(ConfigError, match=r"packing\.workers is 257: expected a whole number from 0 to 256"):
        PackingConfig(workers=257)
    with pytest.raises(ConfigError, match=r"packing\.prefetch is 65537: expected a whole number from 1 to 65536"):
        PackingConfig(prefetch=65537)
