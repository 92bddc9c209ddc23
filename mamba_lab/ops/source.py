"""Lines of the kernels' sources, for pages that show what they talk about as it is."""

from __future__ import annotations

import textwrap
from pathlib import Path

from mamba_lab.paths import csrc_dir

_OPS = Path(__file__).resolve().parent


def excerpt(file: str, first: str, last: str | None = None) -> str:
    """The lines of a source from the one that contains ``first``. The indentation that all of them share is removed.

    Args:
        file: below ``csrc`` ("cpu/conv1d_pack.cpp") or below ``mamba_lab/ops`` ("triton/conv1d_forward.py"); "*" may
            stand for a part of the name, so that a page survives a file that is parted in two.
        first: text of the first line, found once in all files of that name.
        last: text of the last line, the first one or a later one. None: the block that begins with the first line, as
            far as lines are indented deeper, and the brace that closes it.

    Raises:
        ValueError: there is no such file, ``first`` occurs in no line or in several, or no line after it has ``last``.
    """
    paths = [] if ".." in Path(file).parts else [p for root in (csrc_dir(), _OPS) for p in sorted(root.glob(file))]
    if not paths:
        raise ValueError(f"file is {file!r}: neither csrc nor mamba_lab/ops has it")
    sources = [path.read_text(encoding="utf-8").splitlines() for path in paths]
    found = [(lines, i) for lines in sources for i, line in enumerate(lines) if first in line]
    if len(found) != 1:
        raise ValueError(f"first is {first!r}: {len(found)} lines of {file} have it, expected one")
    lines, begin = found[0]
    if last is None:
        end = _block_end(lines, begin)
    else:
        ends = [i for i in range(begin, len(lines)) if last in lines[i]]
        if not ends:
            raise ValueError(f"last is {last!r}: no line of {file} has it from line {begin + 1} on")
        end = ends[0] + 1
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
