"""Settings in a file: read, overridden, written out, and what each mistake in a file or an override says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_lab.training.config import SCHEMES, ConfigError, TrainConfig
from mamba_lab.training.config_file import dump, merged, parse_override


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.toml"
    path.write_text('[data]\ncorpus = "chat"\n[training]\nlearning_rate = 2e-3\nmax_steps = 7\n', "utf-8")
    return path


def refused(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_toml(path, overrides)
    return str(caught.value)


def test_a_file_and_its_overrides(file: Path) -> None:
    config = TrainConfig.from_toml(file)
    assert config == TrainConfig(data={"corpus": "chat"}, training={"learning_rate": 2e-3, "max_steps": 7})
    changed = TrainConfig.from_toml(str(file), ["training.max_steps=9", "packing.scheme=padded", "training.seed = 3"])
    assert changed == config.replace(training={"max_steps": 9, "seed": 3}, packing={"scheme": "padded"})
    assert TrainConfig.from_toml(file, ["training.max_steps=8", "training.max_steps=9"]).training.max_steps == 9


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.corpus=my file.jsonl", "my file.jsonl"),
        ('data.corpus="my file.jsonl"', "my file.jsonl"),
        ("data.corpus='C:\\texts'", "C:\\texts"),
        ("data.corpus=2024", "2024"),
        ("data.corpus=a=b", "a=b"),
        ("data.corpus=true", "true"),
        ("data.corpus=[x]", "[x]"),
        ("data.corpus=# no comment", "# no comment"),
        ("data.corpus=wörter/言葉", "wörter/言葉"),
        ("training.learning_rate=1e-4", 1e-4),
        ("training.learning_rate=1", 1.0),
        ("training.seed=1_000", 1000),
        ("training.seed=0x10", 16),
        ("training.bf16=true", True),
        ("training.bf16=auto", "auto"),
        ("training.max_steps=none", None),
        ("training.max_steps = None ", None),
        ("training.output_dir=2024", Path("2024")),
        ("model.dt_rank=auto", "auto"),
        ("model.dt_rank=8", 8),
    ],
)
def test_the_value_of_an_override(file: Path, override: str, value: Any) -> None:
    section, key = override.partition("=")[0].strip().split(".")
    found = getattr(getattr(TrainConfig.from_toml(file, [override]), section), key)
    assert found == value
    assert type(found) is type(value) or isinstance(value, Path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr=3", "--set training.lr is no key of [training]. Did you mean training.learning_rate?"),
        ("lr=3", "--set lr is no section. Did you mean training.learning_rate?"),
        ("learning_rate=3", "--set learning_rate stands outside the sections. Say training.learning_rate."),
        ("trainng.seed=3", "--set trainng is no section. Did you mean training?"),
        ("training.seed", '--set "training.seed": expected section.key=value, such as training.learning_rate=1e-4.'),
        ("training=3", '--set "training=3": expected section.key=value, such as training.learning_rate=1e-4.'),
        ("training.=3", '--set "training.=3": expected section.key=value, such as training.learning_rate=1e-4.'),
        ("", '--set "": expected section.key=value, such as training.learning_rate=1e-4.'),
        ("=", '--set "=": expected section.key=value, such as training.learning_rate=1e-4.'),
        (".=1", '--set "" is no section. There are data, packing, loss, training, model, logging.'),
        ("training.seed=", '--set training.seed is "": expected a whole number from 0 to 9223372036854775807.'),
        ("training.max_steps=ten", '--set training.max_steps is "ten": expected a whole number from 1 to 2147483647.'),
        (
            "training.seed=1\nmax_steps=2",
            r'--set training.seed is "1\nmax_steps=2": expected a whole number from 0 to 9223372036854775807.',
        ),
        ("training.seed=2024-01-01", "--set training.seed is datetime.date(2024, 1, 1): expected a whole number from"),
        ("training.output_dir=", '--set training.output_dir is "": expected text that is not empty.'),
        ("packing.scheme=pack", '--set packing.scheme is "pack": expected one of "fixed", "padded", "bucketed"'),
        ("training.seed=" + "[" * 5000, '--set training.seed is "['),
        ("training.learning_rate=1e999", "--set training.learning_rate is inf: expected a number above 0."),
    ],
)
def test_a_wrong_override_names_itself(file: Path, override: str, message: str) -> None:
    assert refused(file, override).startswith(message)
    assert "\n" not in refused(file, override)


def test_a_mistake_is_blamed_on_the_file_or_on_the_override(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[training]\nsave_steps = 5\n")
    missing = "training.save_steps is 5, but training.output_dir is not set: there is no place for a checkpoint."
    assert refused(path) == f"{path}: {missing}"
    assert refused(path, "training.seed=1") == f"{path}: {missing}"
    assert TrainConfig.from_toml(path, ["training.output_dir=runs/x"]).training.save_steps == 5
    assert TrainConfig.from_toml(path, ["training.save_steps=none"]) == TrainConfig()
    path.write_text("[training]\neval_steps = 5\n[data]\nlr = 1\n")
    assert refused(path, "data.validation_share=0.0", "training.seed=x").splitlines() == [
        f"{path}: data.lr is no key of [data]. Did you mean training.learning_rate?",
        '--set training.seed is "x": expected a whole number from 0 to 9223372036854775807.',
    ]
    path.write_text("[training]\neval_steps = 5\n")
    assert refused(path, "data.validation_share=0").startswith(f"{path} with --set: training.eval_steps is 5, but")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[training\nseed = 3\n", "no TOML: Expected ']' at the end of a table declaration (at line 1, column 10)."),
        (b"[training]\nseed = three\n", "no TOML: Invalid value (at line 2, column 8)."),
        (b"[training]\nseed = 1\nseed = 2\n", "no TOML: Cannot overwrite a value (at line 3, column 9)."),
        (b'[data]\n\ncorpus = "W\xf6rter"\n', "line 3 has the byte 0xf6, which is no UTF-8. Save the file as UTF-8."),
        (b"\xff\xfe[\x00", "line 1 has the byte 0xff, which is no UTF-8. Save the file as UTF-8."),
        (b'{"training": {}}', "no TOML: Invalid statement (at line 1, column 1)."),
        (b"x = " + b"[" * 20000, "no TOML: "),
        (b"[training]\nseed = " + b"9" * 5000, "no TOML: "),
        (b"training = 3\n", "training is 3: expected a table of keys."),
        (b"[[training]]\nseed = 3\n", "training is [{'seed': 3}]: expected a table of keys."),
        (b'[training]\n"" = 3\n', 'training."" is no key of [training]. Its keys are output_dir,'),
        (b'[training]\n"a\\nb" = 3\n', r"training.a\nb is no key of [training]. Its keys"),
        (b"[training.x]\ny = 3\n", "training.x is no key of [training]. Its keys are output_dir,"),
        (b"[training]\nseed = {a = 1}\n", "training.seed is {'a': 1}: expected a whole number from 0"),
        (b"[training]\noutput_dir = 1979-05-27\n", "training.output_dir is datetime.date(1979, 5, 27): expected a"),
        (b"learning_rate = 3\n", "learning_rate stands outside the sections. Say training.learning_rate."),
    ],
)
def test_a_broken_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    assert refused(path).startswith(f"{path}: {message}")
    assert "\n" not in refused(path)


def test_line_ends_and_the_mark_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xef\xbb\xbf[training]\r\nseed = 3\r\n")
    assert TrainConfig.from_toml(path).training.seed == 3
    path.write_bytes(b"")
    assert TrainConfig.from_toml(path) == TrainConfig()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "/no.toml: there is no such file. The package has code, gpu-1.4b, " in refused(tmp_path / "no.toml")
    assert refused(tmp_path) == f"{tmp_path}: this is a folder, expected a TOML file."
    (tmp_path / "config.toml").write_text("")
    assert refused(tmp_path).endswith(f"Did you mean {tmp_path / 'config.toml'}?")
    assert "cannot be read: Not a directory." in refused(tmp_path / "config.toml" / "x")
    assert "cannot be read: File name too long." in refused("x" * 5000)
    assert "cannot be read: embedded null" in refused("a\0b")
    assert len(refused("x" * 5000)) < 260


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(file: Path) -> None:
    file.chmod(0)
    assert refused(file) == f"{file}: cannot be read: Permission denied."


def test_an_example_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert TrainConfig.from_toml("tune-chat").data.teach == "assistant"
    Path("tune-chat").write_text("[training]\nseed = 5\n")  # the reader's own file comes first
    assert TrainConfig.from_toml("tune-chat").training.seed == 5


names = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(str.strip)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(
    corpus=names,
    run_name=st.none() | names,
    learning_rate=positive,
    share=st.floats(0, 1, exclude_max=True),
    steps=st.none() | st.integers(1, 2**31 - 1),
    seed=st.integers(0, 2**63 - 1),
    scheme=st.sampled_from(SCHEMES),
    bf16=st.booleans() | st.just("auto"),
    model=st.just({"from_pretrained": "owner/name"}) | st.fixed_dictionaries({"dt_rank": st.integers(1, 99)}),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: str,
    run_name: str | None,
    learning_rate: float,
    share: float,
    steps: int | None,
    seed: int,
    scheme: str,
    bf16: bool | str,
    model: dict[str, Any],
) -> None:
    config = TrainConfig(
        data={"corpus": corpus, "validation_share": share},
        packing={"scheme": scheme},
        training={"learning_rate": learning_rate, "max_steps": steps, "seed": seed, "bf16": bf16, "output_dir": corpus},
        model=model,
        logging={"run_name": run_name},
    )
    path = tmp_path_factory.getbasetemp() / "again.toml"
    path.write_text(config.to_toml(), "utf-8")
    again = TrainConfig.from_toml(path)
    assert again.model_dump() == config.model_dump()
    assert again.to_toml() == config.to_toml()


def test_the_resolved_settings_are_all_there() -> None:
    text = dump(TrainConfig(training={"max_steps": 3}))
    assert "max_steps = 3" in text
    assert 'scheme = "packed-greedy"' in text
    assert "learning_rate = 0.001" in text
    assert "shuffle = true" in text
    assert "eval_steps" not in text  # not given
    tuned = dump(TrainConfig(model={"from_pretrained": "runs/docs"}))
    assert "d_model" not in tuned  # the model brings it


def test_changes_do_not_touch_what_they_change() -> None:
    values = {"training": {"seed": 1, "max_steps": 2}, "data": 3}
    changed = merged(values, {"training": {"seed": None, "eval_steps": 4}, "loss": {"weighting": "token"}, "data": {}})
    assert changed == {"training": {"max_steps": 2, "eval_steps": 4}, "data": 3, "loss": {"weighting": "token"}}
    assert values == {"training": {"seed": 1, "max_steps": 2}, "data": 3}


def test_the_parts_of_an_override() -> None:
    assert parse_override("training.seed=3") == ("training", "seed", 3)
    assert parse_override("training.seed=none") == ("training", "seed", None)


@pytest.mark.parametrize("missing", ["pydantic", "safetensors"])
def test_a_missing_library_is_named_with_its_remedy(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import mamba_lab.training"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ModuleNotFoundError: mamba_lab.training needs {missing}: pip install 'mamba-lab[train]'."
