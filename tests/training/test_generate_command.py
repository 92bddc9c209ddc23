"""`mamba-lab generate`: text from a run, a checkpoint, a saved model; and that each mistake is answered in one line."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mamba_lab import cli
from mamba_lab.models import MambaConfig, MambaLM
from mamba_lab.tokenizer import load_tokenizer
from mamba_lab.training import TrainConfig, train


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on texts, a run on conversations, and a saved model, all very small."""
    root = tmp_path_factory.mktemp("made")
    (root / "my.jsonl").write_text('{"text": "a house and a tree and a house"}\n' * 8, "utf-8")
    turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes."}]
    (root / "chat.jsonl").write_text((json.dumps({"text": turns}) + "\n") * 8, "utf-8")
    for name, teach in (("my", "whole"), ("chat", "assistant")):
        train(
            TrainConfig(
                data={"corpus": str(root / f"{name}.jsonl"), "teach": teach, "validation_share": 0},
                packing={"capacity": 32},
                training={"output_dir": root / name, "max_steps": 2, "device": "cpu"},
                model={"d_model": 16, "n_layer": 1},
            )
        )
    MambaLM(MambaConfig(d_model=16, n_layer=1, vocab_size=8192)).save_pretrained(root / "saved", format="huggingface")
    MambaLM(MambaConfig(d_model=16, n_layer=1, vocab_size=100)).save_pretrained(root / "other", format="huggingface")
    return root


def run(*words: object) -> int:
    return cli.main(["generate", *map(str, words)])


