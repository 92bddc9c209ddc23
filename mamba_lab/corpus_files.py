"""Documents from readers' own files: jsonl, parquet, text, folders of them, and data sets on the Hugging Face hub.

The hub is read by the `datasets` library, as a stream. Files are read here: that library takes a file's name for a
pattern, so that ``data[1].parquet`` would read ``data1.parquet``, and names neither the line nor the reason when a line
of jsonl is bad. No file is held whole, except a text file, which is one document.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mamba_lab.document import Document, Skipped, Turn, render
from mamba_lab.tokenizer import ROLES

__all__ = ["SUFFIXES", "FileReader", "is_hub_id"]

SUFFIXES = (".jsonl", ".parquet", ".txt")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20
_ROWS = 1024


class _Unreadable(Exception):
    """One document cannot be read. `reason` is counted, `detail` adds what only this case knows."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form ``owner/name`` of a data set on the hub, and not the ending of a file."""
    return _HUB_ID.fullmatch(name) is not None and not name.endswith(SUFFIXES)


class FileReader:
    """Reads documents from `path`, from the start each time it is iterated.

    Args:
        path: a file, a folder, or a hub id.
        text_field: the field, or column, that holds the text, or a conversation as a list of {"role", "content"}.
        skip: leave out what cannot be read and count it in `skipped`; otherwise it raises ValueError.
        skipped: where what is left out is counted. Files of another kind in a folder are counted here in either case.
            Hidden files and folders in it, whose names begin with a dot, are not looked at and not counted.
        max_line_bytes: a longer line of jsonl is an error, so that a damaged file cannot fill the memory.
    """

    def __init__(self, path: str, text_field: str, skip: bool, skipped: Skipped, max_line_bytes: int) -> None:
        self._path = path
        self._text_field = text_field
        self._skip = skip
        self._skipped = skipped
        self._max_line_bytes = max_line_bytes

    def __iter__(self) -> Iterator[Document]:
        path = Path(self._path)
        if os.path.isdir(path):
            yield from self._folder(path)
        elif os.path.lexists(path) or not is_hub_id(self._path):
            yield from self._file(path)
        else:
            try:
                yield from self._rows(self._path, lambda: _open_hub(self._path))
            except _Unreadable as error:
                raise ValueError(f"{self._path}: {error}") from error

    def _folder(self, folder: Path) -> Iterator[Document]:
        # Sorted, so that the order is the same on every file system.
        files = sorted(self._files_below(folder))
        if not any(p.suffix in SUFFIXES for p in files):
            raise ValueError(
                f"{folder}: the folder has no {', '.join(SUFFIXES)} file ({self._skipped}; hidden ones are not read). "
                "Put one document a .txt file there, or jsonl."
            )
        for path in files:
            # What is no regular file goes to _file too, which says why.
            if path.suffix in SUFFIXES or not os.path.isfile(path):
                yield from self._file(path)
            else:
                self._skipped.add(f"not a {', '.join(SUFFIXES)} file", str(path))

    def _files_below(self, folder: Path) -> Iterator[Path]:
        """Everything below `folder` that is no folder, and links to folders. Hidden files and folders are left out."""

        def failed(error: OSError) -> None:
            self._failed(_cannot_read(error), str(error.filename))

        for root, folders, files in os.walk(folder, onerror=failed):
            folders[:] = [name for name in folders if not name.startswith(".")]
            links = [name for name in folders if os.path.islink(os.path.join(root, name))]
            yield from (Path(root, name) for name in files + links if not name.startswith("."))

    def _file(self, path: Path) -> Iterator[Document]:
        try:
            _require_regular(path)
            if path.suffix == ".jsonl":
                yield from self._jsonl(path)
            elif path.suffix == ".parquet":
                yield from self._rows(str(path), lambda: _parquet_rows(path, self._text_field))
            elif path.suffix == ".txt":
                yield self._text(path)
            else:
                raise ValueError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}, or a folder of them.")
        except _Unreadable as error:
            self._failed(error, str(path))
        except OSError as error:
            self._failed(_cannot_read(error), str(path))

    def _failed(self, error: _Unreadable, place: str) -> None:
        """Counts the error, or raises it with its place."""
        if not self._skip:
            raise ValueError(
                f'{place}: {error}. Mend it, or pass on_error="skip" to leave such out and count them.'
            ) from error
        self._skipped.add(error.reason, place)

    def _text(self, path: Path) -> Document:
        return Document(_checked(_decode(path.read_bytes().removeprefix(_BOM))), path.name, str(path))

    def _jsonl(self, path: Path) -> Iterator[Document]:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(self._max_line_bytes + 2):
                number += 1
                try:
                    document = self._line(line, file, path, number)
                except _Unreadable as error:
                    self._failed(error, f"{path}, line {number}")
                    continue
                if document is not None:
                    yield document

    def _line(self, line: bytes, file: BinaryIO, path: Path, number: int) -> Document | None:
        """The document of one line, None for a blank one."""
        cut_off = len(line) == self._max_line_bytes + 2 and line[-1:] != b"\n"
        if cut_off or len(line.rstrip(b"\r\n")) > self._max_line_bytes:
            length = len(line) + (_rest_of_line(file) if cut_off else 0)
            reason = f"the line is longer than {self._max_line_bytes:,} bytes"
            raise _Unreadable(reason, f" ({length:,}); max_line_bytes sets the limit")
        if number == 1:
            line = line.removeprefix(_BOM)
        if not line.strip():
            return None
        text = _decode(line)
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise _Unreadable("the line is not valid JSON", f" ({error.msg} at column {error.colno})") from error
        except ValueError as error:  # an integer with more digits than Python converts
            raise _Unreadable("the line has a number that is too long", f" ({error})") from error
        except RecursionError as error:
            raise _Unreadable("the line is not valid JSON", " (nested too deeply)") from error
        return self._document(record, f"{path.name}:{number}", str(path))

    def _rows(self, source: str, open_rows: Callable[[], Iterator[dict[str, Any]]]) -> Iterator[Document]:
        rows = None
        for number in itertools.count():
            try:
                rows = rows if rows is not None else open_rows()
                record = next(rows)
            except StopIteration:
                return
            except (ConnectionError, ImportError):
                raise
            except Exception as error:  # pyarrow, fsspec and the hub each have their own
                where = f" from row {number} on" if number else ""
                raise _cannot_read(error, where) from error
            try:
                document = self._document(record, f"{Path(source).name}:{number}", source)
            except _Unreadable as error:
                self._failed(error, f"{source}, row {number}")
                continue
            yield document

    def _document(self, record: Any, name: str, source: str) -> Document:
        if not isinstance(record, dict):
            raise _Unreadable("the record is no object", f" but a {type(record).__name__}")
        if self._text_field not in record:
            fields = ", ".join(map(repr, list(record)[:8])) or "none"
            raise _Unreadable(
                f"there is no field {self._text_field!r}", f"; there is {fields}. Choose one with text_field"
            )
        value = record[self._text_field]
        if isinstance(value, list):
            turns = tuple(_turn(message) for message in value)
            _checked("".join(turn.text for turn in turns))
            return Document(render(turns), name, source, turns)
        return Document(_checked(value), name, source)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise _Unreadable("the text is no string", f" but a {type(text).__name__}")
    if not text.strip():
        raise _Unreadable("the text is empty")
    return text


