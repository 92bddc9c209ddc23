"""The token ids of documents, and which of them somebody in a conversation says.

Text is encoded as plain text. The role tokens of a conversation are set from its turns, so that nobody's words can
imitate one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mamba_lab.document import Document
from mamba_lab.tokenizer import ROLES, Tokenizer, load_tokenizer, role_token

__all__ = ["DocumentTokens", "mark_said", "said_by", "tokenize_document", "tokenize_documents"]


class DocumentTokens(NamedTuple):
    """The tokens of several documents, a list entry each.

    Attributes:
        ids: int32 [n], without an end token. Read-only: they may be shared.
        turn_starts: int64 [number of turns], where each turn's role token stands; None where it is no conversation.
    """

    ids: list[npt.NDArray[np.int32]]
    turn_starts: list[npt.NDArray[np.int64] | None]


def tokenize_documents(documents: Iterable[Document], tokenizer: Tokenizer | None = None) -> DocumentTokens:
    """Every document's tokens, encoded on all cores.

    Raises:
        ValueError: what is no Document, or a turn of an unknown role.
    """
    tokenizer = tokenizer or load_tokenizer()
    documents = [_checked(document) for document in documents]
    pieces = [piece for d in documents for piece in ([t.text for t in d.turns] if d.turns is not None else [d.text])]
    encoded = iter(tokenizer.encode_batch(pieces))
    result = DocumentTokens([], [])
    for document in documents:
        starts = None
        if document.turns is None:
            ids = next(encoded)
        else:
            parts = [part for turn in document.turns for part in ([tokenizer.role_ids[turn.role]], next(encoded))]
            ids = np.concatenate(parts, dtype=np.int32) if parts else np.empty(0, np.int32)
            starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)[:-1:2]
        ids.flags.writeable = False
        result.ids.append(ids)
        result.turn_starts.append(starts)
    return result


def _checked(document: Document) -> Document:
    if not isinstance(document, Document):
        raise ValueError(
            f"{document!r:.60} is a {type(document).__name__}, expected a Document: "
            f'Document(text, "its id", "its source"). For the ids of a text call load_tokenizer().encode(text).'
        )
    for number, turn in enumerate(document.turns or ()):
        if turn.role not in ROLES:
            raise ValueError(
                f"document {document.id!r} (from {document.source}): turns[{number}] has the role {turn.role!r}, "
                f"expected one of {', '.join(ROLES)}."
            )
    return document


def tokenize_document(document: Document, tokenizer: Tokenizer | None = None) -> npt.NDArray[np.int32]:
    """The token ids of one document, int32 [n], without an end token: what ``Corpus.tokenize`` gives for it."""
    return tokenize_documents([document], tokenizer).ids[0]


def said_by(document: Document, role: str = "assistant", tokenizer: Tokenizer | None = None) -> npt.NDArray[np.bool_]:
    """Which tokens of a conversation ``role`` says, bool [n], aligned with :func:`tokenize_document`.

    These are the tokens of the role's turns, without the role token in front: that one is given, not said. The role
    token of the turn that follows counts as said, because it ends the turn: a model that never learns it never stops.
    After a last turn there is no such token.

    Raises:
        ValueError: the role is unknown, or the document is no conversation.
    """
    (ids,), (starts,) = tokenize_documents([document], tokenizer)
    return mark_said(document, len(ids), starts, role)


def mark_said(
    document: Document, length: int, turn_starts: npt.NDArray[np.int64] | None, role: str
) -> npt.NDArray[np.bool_]:
    """:func:`said_by` for a document of which the tokens are counted already."""
    role_token(role)
    if document.turns is None or turn_starts is None:
        raise ValueError(
            f"document {document.id!r} (from {document.source}) is no conversation: it has no turns, so nobody says "
            f'its tokens. Read a field with a list of {{"role", "content"}}, or train on whole documents: '
            f'make_targets(ids, "whole").'
        )
    said = np.zeros(length, bool)
    starts = turn_starts.tolist()
    for turn, start, stop in zip(document.turns, starts, [*starts[1:], length], strict=False):
        if turn.role == role:
            said[start + 1 : stop + 1] = True
    return said
