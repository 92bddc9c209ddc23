"""`mamba-lab pack`: what it prints, what it writes, and that each mistake is answered in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mamba_lab import cli
from mamba_lab.batching import PackingPlan, pack_best_fit, pack_greedy, pack_sequential
from mamba_lab.corpus import CorpusStream, Document, load_corpus
from mamba_lab.document import Skipped
from mamba_lab.outputs import require_writable_file
from mamba_lab.pack_command import count_lengths, histogram
from mamba_lab.tokenizer import load_tokenizer

WORD = " house"  # one token


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Four documents of 4, 2, 7 and 3 tokens."""
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps({"text": WORD * n, "id": n}) + "\n" for n in (4, 2, 7, 3)), "utf-8")
    return path


def run(*words: object) -> int:
    return cli.main(["pack", *map(str, words)])


def test_lengths_table_recommendation(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(texts, "--capacity", 9) == 0
    out = capsys.readouterr().out
    assert "4 sequences, 16 tokens" in out
    lines = {line.strip()[:22].strip(): line.split() for line in out.splitlines() if "ms" in line or " s" in line}
    assert lines["padded, 16 at random"][4:7] == ["42.86%", "4", "0"]
    assert lines["fixed chunks, joined"][3:6] == ["11.11%", "2", "1"]
    assert lines["sequential packs"][2:5] == ["40.74%", "3", "0"]
    assert lines["greedy, buffer 64"][3:6] == ["11.11%", "2", "0"]
    assert lines["greedy, buffer 64"][-1] == "*"
    assert lines["greedy, buffer 256"][-1] != "*"
    assert (
        "* chosen: capacity 9, greedy, buffer 64: 2 rows, 11.11% padding.\n9 tokens were given as the capacity" in out
    )
    assert "36% fewer positions than padded batches of 16, 33% fewer positions than sequential packs." in out


def test_where_packing_does_not_pay_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.txt"
    path.write_text(WORD * 3, "utf-8")
    assert run(path) == 0
    assert "more positions than padded batches of 16, 0% fewer" in capsys.readouterr().out


def test_the_histogram_has_a_line_for_each_power_of_two() -> None:
    assert histogram(np.array([1, 2, 3, 4, 7, 8, 16, 0])) == [
        "  tokens  documents",
        "       0  " + "#" * 22 + " 1",
        "       1  " + "#" * 22 + " 1",
        "  2 to 3  " + "#" * 44 + " 2",
        "  4 to 7  " + "#" * 44 + " 2",
        " 8 to 15  " + "#" * 22 + " 1",
        "16 to 31  " + "#" * 22 + " 1",
    ]
    assert histogram(np.array([1, 8]))[2:4] == [" 2 to 3   0", " 4 to 7   0"]
    assert histogram(np.array([2**31 - 1]))[1].startswith("1,073,741,824 to 2,147,483,647  ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], lambda n: pack_greedy(n, 9, buffer_size=64)),
        (["--buffer", "2"], lambda n: pack_greedy(n, 9, buffer_size=2)),
        (["--scheme", "sequential"], lambda n: pack_sequential(n, 9)),
        (["--scheme", "best-fit"], lambda n: pack_best_fit(n, 9)),
    ],
)
def test_the_plan_is_written_as_chosen(texts: Path, capsys: pytest.CaptureFixture[str], options, expected) -> None:
    out = texts.with_name("plan.npz")
    assert run(texts, "--capacity", 9, "--plan", out, *options) == 0
    plan, wanted = PackingPlan.load(out), expected([4, 2, 7, 3])
    assert list(plan.bins()) == list(wanted.bins())
    assert (
        f"{out}: {wanted.n_bins} rows, {wanted.padding_rate:.2%} padding, 0 tokens dropped" in capsys.readouterr().out
    )


