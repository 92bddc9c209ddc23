"""Where the files that are not Python lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent


def checkout_root() -> Path | None:
    """The root of the checkout this package is imported from, or None when it was installed from a wheel."""
    return _CHECKOUT if (_CHECKOUT / "notebooks").is_dir() and (_CHECKOUT / "pyproject.toml").is_file() else None


def data_dir() -> Path:
    """The folder with ``corpus/``, ``tokenizer.json`` and ``results/``."""
    return _resource("data")


def csrc_dir() -> Path:
    """The folder with the C++ and CUDA sources, ``cpu/`` and ``cuda/``."""
    return _resource("csrc")


def configs_dir() -> Path:
    """The folder with the example runs, one TOML file each."""
    return _resource("configs")


def _resource(name: str) -> Path:
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _CHECKOUT / name
