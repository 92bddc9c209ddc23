"""The shipped tokenizer: byte-level BPE with 8,192 tokens that gives back every text, and every byte, exactly.

Every byte has a token, and nothing is normalised, so no input is unknown and none changes. Special tokens come only
from code, never from text: ``<|endoftext|>`` in a text is encoded as those thirteen characters. So no text can end a
document, or speak as somebody else.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mamba_lab.paths import data_dir

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Backend

__all__ = ["END", "PAD", "ROLES", "Tokenizer", "load_tokenizer", "role_token"]

END = "<|endoftext|>"
PAD = "<|pad|>"
ROLES = ("user", "assistant", "system")

_ESCAPED_BYTE = re.compile("([\udc80-\udcff])")
# No leading space, runs of spaces, both line ends, capitals, an accent in two characters, one beyond 16 bits, a token.
_PROBE = "A  b\t\r\n\n E\u0301 \N{GRINNING FACE} 12.5 " + END + " "
_INT32 = np.dtype(np.int32)


def role_token(role: str) -> str:
    """The written form of a role's special token, for example ``<|user|>``.

    Raises:
        ValueError: the role is unknown.
    """
    if role not in ROLES:
        raise ValueError(f"role is {role!r}: expected one of {', '.join(ROLES)}.")
    return f"<|{role}|>"


class Tokenizer:
    """Text to token ids and back. Made by :func:`load_tokenizer`.

    Attributes:
        vocab_size: number of tokens, special ones included.
        pad_id: id of ``<|pad|>``. It is not 0, so that code which takes 0 for padding is found out.
        end_id: id of ``<|endoftext|>``.
        role_ids: ids of the role tokens by role: ``user``, ``assistant``, ``system``.
    """

    def __init__(self, backend: _Backend, source: str) -> None:
        self._backend = backend
        # A file may carry these over from training; they would cut texts off, or add tokens to a batch, in silence.
        backend.no_truncation()
        backend.no_padding()
        if backend.normalizer is not None:
            raise ValueError(
                f"{source} has a normalizer ({type(backend.normalizer).__name__}), which changes the text before it is "
                'encoded. Set "normalizer" to null in the file, or use the shipped tokenizer.'
            )
        # The special tokens are in the vocabulary, but text may not name them.
        backend.encode_special_tokens = True
        self.vocab_size: int = backend.get_vocab_size()
        self._special: dict[int, str] = {}
        self.end_id = self._special_id(END, source)
        self.pad_id = self._special_id(PAD, source)
        self.role_ids = {role: self._special_id(role_token(role), source) for role in ROLES}
        self._bytes = [self._token_bytes(i, source) for i in range(self.vocab_size)]
        self._byte_ids = self._single_bytes(source)
        if (back := self.decode(self.encode(_PROBE))) != _PROBE:
            raise ValueError(
                f"{source} changes the text: {_PROBE!r} comes back as {back!r}. Its pre_tokenizer must keep every "
                'character and have "add_prefix_space": false; or use the shipped tokenizer.'
            )

    def _special_id(self, token: str, source: str) -> int:
        found = self._backend.token_to_id(token)
        if found is None:
            raise ValueError(
                f"{source} has no token {token}. Train it with data/build_tokenizer.py, or use the shipped one."
            )
        self._special[found] = token
        return found

    def _token_bytes(self, token_id: int, source: str) -> bytes:
        if token_id in self._special:
            return self._special[token_id].encode()
        token, alphabet = self._backend.id_to_token(token_id) or "", _byte_alphabet()
        if not alphabet.keys() >= set(token):
            raise ValueError(
                f"{source} has the token {token!r}, which stands for no bytes: it is no byte-level tokenizer."
            )
        return bytes(alphabet[c] for c in token)

    def _single_bytes(self, source: str) -> list[int]:
        ids = {b[0]: i for i, b in enumerate(self._bytes) if len(b) == 1}
        if len(ids) != 256:
            raise ValueError(f"{source} has tokens for {len(ids)} of 256 bytes: it is no byte-level tokenizer.")
        return [ids[byte] for byte in range(256)]

    def encode(self, text: str, *, add_end: bool = False) -> list[int]:
        """The token ids of `text`; `add_end` puts ``<|endoftext|>`` after them.

        Special tokens written in `text` are encoded as plain characters. Any str works, lone surrogates too.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):
            if not isinstance(text, str):
                raise TypeError(
                    f"text is a {type(text).__name__}: expected str. For bytes there is encode_bytes."
                ) from None
            ids = self.encode_bytes(text.encode("utf-8", "surrogatepass"))
        return [*ids, self.end_id] if add_end else ids

    def encode_batch(self, texts: Iterable[str], *, add_end: bool = False) -> list[npt.NDArray[np.int32]]:
        """The token ids of each text, as int32 arrays: :meth:`encode` for many, on all cores.

        Raises:
            TypeError: a text is not a str; the message names its index.
        """
        texts = list(texts)
        wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong is not None:
            raise TypeError(f"texts[{wrong}] is a {type(texts[wrong]).__name__}: expected str.")
        try:
            encoded = [e.ids for e in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        except (UnicodeEncodeError, TypeError):
            encoded = [self.encode(text) for text in texts]
        end = [self.end_id] if add_end else []
        return [np.array(ids + end, dtype=_INT32) for ids in encoded]

    def encode_turns(self, turns: Iterable[tuple[str, str]], *, add_end: bool = False) -> list[int]:
        """The token ids of a conversation: for each (role, text) the role's special token, then the text.

        Raises:
            ValueError: a role is unknown.
        """
        ids: list[int] = []
        for role, text in turns:
            role_token(role)
            ids += [self.role_ids[role], *self.encode(text)]
        return [*ids, self.end_id] if add_end else ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """The token ids of any bytes. What is valid UTF-8 is encoded as text, every other byte as its own token.

        Raises:
            TypeError: `data` is no bytes.
        """
        if not isinstance(data, (bytes, bytearray)):
            raise TypeError(f"data is a {type(data).__name__}: expected bytes. For text there is encode.")
        ids: list[int] = []
        for i, piece in enumerate(_ESCAPED_BYTE.split(data.decode("utf-8", "surrogateescape"))):
            if i % 2:
                ids.append(self._byte_ids[ord(piece) - 0xDC00])
            elif piece:
                ids += self._backend.encode(piece, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
        """The text of `ids`. Special tokens appear as they are written.

        ``decode(encode(text)) == text`` for any str. Ids that end inside a character, as half-generated text does, give
        the replacement character there; :meth:`decode_bytes` keeps the bytes.

        Raises:
            ValueError: an id is no whole number or outside the vocabulary; the message names its index.
            TypeError: `ids` is no sequence.
        """
        data = self.decode_bytes(ids)
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace")

    def decode_bytes(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
        """The bytes of `ids`: ``decode_bytes(encode_bytes(data)) == data`` for any bytes.

        Raises:
            ValueError: an id is no whole number or outside the vocabulary; the message names its index.
            TypeError: `ids` is no sequence.
        """
        if not isinstance(ids, Iterable):
            raise TypeError(f"ids is a {type(ids).__name__}: expected a sequence of ids. Put a single one in a list.")
        pieces = []
        for i, token_id in enumerate(ids):
            pieces.append(self._bytes[self._checked_id(token_id, "ids", i)])
        return b"".join(pieces)

    def token(self, token_id: int) -> str:
        """One token as text for display; half a character shows as the replacement character.

        Raises:
            ValueError: the id is no whole number or outside the vocabulary.
        """
        return self._bytes[self._checked_id(token_id, "token_id")].decode("utf-8", "replace")

    def _checked_id(self, token_id: object, argument: str, place: int | None = None) -> int:
        try:
            index = operator.index(token_id)  # type: ignore[arg-type]
        except TypeError:
            index = -1
        if 0 <= index < self.vocab_size:
            return index
        where = argument if place is None else f"{argument}[{place}]"
        raise ValueError(
            f"{where} is {token_id!r}: expected a whole number from 0 to {self.vocab_size - 1}, an id of the "
            "vocabulary. Pass what encode of this tokenizer returned."
        )

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size:,} tokens)"


def load_tokenizer(path: str | Path | None = None) -> Tokenizer:
    """The shipped tokenizer, or the one in `path`: a ``tokenizer.json`` of the `tokenizers` library, byte-level.

    The shipped one is read once per process. Truncation and padding set in a file are turned off.

    Raises:
        ImportError: the `tokenizers` library is missing; the message names the remedy.
        FileNotFoundError: there is no such file.
        ValueError: the file is no tokenizer, not byte-level, changes the text, or lacks the special tokens.
    """
    return _load(str(data_dir() / "tokenizer.json" if path is None else path))


@lru_cache(maxsize=4)
def _load(path: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError as error:
        raise ImportError("The tokenizer needs the tokenizers library: pip install 'mamba-lab[train]'.") from error
    if not Path(path).is_file():
        raise FileNotFoundError(f"path: there is no file {path}.")
    try:
        backend: Any = Backend.from_file(path)
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{path} is no tokenizer.json of the tokenizers library: {error}") from error
    return Tokenizer(backend, path)


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves, the other 68 bytes for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {**{chr(b): b for b in printable}, **{chr(0x100 + i): b for i, b in enumerate(others)}}