def test_overflow_reaches_the_plan(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = texts.with_name("plan.npz")
    assert run(texts, "--capacity", 6, "--overflow", "truncate", "--plan", out) == 0
    assert PackingPlan.load(out).dropped == 1
    assert "1 token dropped" in capsys.readouterr().out
    assert run(texts, "--capacity", 6, "--plan", out) == 0
    assert (PackingPlan.load(out).dropped, PackingPlan.load(out).n_tokens) == (0, 16)
    capsys.readouterr()
    assert run(texts, "--capacity", 6, "--overflow", "error", "--plan", out) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("mamba-lab: lengths[2] is 7, above the capacity 6")
    assert "--overflow split" in captured.err
    assert "scheme" not in captured.out


def test_the_picture_is_a_png(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = texts.with_name("out.png")
    assert run(texts, "--picture", out) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert str(out) in capsys.readouterr().out


def test_a_picture_without_matplotlib_is_refused_before_reading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("no such file.jsonl", "--picture", "out.png") == 1
    err = capsys.readouterr().err
    assert "the package matplotlib is missing: pip install 'mamba-lab[course]'" in err
    assert err.count("\n") == 1


def test_no_picture_needs_no_matplotlib(texts: Path) -> None:
    script = (
        "import sys\nsys.modules['matplotlib'] = None\nfrom mamba_lab import cli\n"
        f"sys.exit(cli.main(['pack', {str(texts)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_skipped_is_counted_and_shown(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with texts.open("a", encoding="utf-8") as file:
        file.write('oops\n{"text": ""}\n')
    assert run(texts) == 1
    err = capsys.readouterr().err
    assert "line 5: the line is not valid JSON" in err
    assert "say --on-error skip" in err
    assert run(texts, "--on-error", "skip") == 0
    out = capsys.readouterr().out
    assert "4 sequences" in out
    assert "2 skipped: 1 × the line is not valid JSON" in out


def test_another_field_and_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "talk.jsonl"
    turns = [{"role": "user", "content": WORD}, {"role": "assistant", "content": WORD}]
    path.write_text(json.dumps({"messages": turns}) + "\n", "utf-8")
    assert run(path, "--text-field", "messages") == 0
    assert "1 sequence, 4 tokens" in capsys.readouterr().out
    assert run(path) == 1
    assert "there is no field 'text'; there is 'messages'. Choose one with --text-field" in capsys.readouterr().err


def test_another_tokenizer_is_used(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("mamba_lab.tokenizer.load_tokenizer", lambda path=None: seen.append(path) or load_tokenizer())
    assert run(texts, "--tokenizer", "other.json") == 0
    assert seen == ["other.json"]


def test_a_shipped_corpus_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat") == 0
    assert f"{len(load_corpus('chat')):,} sequences" in capsys.readouterr().out


def test_lengths_are_counted_in_order_and_few_documents_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held, most = 0, 0

    def documents():
        for i in range(1500):
            yield Document(WORD * (i % 5 + 1), str(i), "here")

    from mamba_lab import corpus

    real = corpus.Corpus.lengths

    def lengths(self, tokenizer):
        nonlocal held, most
        held = len(self)
        most = max(most, held)
        return real(self, tokenizer)

    monkeypatch.setattr(corpus.Corpus, "lengths", lengths)
    stream = CorpusStream(list(documents()), "here", Skipped())
    assert count_lengths(stream, load_tokenizer()).tolist() == [i % 5 + 1 for i in range(1500)]
    assert most == 512
    huge = CorpusStream([Document("x" * 3_000_000, str(i), "here") for i in range(4)], "here", Skipped())
    most = 0
    monkeypatch.setattr(corpus.Corpus, "lengths", lambda self, _: (lens.append(len(self)), np.ones(len(self), int))[1])
    lens: list[int] = []
    count_lengths(huge, load_tokenizer())
    assert lens == [2, 2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope.jsonl"], "there is no file or folder nope.jsonl"),
        (["nope"], "FILE is 'nope'"),
        (["chat", "--plan", "x.txt"], "--plan is x.txt: expected a file that ends in .npz"),
        (["chat", "--picture", "x.jpg"], "--picture is x.jpg: expected a file that ends in .png"),
        (["chat", "--plan", "no/such/folder/x.npz"], "there is no folder no/such/folder"),
        (["chat", "--plan", "/proc/x.npz"], "--plan is /proc/x.npz, which cannot be written: "),
        (["chat", "--picture", "p" * 300 + ".png"], "which cannot be written: File name too long"),
        (["chat", "--scheme", "sequential", "--buffer", "4"], "--buffer goes with --scheme greedy"),
        (["chat", "--tokenizer", "nope.json"], "--tokenizer: there is no file nope.json"),
    ],
)
def test_a_mistake_is_answered_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert run(*words) == 1
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_file_without_documents_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n", "utf-8")
    assert run(path) == 1
    assert "there is no document with a token in it (nothing skipped)" in capsys.readouterr().err


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert run(path) == 1
    err = capsys.readouterr().err
    assert "pyarrow" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["chat", "--capacity", "0"], ["chat", "--buffer", "-3"], ["chat", "--buffer", "²"]])
def test_wrong_numbers_are_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(*words)
    assert stopped.value.code == 2
    assert "is not a positive number" in capsys.readouterr().err


def test_outputs_are_tried_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.npz").mkdir()
    for file in ("chat", "no such file.jsonl"):
        assert run(file, "--plan", tmp_path / "folder.npz") == 1
        captured = capsys.readouterr()
        assert "folder.npz, which is no file. Name a file in it." in captured.err
        assert captured.out == ""
    require_writable_file(tmp_path / "new.npz", "--plan")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npz"]
    (tmp_path / "old.png").write_text("x")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ValueError, match=r"old\.png, which cannot be written: the file may not be written"):
        require_writable_file(tmp_path / "old.png", "--picture")


