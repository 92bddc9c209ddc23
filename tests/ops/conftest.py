"""Fixtures for the native code: nothing here touches the user's own cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_workshop import Workshop

from mamba_lab.ops import build, native_sources


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    monkeypatch.setattr(native_sources, "csrc_dir", lambda: made.csrc)
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setattr(build, "_failed", {})
    monkeypatch.setattr(build, "_said", set())
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.home))
    monkeypatch.delenv("MAMBA_LAB_CACHE", raising=False)
    monkeypatch.setenv("CXX", made.compiler())
    return made


@pytest.fixture
def no_compiler(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(empty))
