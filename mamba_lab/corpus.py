"""Documents: the three corpora that ship with the course, and readers' own files.

    corpus = load_corpus("docs")          # or "code", "code-modules", "chat"
    corpus = load_corpus("my.jsonl")      # or .parquet, .txt, a folder of them, a data set on the Hugging Face hub
    lengths = corpus.lengths()            # tokens of each document

The shipped corpora need neither the network nor any library beyond numpy; data/README.md says where they come from.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from mamba_lab.corpus_files import SUFFIXES, FileReader, is_hub_id
from mamba_lab.document import Document, Skipped, Turn, render
from mamba_lab.document_tokens import DocumentTokens, mark_said, tokenize_documents
from mamba_lab.paths import data_dir
from mamba_lab.tokenizer import Tokenizer, load_tokenizer

__all__ = ["CORPORA", "Corpus", "CorpusStream", "Document", "Skipped", "Turn", "load_corpus"]

CORPORA = {
    "docs": "the Python 3.11 documentation, a document a page",
    "code": "Python's standard library, a document a function",
    "code-modules": "Python's standard library, a document a module",
    "chat": "conversations between two people",
}
_NAME_SHOWN = 200  # characters of a name in a message


class Corpus(Sequence[Document]):
    """A sequence of documents, with their token ids and lengths on request.

    Attributes:
        name: the corpus's name or the path it was read from.
        skipped: what was left out while reading, by reason.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        name: str,
        skipped: Skipped | None = None,
        counted: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._documents = list(documents)
        self.name = name
        self.skipped = skipped if skipped is not None else Skipped()
        self._counted = counted
        self._tokens: dict[Tokenizer, DocumentTokens] = {}

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> Corpus: ...
    def __getitem__(self, index: int | slice) -> Document | Corpus:
        if not isinstance(index, slice):
            return self._documents[index]
        counted = None if self._counted is None else self._counted[index]
        part = Corpus(self._documents[index], self.name, self.skipped, counted)
        part._tokens = {
            tokenizer: DocumentTokens(ids[index], starts[index]) for tokenizer, (ids, starts) in self._tokens.items()
        }
        return part

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents)

    def __repr__(self) -> str:
        return f"Corpus({self.name!r}, {len(self):,} documents)"

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [document.text for document in self._documents]

    def tokenize(self, tokenizer: Tokenizer | None = None) -> list[npt.NDArray[np.int32]]:
        """The token ids of every document, int32 [length] each, without an end token. Computed once per tokenizer.

        Text is encoded as plain text. The role tokens of a conversation are set from its turns, so that
        nobody's words can imitate one.
        Do not write to the arrays: they are shared.
        """
        return self._tokenized(tokenizer).ids

    def said_by(self, role: str = "assistant", tokenizer: Tokenizer | None = None) -> list[npt.NDArray[np.bool_]]:
        """Which tokens of every conversation ``role`` says: bool [length] each, aligned with :meth:`tokenize`.

        A turn's own role token is given, not said. The role token of the turn that follows counts as said, because it
        ends the turn: a model that never learns it never stops. ``make_targets(ids, "assistant", said=...)`` takes it.

        Raises:
            ValueError: the role is unknown, or a document is no conversation; the message names it.
        """
        ids, starts = self._tokenized(tokenizer)
        return [mark_said(d, len(i), s, role) for d, i, s in zip(self._documents, ids, starts, strict=True)]

    def _tokenized(self, tokenizer: Tokenizer | None) -> DocumentTokens:
        tokenizer = tokenizer or load_tokenizer()
        if tokenizer not in self._tokens:
            self._tokens[tokenizer] = tokenize_documents(self._documents, tokenizer)
        return self._tokens[tokenizer]

    def lengths(self, tokenizer: Tokenizer | None = None) -> npt.NDArray[np.int64]:
        """The number of tokens of every document, int64 [len(corpus)].

        Those of a shipped corpus under the shipped tokenizer were counted when the tokenizer was trained.
        """
        if self._counted is not None and (tokenizer is None or tokenizer is load_tokenizer()):
            return self._counted.copy()
        return np.array([len(ids) for ids in self.tokenize(tokenizer)], dtype=np.int64)


class CorpusStream(Iterable[Document]):
    """Documents read one at a time, for files larger than the memory. Each iteration reads from the start.

    Attributes:
        name: the path it is read from.
        skipped: what the current or last pass left out, by reason.
    """

    def __init__(self, reader: Iterable[Document], name: str, skipped: Skipped) -> None:
        self._reader = reader
        self.name = name
        self.skipped = skipped

    def __iter__(self) -> Iterator[Document]:
        self.skipped.clear()
        yield from self._reader


