"""Lines of the kernels' sources, for pages that show what they talk about as it is."""

from __future__ import annotations

import textwrap
from pathlib import Path

from mamba_lab.paths import csrc_dir

_OPS = Path(__file__).resolve().parent


def excerpt(file: str, first: str, last: str | None = None) -> str:
    """The lines of a source from the one that contains ``first``. The indentation that all of them share is removed.

    Args:
        file: below ``csrc`` ("cpu/conv1d_pack.cpp") or below ``mamba_lab/ops`` ("triton/conv1d_forward.py").
        first: text of the first line, found once in the file.
        last: text of the last line, the first one or a later one. None: the block that begins with the first line, as
            far as lines are indented deeper, and the brace that closes it.

    Raises:
        ValueError: there is no such file, ``first`` occurs in no line or in several, or no later line has ``last``.
    """
    path = next((root / file for root in (csrc_dir(), _OPS) if (root / file).is_file()), None)
    if path is None or ".." in Path(file).parts:
        raise ValueError(f"file is {file!r}: neither csrc nor mamba_lab/ops has it")
    lines = path.read_text(encoding="utf-8").splitlines()
    begins = [i for i, line in enumerate(lines) if first in line]
    if len(begins) != 1:
        raise ValueError(f"first is {first!r}: {len(begins)} lines of {file} have it, expected one")
    begin = begins[0]
    if last is None:
        end = _block_end(lines, begin)
    else:
        found = [i for i in range(begin, len(lines)) if last in lines[i]]
        if not found:
            raise ValueError(f"last is {last!r}: no line of {file} has it from line {begin + 1} on")
        end = found[0] + 1
    return textwrap.dedent("\n".join(lines[begin:end])).rstrip()


def _block_end(lines: list[str], begin: int) -> int:
    depth = _indent(lines[begin])
    end = begin + 1
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > depth):
        end += 1
    closes = end < len(lines) and lines[end].strip().startswith("}") and _indent(lines[end]) == depth
    return end + closes


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
