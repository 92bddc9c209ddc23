"""Exponentials and nothing else, to see how many of them a GPU takes a second."""

from __future__ import annotations

import importlib.util

BLOCK, ROUNDS = 1024, 4096

if importlib.util.find_spec("triton") is not None:  # every module can be imported without it
    import triton
    import triton.language as tl

    @triton.jit
    def exp2_chains(out, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
        """``BLOCK`` chains x = exp2(-x) of ``ROUNDS`` steps each, in registers."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = i.to(tl.float32) * 1e-9
        for _ in range(ROUNDS):
            x = tl.exp2(-x)
        tl.store(out + i, x)
