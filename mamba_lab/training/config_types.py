"""What settings are made of: the kinds of values that a file can hold, and the section that checks them."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mamba_lab.batching._checks import INT32_MAX, INT64_MAX

from .config_errors import ConfigError, problems_of


def _plain(value: Any) -> Any:
    """NumPy's numbers and paths as Python has them, since neither goes into a file; a section's keys as text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _plain_text(value: str) -> str:
    if not value.strip():
        raise ValueError("expected text that is not empty")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise ValueError("expected text without control characters, in UTF-8")
    return value


def _plain_path(value: Any) -> Any:
    return _plain_text(value) if isinstance(value, str) else value


def _device(value: str) -> str:
    kind, colon, number = value.partition(":")
    if value not in ("auto", "cpu", "cuda") and not (
        kind == "cuda" and colon and number.isascii() and number.isdigit()
    ):
        raise ValueError('expected "auto", "cpu", "cuda", or one GPU such as "cuda:0"')
    return value


Count = Annotated[int, Ge(1), Le(INT32_MAX)]
Threads = Annotated[int, Ge(0), Le(256)]
Ahead = Annotated[int, Ge(1), Le(65536)]
Whole = Annotated[int, Ge(0), Le(INT32_MAX)]
Seed = Annotated[int, Ge(0), Le(INT64_MAX)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
Below1 = Annotated[float, Ge(0), Lt(1)]
Text = Annotated[str, AfterValidator(_plain_text)]
Device = Annotated[str, AfterValidator(_device)]
Folder = Annotated[Path, Field(strict=False), BeforeValidator(_plain_path)]


class Section(BaseModel):
    """Settings that are checked when they are made and do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())
    section: ClassVar[str] = ""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**{key: _plain(value) for key, value in values.items()})
        except ValidationError as error:
            raise ConfigError(problems_of(error, self.section, type(self).model_fields)) from None
