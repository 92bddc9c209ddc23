"""Readers' own files: the right documents, and for a wrong one the file, the line and the reason (case 31)."""

from __future__ import annotations

import errno
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from mamba_lab.corpus import Corpus, CorpusStream, Turn, load_corpus

LONG = 50_000_000


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good lines 1, 3, 5, 7 and 9; between them a bad line, an empty text, a non-UTF-8 byte and a line of 50 MB."""
    path = tmp_path_factory.mktemp("damaged") / "damaged.jsonl"
    lines = [
        b'{"text": "one"}',
        b'{"text": "cut off',
        b'{"text": "three"}',
        b'{"text": "  "}',
        b'{"text": "five"}',
        b'{"text": "caf\xe9"}',
        b'{"text": "seven"}',
        b'{"text": "' + b"x" * LONG + b'"}',
        b'{"text": "nine"}',
        b"[1, 2]",
        b'{"body": "no text"}',
        b'{"text": 12}',
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_skip_counts_by_reason_and_keeps_the_rest(damaged: Path) -> None:
    corpus = load_corpus(damaged, on_error="skip")
    assert corpus.texts == ["one", "three", "five", "seven", "nine"]
    assert [document.id for document in corpus] == [f"damaged.jsonl:{n}" for n in (1, 3, 5, 7, 9)]
    assert corpus.skipped.reasons == {
        "the line is not valid JSON": 1,
        "the text is empty": 1,
        "not UTF-8": 1,
        "the line is longer than 16,777,216 bytes": 1,
        "the record is no object": 1,
        "there is no field 'text'": 1,
        "the text is no string": 1,
    }
    assert corpus.skipped.count == 7
    assert corpus.skipped.places["not UTF-8"] == [f"{damaged}, line 6"]
    assert "line 2" in str(corpus.skipped)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (2, "the line is not valid JSON"),
        (4, "the text is empty"),
        (6, r"not UTF-8 \(0xe9 at byte 13\)"),
        (8, r"the line is longer than 16,777,216 bytes \(50,000,013\)"),
        (10, "the record is no object but a list"),
        (11, r"there is no field 'text'; there is 'body'"),
        (12, "the text is no string but a int"),
    ],
)
def test_raise_names_file_line_and_reason(damaged: Path, tmp_path: Path, line: int, reason: str) -> None:
    lines = damaged.read_bytes().split(b"\n")
    path = tmp_path / "one.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + lines[line - 1] + b"\n")
    with pytest.raises(ValueError, match=rf"one\.jsonl, line 2: {reason}.*on_error"):
        load_corpus(path)


def test_a_long_line_is_not_held(damaged: Path) -> None:
    tracemalloc.start()
    texts = [
        document.text for document in load_corpus(damaged, on_error="skip", streaming=True, max_line_bytes=100_000)
    ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(texts) == 5
    assert peak < LONG / 5


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "limit.jsonl"
    line = b'{"text": "abcdef"}'
    path.write_bytes(line + end)
    assert load_corpus(path, max_line_bytes=len(line)).texts == ["abcdef"]
    with pytest.raises(ValueError, match="longer than 17 bytes"):
        load_corpus(path, max_line_bytes=len(line) - 1)


def test_blank_lines_and_a_byte_order_mark_are_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\n  \n{"text": "b"}')
    corpus = load_corpus(str(path))
    assert corpus.texts == ["a", "b"]
    assert corpus[1].id == "bom.jsonl:4"
    assert corpus.skipped.count == 0


@pytest.mark.skipif(not hasattr(sys, "set_int_max_str_digits"), reason="this Python converts any number of digits")
def test_a_number_of_too_many_digits_is_counted_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two", "n": %s}\n{"text": "three"}\n' % ("9" * 5000))
    corpus = load_corpus(path, on_error="skip")
    assert corpus.texts == ["one", "three"]
    assert corpus.skipped.reasons == {"the line has a number that is too long": 1}
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: the line has a number that is too long"):
        load_corpus(path)


def test_text_field_reads_another_field_and_conversations(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    path.write_text(json.dumps({"body": "b", "messages": messages}) + "\n")
    assert load_corpus(path, text_field="body").texts == ["b"]
    (document,) = load_corpus(path, text_field="messages")
    assert document.turns == (Turn("system", "Be kind."), Turn("user", "Hello"))
    assert document.text == "<|system|>Be kind.<|user|>Hello"
    path.write_text(json.dumps({"messages": [{"role": "bot", "content": "x"}]}))
    with pytest.raises(ValueError, match="line 1: a message is not"):
        load_corpus(path, text_field="messages")


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_bytes("Été\r\n\nend".encode())
    corpus = load_corpus(path)
    assert corpus.texts == ["Été\r\n\nend"]
    path.write_bytes(b"fine\nbad \xff byte")
    with pytest.raises(ValueError, match=r"story\.txt: not UTF-8 \(0xff at byte 9, line 2\)"):
        load_corpus(path)


def test_a_folder_is_read_in_order_and_other_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # File systems list a folder in any order; here the wrong one.
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda *a, **k: [(r, d, sorted(f, reverse=True)) for r, d, f in reversed(list(walk(*a, **k)))]
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n')
    (tmp_path / "sub" / "c.txt").write_text("third")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    corpus = load_corpus(tmp_path)
    assert corpus.texts == ["first", "second", "third"]
    assert corpus.skipped.count == 1
    assert "picture.png" in str(corpus.skipped)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"the folder has no \.jsonl, \.parquet, \.txt file"):
        load_corpus(empty)


def test_hidden_files_and_folders_are_not_read(tmp_path: Path) -> None:
    for hidden in (".git", ".ipynb_checkpoints", "sub/.cache/deep"):
        (tmp_path / hidden).mkdir(parents=True)
        (tmp_path / hidden / "a.txt").write_text("hidden")
    (tmp_path / ".secret.txt").write_text("hidden")
    with pytest.raises(ValueError, match="hidden ones are not read"):
        load_corpus(tmp_path)
    (tmp_path / "sub" / "b.txt").write_text("seen")
    corpus = load_corpus(tmp_path)
    assert (corpus.texts, corpus.skipped.count) == (["seen"], 0)
    # The folder that was asked for may be hidden itself.
    assert load_corpus(tmp_path / ".git").texts == ["hidden"]


def _broken_link(path: Path) -> None:
    path.symlink_to("nowhere.txt")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def _folder_link(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_broken_link, "a link to a file that is not there"),
        (_link_to_itself, "cannot be read"),
        (_folder_link, "a link to a folder, which is not followed"),
        (os.mkfifo, "a pipe, socket or device and no file"),
    ],
)
@pytest.mark.parametrize("name", ["b.txt", "b"])
def test_what_is_no_file_is_counted_or_raises(
    tmp_path: Path, make: Callable[[Path], None], reason: str, name: str
) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.txt").write_text("two")
    make(tmp_path / name)
    corpus = load_corpus(tmp_path, on_error="skip")
    assert corpus.texts == ["one", "two"]
    assert corpus.skipped.places == {reason: [str(tmp_path / name)]}
    with pytest.raises(ValueError, match=rf"{name}: {reason}"):
        load_corpus(tmp_path)


@pytest.mark.parametrize("name", ["b.txt", "b.jsonl", "b.parquet", "sub"])
def test_without_permission_is_counted_or_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    # Root may read everything, so the system's answer is given here.
    open_file, list_folder = Path.open, os.scandir

    def refuse(call: Callable[..., object]) -> Callable[..., object]:
        def answer(path: str | Path, *rest: object, **options: object) -> object:
            if Path(path) == tmp_path / name:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *rest, **options)

        return answer

    (tmp_path / "a.txt").write_text("one")
    if name == "sub":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(Path, "open", refuse(open_file))
    monkeypatch.setattr(os, "scandir", refuse(list_folder))
    corpus = load_corpus(tmp_path, on_error="skip")
    assert corpus.texts == ["one"]
    assert corpus.skipped.places == {"cannot be read": [str(tmp_path / name)]}
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ValueError, match=rf"{name}: cannot be read: Permission denied"):
            load_corpus(path)


def test_a_file_gone_between_two_passes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    stream = load_corpus(path, streaming=True)
    assert len(list(stream)) == 1
    path.unlink()
    with pytest.raises(ValueError, match=r"a\.txt: no longer there"):
        list(stream)


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"text": ["one", "", None, "four"], "n": [1, 2, 3, 4]}), path)
    corpus = load_corpus(path, on_error="skip")
    assert corpus.texts == ["one", "four"]
    assert corpus.skipped.reasons == {"the text is empty": 1, "the text is no string": 1}
    with pytest.raises(ValueError, match=r"table\.parquet, row 1: the text is empty"):
        load_corpus(path)
    with pytest.raises(ValueError, match=r"row 0: there is no field 'body'; there is 'text', 'n'"):
        load_corpus(path, text_field="body")
    path.write_bytes(b"PAR1 no table")
    with pytest.raises(ValueError, match=r"table\.parquet: cannot be read: ArrowInvalid"):
        load_corpus(path)
    assert load_corpus(path, on_error="skip").skipped.reasons == {"cannot be read": 1}


@pytest.mark.parametrize(
    "name", ["data[1]", "d*", "data?", "data[", "]data", "{data1,x}", "a::b", "file:x", "100% #1", "data[[]1]"]
)
def test_a_parquet_name_is_no_pattern(tmp_path: Path, name: str) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for stem, text in [("data1", "other"), ("data12", "other"), (name, "asked for")]:
        with (tmp_path / f"{stem}.parquet").open("wb") as file:
            parquet.write_table(pa.table({"text": [text]}), file)
    assert load_corpus(tmp_path / f"{name}.parquet").texts == ["asked for"]


def test_a_damaged_parquet_file_keeps_the_rows_before(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    texts = [f"row {i} " * 50 for i in range(2048)]
    parquet.write_table(pa.table({"text": texts}), path, row_group_size=1024, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 2000] = b"\xff" * 2000
    path.write_bytes(data)
    corpus = load_corpus(path, on_error="skip")
    assert corpus.texts == texts[:1024]
    assert corpus.skipped.places == {"cannot be read": [str(path)]}
    with pytest.raises(ValueError, match=r"table\.parquet: cannot be read from row 1024 on: "):
        load_corpus(path)


def test_parquet_columns_and_types(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    # More rows than are read at once, and a column of dates that Python has no value for, which nobody asked for.
    texts = [f"row {i}" for i in range(3000)]
    chat = [[{"role": "user", "content": text}] for text in texts]
    dates = pa.array([2**62] * 3000, pa.timestamp("ms"))
    parquet.write_table(pa.table({"a.text": texts, "a": chat, "date": dates}), path)
    corpus = load_corpus(path, text_field="a.text")
    assert corpus.texts == texts
    assert corpus[2999].id == "table.parquet:2999"
    assert load_corpus(path, text_field="a")[2999].turns == (Turn("user", "row 2999"),)
    corpus = load_corpus(path, text_field="body", on_error="skip")
    assert (len(corpus), corpus.skipped.count) == (0, 3000)


def test_a_parquet_file_without_rows_has_no_documents(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "empty.parquet"
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert len(load_corpus(path)) == 0
    assert list(load_corpus(path, streaming=True)) == []


def test_a_stream_reads_anew_each_time_and_stops_early(damaged: Path) -> None:
    stream = load_corpus(damaged, on_error="skip", streaming=True)
    assert isinstance(stream, CorpusStream)
    for _ in range(2):
        assert len(list(stream)) == 5
        assert stream.skipped.count == 7
    assert next(iter(load_corpus(damaged, streaming=True))).text == "one"


def test_a_file_gives_tokens_like_any_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "The dog is hungry"}\n{"text": "Read books"}\n')
    corpus = load_corpus(path)
    assert isinstance(corpus, Corpus)
    assert corpus.lengths().tolist() == [4, 2]


def test_wrong_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        load_corpus(tmp_path / "none.jsonl")
    (tmp_path / "a.doc").write_text("x")
    with pytest.raises(ValueError, match=r"a\.doc: expected a file that ends in \.jsonl, \.parquet, \.txt"):
        load_corpus(tmp_path / "a.doc")
    with pytest.raises(ValueError, match="max_line_bytes is 0"):
        load_corpus(tmp_path / "a.doc", max_line_bytes=0)


@pytest.mark.parametrize("offline", [True, False])
def test_the_hub_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    pytest.importorskip("datasets")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Port 9 of this machine answers nobody: what a host without a network sees.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ConnectionError, match=r"owner/name: there is no such file or folder here.*cannot be fetched"
    ) as caught:
        load_corpus("owner/name")
    assert ("HF_HUB_OFFLINE is set" in str(caught.value)) is offline


def test_the_hub_with_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(name: str, **options: object) -> list[dict[str, str]]:
        asked.append((name, options))
        return [{"text": "from the hub"}]

    monkeypatch.setattr("mamba_lab.corpus_files._require_hub", lambda name: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_corpus("owner/name").texts == ["from the hub"]
    assert asked == [("owner/name", {"split": "train", "streaming": True})]