def test_a_record_s_folder_is_made_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Path] = []
    monkeypatch.setattr("mamba_lab.bench.batching.run", lambda repeats, output: ran.append(output) or 0)
    (tmp_path / "file").write_text("x")
    assert cli.main(["bench", "batching", "--output", str(tmp_path / "file")]) == 1
    assert "file, which takes no files: File exists. Name another folder." in capsys.readouterr().err
    assert ran == []
    assert cli.main(["bench", "batching", "--output", str(tmp_path / "new" / "folder")]) == 0
    assert ran[0].is_dir()
    assert list(ran[0].iterdir()) == []


@pytest.mark.parametrize("planned", [False, True])
def test_what_truncation_drops_is_said_with_the_savings_of_that_plan(
    texts: Path, capsys: pytest.CaptureFixture[str], planned: bool
) -> None:
    out = texts.with_name("plan.npz")
    assert run(texts, "--capacity", 6, "--overflow", "truncate", *(["--plan", out] if planned else [])) == 0
    printed = capsys.readouterr().out
    assert "--overflow truncate drops 1 token (6.25% of 16); split drops none." in printed
    plan = pack_greedy([4, 2, 7, 3], 6, overflow="truncate")
    assert f"* chosen: capacity 6, greedy, buffer 64: {plan.n_bins} rows, {plan.padding_rate:.2%} padding." in printed
    assert (
        f"{1 - 6 * plan.n_bins / 28:.0%} fewer positions than padded batches of 16 (which keep every token), "
        in printed
    )
    assert run(texts, "--capacity", 6, "--overflow", "truncate", "--buffer", 2) == 0
    assert "at this capacity: capacity 6, buffer 64: 3 rows, 16.7% padding, 1 token dropped." in capsys.readouterr().out
    assert run(texts, "--capacity", 6) == 0
    assert "overflow truncate" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        (["--buffer", "1"], "greedy, buffer 1", lambda n: pack_greedy(n, 9, buffer_size=1)),
        (["--scheme", "sequential"], "sequential packs", lambda n: pack_sequential(n, 9)),
        (["--scheme", "best-fit"], "best fit, everything", lambda n: pack_best_fit(n, 9)),
    ],
)
def test_the_savings_are_those_of_the_chosen_plan(
    texts: Path, capsys: pytest.CaptureFixture[str], options, name, expected
) -> None:
    assert run(texts, "--capacity", 9, *options) == 0
    out, plan = capsys.readouterr().out, expected([4, 2, 7, 3])
    assert f"* chosen: capacity 9, {name}: {plan.n_bins} rows, {plan.padding_rate:.2%} padding.\n" in out
    assert "The recommendation at this capacity: capacity 9, buffer 64: 2 rows, 11.1% padding." in out
    share = 1 - plan.n_bins * 9 / 28
    assert f"\n{abs(share):.0%} {'fewer' if share >= 0 else 'more'} positions than padded batches of 16, " in out
    assert [line[2:24].strip() for line in out.splitlines() if line.endswith("  *")] == [name] * ("1" not in name)


def test_nothing_chosen_is_recommended(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(texts) == 0
    out = capsys.readouterr().out
    assert "* recommended: capacity 64, greedy, buffer 64: 1 row, 75.00% padding.\n64 tokens is the smallest" in out
    assert "rows of 64 tokens" in out


def test_a_line_s_limit(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(texts, "--max-line-bytes", 50) == 1
    assert "--max-line-bytes sets the limit" in capsys.readouterr().err
    assert run(texts, "--max-line-bytes", 70) == 0


def test_a_capacity_beyond_int32_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("chat", "--capacity", 2**31)
    assert "2147483648 is above the int32 limit 2147483647" in capsys.readouterr().err