def written(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert run(*words) == 0
    out, error = capsys.readouterr()
    assert error == ""
    return str(out)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("mamba-lab: ")
    assert error.count("\n") == 1
    return error.removeprefix("mamba-lab: ").rstrip()


def test_a_run_a_checkpoint_and_a_saved_model_write_on(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("my", "my/checkpoints/step-00000002", "saved"):
        text = written(capsys, made / model, "--prompt", "a house", "--seed", 3, "--max-new-tokens", 5)
        assert text.startswith("a house")
        assert len(text) > len("a house\n")


def test_the_text_is_that_of_the_model(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer()
    model = MambaLM.from_pretrained(made / "my/checkpoints/step-00000002")
    (ids,) = model.generate([tokenizer.encode("a house")], 12, temperature=0)
    text = written(capsys, made / "my", "--prompt", "a house", "--max-new-tokens", 12, "--temperature", 0)
    ended = [token for token in ids if token == tokenizer.end_id or token in tokenizer.role_ids.values()]
    assert text == "a house" + tokenizer.decode(ids[: ids.index(ended[0])] if ended else ids) + "\n"


def test_the_same_seed_writes_the_same(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (made / "saved", "--prompt", "a", "--temperature", 2)
    texts = [written(capsys, *words, "--seed", seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_several_prompts_are_one_pack(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = ("--temperature", 0, "--max-new-tokens", 8)
    both = written(capsys, made / "saved", "--prompt", "a house", "--prompt", "b", *greedy)
    alone = [written(capsys, made / "saved", "--prompt", text, *greedy) for text in ("a house", "b")]
    assert both == f"--- 1\n{alone[0]}--- 2\n{alone[1]}"


def test_a_prompt_from_a_file_or_from_standard_input(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "start.txt"
    file.write_bytes("Wörter\n".encode() + b"\xff")
    end = ("--max-new-tokens", 0)
    assert written(capsys, made / "my", "--prompt-file", file, *end) == "Wörter\n\ufffd\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("言葉".encode())))
    assert written(capsys, made / "my", "--prompt-file", "-", *end) == "言葉\n"


def test_a_run_on_conversations_answers(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    tokenizer = load_tokenizer()

    def stream(_: object, ids: list[list[int]], *__: object, **options: Any) -> Any:
        read.append((ids[0], set(options["stop"])))
        text = [*tokenizer.encode(" Yes."), tokenizer.role_ids["user"]]
        return iter({0: token} for token in text)

    monkeypatch.setattr("mamba_lab.models.generate.stream", stream)
    asked = [tokenizer.role_ids["user"], *tokenizer.encode("Tea?"), tokenizer.role_ids["assistant"]]
    for model in ("chat", "chat/checkpoints/step-00000002"):
        assert written(capsys, made / model, "--prompt", "Tea?") == " Yes.\n"
        assert read[-1] == (asked, {tokenizer.end_id, *tokenizer.role_ids.values()})
    assert written(capsys, made / "chat", "--prompt", "Tea?", "--no-chat") == "Tea? Yes.\n"
    assert read[-1][0] == tokenizer.encode("Tea?")
    assert written(capsys, made / "my", "--prompt", "Tea?", "--chat") == " Yes.\n"
    assert read[-1][0] == asked
    # Nobody's words are a role: what looks like one is text.
    written(capsys, made / "chat", "--prompt", "<|assistant|>")
    assert read[-1][0].count(tokenizer.role_ids["assistant"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my"], 'a prompt is missing: say for example --prompt "The list".'),
        (
            ["my", "--prompt", ""],
            "a prompt is empty: give it a word, since a sequence's first token is never predicted.",
        ),
        (
            ["my", "--prompt-file", "no.txt"],
            "--prompt-file is no.txt, which cannot be read: No such file or directory.",
        ),
        (["my", "--prompt-file", "."], "--prompt-file is ., which cannot be read: Is a directory."),
        (["my", "--prompt-file", "a\0b"], "--prompt-file is a"),
        (
            ["./no", "--prompt", "a"],
            "there is no folder ./no. Give a run's, a checkpoint's, a saved model's, or a hub id.",
        ),
        (["no", "--prompt", "a"], "there is no folder no. Give a run's, a checkpoint's, a saved model's, or a hub id."),
        (["", "--prompt", "a"], ""),
        (["a\0b", "--prompt", "a"], ""),
        ([".", "--prompt", "a"], "the checkpoint has no config.json. Is this a checkpoint's folder?"),
        (["my.jsonl", "--prompt", "a"], "there is no folder 'my.jsonl'. Give a folder with config.json, or a hub id"),
        (
            ["other", "--prompt", "a"],
            "other has 100 ids and the tokenizer 8192: this is not the tokenizer it was trained",
        ),
        (["my", "--prompt", "a", "--tokenizer", "no.json"], "--tokenizer: there is no file no.json."),
        (["my", "--prompt", "a", "--device", "tpu"], '--device is "tpu": expected "auto", "cpu", "cuda", or one GPU'),
        (["my", "--prompt", "a", "--device", "cuda:77"], '--device is "cuda:77", but PyTorch sees '),
        (["my", "--prompt", "a", "--temperature", "-1"], "--temperature must be 0 or above, got -1.0."),
        (["my", "--prompt", "a", "--temperature", "nan"], "--temperature must be 0 or above, got nan."),
        (["my", "--prompt", "a", "--top-p", "2"], "--top-p must be above 0 and at most 1, got 2.0."),
        (["my", "--prompt", "a", "--top-k", "0"], "--top-k must be at least 1, got 0."),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    assert run(*words) == 1
    assert one_line(capsys).startswith(message)


@pytest.mark.parametrize("words", [["my"], []])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*words, "--max-new-tokens", "-3")
    assert caught.value.code == 2


def test_a_damaged_run(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    checkpoint = folder / "checkpoints/step-00000002"
    shutil.copytree(made / "my", folder)
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # one bit of one weight
    for model in (checkpoint, folder):
        assert run(model, "--prompt", "a") == 1
        line = one_line(capsys)
        assert "step-00000002" in line or line.startswith(f"{folder} has no whole checkpoint.")
    weights.write_bytes(whole)
    settings = checkpoint / "train_config.json"
    for text in ("{", '{"data": {"corpsu": 3}}', "{}", "3"):
        settings.write_text(text)
        assert run(checkpoint, "--prompt", "a") == 1
        assert one_line(capsys).startswith(f"{settings} is damaged: ")
    (folder / "config.toml").write_text("[data]\nteach = 3\n")
    assert run(folder, "--prompt", "a") == 1
    assert one_line(capsys).startswith(f"{folder / 'config.toml'}: data.teach is 3: expected one of ")


def test_a_tokenizer_that_has_gone(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "my", folder)
    (folder / "config.toml").write_text('[data]\ntokenizer = "gone.json"\n')
    assert run(folder, "--prompt", "a") == 1
    assert one_line(capsys) == f"{folder}: data.tokenizer: there is no file gone.json."


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "mamba-lab generate runs/docs --prompt" in out
    assert "exit codes:" in out
