"""What training needs beyond the core: looked for first, so that what is missing comes with its remedy."""

from __future__ import annotations

import importlib
import sys


def _require(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"mamba_lab.training needs {name}: pip install 'mamba-lab[train]'.", name=name
        ) from error


for _name in ("pydantic", "safetensors", *(("tomli",) if sys.version_info < (3, 11) else ())):
    _require(_name)