def _turn(message: Any) -> Turn:
    if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
        raise _Unreadable('a message is not {"role", "content"}', f" with a role of {', '.join(ROLES)}")
    return Turn(message["role"], message["content"])


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start)
        where = f"byte {error.start}" if line == 0 else f"byte {error.start}, line {line + 1}"
        raise _Unreadable("not UTF-8", f" (0x{data[error.start]:02x} at {where})") from error


def _rest_of_line(file: BinaryIO) -> int:
    """Reads on to the line's end without keeping it, and counts the bytes."""
    length = 0
    while piece := file.readline(_CHUNK):
        length += len(piece)
        if piece.endswith(b"\n"):
            break
    return length


def _cannot_read(error: Exception, where: str = "") -> _Unreadable:
    why = error.strerror if isinstance(error, OSError) else None
    return _Unreadable("cannot be read", f"{where}: {why or f'{type(error).__name__}: {error}'}")


def _require_regular(path: Path) -> None:
    """Raises _Unreadable for a link to nothing or to a folder, and for a pipe, whose opening would wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise _Unreadable("a link to a file that is not there" if path.is_symlink() else "no longer there") from error
    if stat.S_ISDIR(mode):
        raise _Unreadable("a link to a folder, which is not followed")
    if not stat.S_ISREG(mode):
        raise _Unreadable("a pipe, socket or device and no file")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Parquet files and the hub need the {name.partition('.')[0]} library: pip install 'mamba-lab[train]'."
        ) from error


def _parquet_rows(path: Path, field: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, of which only the column `field` is read; without that column, rows of the names alone."""
    parquet = _library("pyarrow.parquet")
    with path.open("rb") as file:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if field not in names:
            yield from itertools.repeat(dict.fromkeys(names), table.metadata.num_rows)
            return
        for batch in table.iter_batches(batch_size=_ROWS, columns=[field]):
            for value in batch.column(field).to_pylist():
                yield {field: value}


def _open_hub(name: str) -> Iterator[dict[str, Any]]:
    datasets = _library("datasets")
    _require_hub(name)
    return iter(datasets.load_dataset(name, split="train", streaming=True))


def _require_hub(name: str) -> None:
    """Fails within seconds when the hub cannot be reached; the library itself retries for minutes."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    why: object = "HF_HUB_OFFLINE is set"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "TRUE", "YES", "ON"}:
        try:
            urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=10).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError as error:
            why = getattr(error, "reason", error)
    raise ConnectionError(
        f"{name}: there is no such file or folder here, and the data set of that name on {endpoint} cannot be fetched "
        f"({why}). Connect to a network, or download the files elsewhere and pass their path."
    )