@overload
def load_corpus(
    name_or_path: str | Path,
    *,
    on_error: str = ...,
    text_field: str = ...,
    streaming: Literal[False] = ...,
    max_line_bytes: int = ...,
) -> Corpus: ...
@overload
def load_corpus(
    name_or_path: str | Path,
    *,
    on_error: str = ...,
    text_field: str = ...,
    streaming: Literal[True],
    max_line_bytes: int = ...,
) -> CorpusStream: ...
def load_corpus(
    name_or_path: str | Path,
    *,
    on_error: str = "raise",
    text_field: str = "text",
    streaming: bool = False,
    max_line_bytes: int = 16 << 20,
) -> Corpus | CorpusStream:
    """Documents by name or from a path.

    Args:
        name_or_path: ``docs``, ``code``, ``code-modules`` or ``chat``; or a ``.jsonl`` file (one object a line), a
            ``.parquet`` file, a ``.txt`` file (one document), a folder of those; or ``owner/name`` of a data set on the
            Hugging Face hub, of which the split ``train`` is read. A folder is read with the folders in it, but not
            what is hidden there: files and folders whose names begin with a dot. Links to folders are not followed.
        on_error: ``raise`` stops at the first document, file or folder that cannot be read and says where and why.
            ``skip`` leaves it out and counts it in ``skipped``.
        text_field: the field, or column, that holds the text, or a conversation as a list of {"role", "content"}.
        streaming: give the documents one at a time instead of keeping them all: a :class:`CorpusStream`.
        max_line_bytes: a longer line of jsonl cannot be read.

    Raises:
        ValueError: the name is unknown, an argument is wrong, or a document cannot be read; the message has file, line
            and reason.
        FileNotFoundError: there is no such file.
        ConnectionError: a data set on the hub cannot be reached.
        ImportError: a parquet file and no `pyarrow` library, or the hub and no `datasets` library.
    """
    _check_arguments(name_or_path, on_error, text_field, streaming, max_line_bytes)
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in CORPORA:
        corpus = _shipped(name)
        return CorpusStream(corpus, name, corpus.skipped) if streaming else corpus
    _require_source(name)
    skipped = Skipped()
    reader = FileReader(name, text_field, on_error == "skip", skipped, max_line_bytes)
    return CorpusStream(reader, name, skipped) if streaming else Corpus(reader, name, skipped)


def _check_arguments(
    name_or_path: object, on_error: object, text_field: object, streaming: object, max_line_bytes: object
) -> None:
    if not isinstance(name_or_path, (str, Path)) or not str(name_or_path).strip():
        raise ValueError(
            f"name_or_path is {name_or_path!r}: expected a corpus's name ({', '.join(CORPORA)}) or a path. "
            'The current folder is ".".'
        )
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is {on_error!r}: expected "raise" or "skip".')
    if not isinstance(text_field, str):
        raise ValueError(f'text_field is {text_field!r}: expected the name of one field, such as "text".')
    if not isinstance(streaming, bool):
        raise ValueError(f"streaming is {streaming!r}: expected True or False.")
    if not isinstance(max_line_bytes, (int, np.integer)) or isinstance(max_line_bytes, bool) or max_line_bytes < 1:
        raise ValueError(
            f"max_line_bytes is {max_line_bytes!r}: expected a whole number of bytes, 1 or more, such as 16 << 20."
        )


def _require_source(name: str) -> None:
    try:
        os.stat(name)
        return
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # a name the system does not take, or no permission to look
        shown = name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}... ({len(name):,} characters)"
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"name_or_path: {shown!r} cannot be looked up: {why}. Pass a path that can be read."
        ) from error
    if is_hub_id(name):
        return
    if name.endswith(SUFFIXES) or len(Path(name).parts) > 1:
        raise FileNotFoundError(f"name_or_path: there is no file or folder {name}.")
    known = "; ".join(f'"{key}" ({what})' for key, what in CORPORA.items())
    raise ValueError(
        f"name_or_path is {name!r}: no corpus has that name, and there is no such file. Known are {known}. A path to a "
        f"{', '.join(SUFFIXES)} file or to a folder of them works too, and owner/name of a data set on the hub."
    )


@lru_cache(maxsize=len(CORPORA))
def _shipped(name: str) -> Corpus:
    path = data_dir() / "corpus" / f"{name.partition('-')[0]}.jsonl.xz"
    records = map(json.loads, lzma.decompress(path.read_bytes()).splitlines())
    if name == "code":
        documents = [d for record in records for d in _functions(record)]
    elif name == "chat":
        documents = [_conversation(record) for record in records]
    else:
        documents = [Document(record["text"], record["id"], name) for record in records]
    counted = json.loads((data_dir() / "corpus" / "lengths.json").read_text("utf-8"))[name]
    return Corpus(documents, name, counted=np.array(counted, dtype=np.int64))


def _conversation(record: dict[str, Any]) -> Document:
    turns = tuple(Turn("assistant" if second else "user", text) for second, text in record["turns"])
    return Document(render(turns), str(record["id"]), "chat", turns)


def _functions(record: dict[str, Any]) -> Iterator[Document]:
    """The functions of a stored module, with the indentation they have in a class taken off."""
    lines = str(record["text"]).split("\n")
    for name, start, stop in record["functions"]:
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        text = "\n".join(line.removeprefix(indent) for line in lines[start:stop])
        yield Document(text + "\n", f"{record['id']}:{name}", "code")
