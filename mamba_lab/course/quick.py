"""Import nbformat in a fraction of a second instead of four."""

from __future__ import annotations

import sys


def import_nbformat() -> None:
    """Import nbformat without ``rfc3987_syntax``, an optional part of jsonschema that builds a grammar when imported.

    It checks international addresses, of which notebooks have none. Call this before anything that imports nbformat,
    nbclient or nbconvert; afterwards ``rfc3987_syntax`` can be imported by whoever wants it.
    """
    name = "rfc3987_syntax"
    if "nbformat" in sys.modules or name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import nbformat  # noqa: F401
    finally:
        del sys.modules[name]
