"""Both operators for GPUs in Triton: one file a pass, and beside them what calls the kernels.

``mamba_lab.ops`` imports this package, and with it Triton, at the first call that needs it. With TRITON_INTERPRET=1 in
the environment when Python starts, the kernels run on CPU tensors in Triton's interpreter: slow, for tests.

Which bits come out may depend on a kernel's tile sizes and on what the compiler knew of its arguments. So tile sizes
follow from D, N and the dtype alone (``tiles.py``), and every kernel is compiled once for all lengths, strides and
addresses: ``kernel`` turns Triton's specialisation off.
"""

from __future__ import annotations

from .conv1d_pack import conv1d_pack, conv1d_pack_backward
from .ssm_pack import ssm_pack, ssm_pack_backward

__all__ = ["conv1d_pack", "conv1d_pack_backward", "ssm_pack", "ssm_pack_backward"]
