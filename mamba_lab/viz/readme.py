"""Rebuild the README's picture: ``python -m mamba_lab.viz.readme``."""

from __future__ import annotations

import sys
from pathlib import Path

from mamba_lab.paths import checkout_root
from mamba_lab.viz.figure import to_png
from mamba_lab.viz.schemes import alt_text, four_schemes

NAME = "four_schemes.png"
PIXELS_PER_INCH = 200
"""The picture is 10 inches wide and shown at 1,000 CSS pixels: crisp on screens of two pixels a CSS pixel."""


def build(folder: Path) -> Path:
    """Write ``four_schemes.png`` into ``folder``."""
    path = folder / NAME
    path.write_bytes(to_png(four_schemes(wide=True), dpi=PIXELS_PER_INCH))
    return path


def main() -> int:
    root = checkout_root()
    if root is None:
        print(
            "The README and its picture are in a checkout, and this package was installed from a wheel.",
            file=sys.stderr,
        )
        return 1
    path = build(root / "assets")
    print(f"{path.relative_to(root)} is written. Its alt text in README.md:\n{alt_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
