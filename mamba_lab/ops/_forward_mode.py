"""Forward-mode derivatives stop before a native operator: PyTorch passes it by, and the tangent would be 0."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad


def refuse_tangents(operator: str, *arguments: Any) -> None:
    """Raise RuntimeError where one of ``arguments`` carries a tangent (``torch.func.jvp``, ``jacfwd``, ``forward_ad``).

    ``torch.library`` has no place for a forward-mode rule of an operator.
    """
    # The level first: outside of forward mode, which is always, nothing else is looked at.
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and forward_ad.unpack_dual(argument).tangent is not None:
            raise RuntimeError(
                f"{operator} has no forward-mode derivative (torch.func.jvp, jacfwd, hessian) on its native backends. "
                f"Use backend='reference', also of MambaLM, or reverse mode."
            )
