"""Functions of single numbers, accurate over their whole range, out of what Triton has on every device."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def exp_of_minus_abs(x):
    """exp(-|x|), at most 1."""
    return tl.exp2(-tl.abs(x) * LOG2_E)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) and what is missing to 1, each with its own small relative error."""
    e = exp_of_minus_abs(x)
    large = 1.0 / (1.0 + e)
    small = e * large
    return tl.where(x >= 0, large, small), tl.where(x >= 0, small, large)


@triton.jit
def softplus(x):
    """log(1 + exp(x)), and x itself above 20, as in PyTorch.

    With e = exp(-|x|), log(1 + e) = 2 atanh(s) for s = e / (2 + e) between 0 and 1/3: an odd series in s.
    """
    e = exp_of_minus_abs(x)
    s = e / (2.0 + e)
    square = s * s
    TERMS: tl.constexpr = 17 if x.dtype == tl.float64 else 8
    series = tl.full(x.shape, 1.0 / (2 * TERMS - 1), x.dtype)
    for k in tl.static_range(TERMS - 2, -1, -1):
        series = tl.fma(series, square, tl.full(x.shape, 1.0 / (2 * k + 1), x.dtype))
    return tl.where(x > 20, x, tl.maximum(x, 0.0) + 2.0 * s * series)
