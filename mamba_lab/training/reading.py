"""Tokenizer and documents as a run's settings name them, and errors that name the setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mamba_lab.corpus import Corpus, CorpusStream, load_corpus
from mamba_lab.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from .config import DataConfig

# What the package's messages call an argument, and what it is called here.
_WORDS = (
    ("name_or_path: ", "data.corpus: "),
    ("name_or_path is ", "data.corpus is "),
    ('pass on_error="skip"', 'set data.on_error = "skip"'),
    ("Choose one with text_field", "Choose one with data.text_field"),
    ("max_line_bytes sets", "data.max_line_bytes sets"),
    ("path: there is no file", "data.tokenizer: there is no file"),
    ('make_targets(ids, "whole")', 'data.teach = "whole"'),
    ("Read a field with", "Name with data.text_field a field with"),
)


@contextmanager
def settings_named() -> Iterator[None]:
    """An error inside the block names the setting instead of the argument."""
    try:
        yield
    except (ValueError, OSError) as error:
        message = str(error)
        for ours, setting in _WORDS:
            message = message.replace(ours, setting)
        if message == str(error):
            raise
        kind = ValueError if isinstance(error, ValueError) else type(error)
        raise kind(message) from error


def read_tokenizer(data: DataConfig) -> Tokenizer:
    """The run's tokenizer."""
    with settings_named():
        return load_tokenizer(data.tokenizer)


def read_corpus(data: DataConfig) -> Corpus:
    """The run's documents, all of them."""
    with settings_named():
        return load_corpus(data.corpus, **_reading(data))


def stream_corpus(data: DataConfig) -> CorpusStream:
    """The run's documents, one after another."""
    with settings_named():
        return load_corpus(data.corpus, streaming=True, **_reading(data))


def _reading(data: DataConfig) -> dict[str, Any]:
    return {"on_error": data.on_error, "text_field": data.text_field, "max_line_bytes": data.max_line_bytes}
