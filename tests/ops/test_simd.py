"""The vector functions that the scan is made of: how exact they are, and that every compiler gives the same bits."""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mamba_lab.ops import toolchain
from mamba_lab.paths import csrc_dir

SOURCE = """
#include "cpu/simd.h"
using namespace mamba_lab::simd;
template <class S>
void run(int which, const S* x, S* y, long n) {
  constexpr int width = Lanes<S>::width;
  for (long i = 0; i + width <= n; i += width) {
    const Vec<S> v = load<S>(x + i);
    Vec<S> block[width], r;
    for (int j = 0; j < width; ++j) block[j] = v * S(j + 1);
    switch (which) {
      case 0: r = exp2<S>(v); break;
      case 1: r = softplus<S>(v).value; break;
      case 2: r = softplus<S>(v).slope; break;
      case 3: r = sigmoid<S>(v).value; break;
      case 4: r = sigmoid<S>(v).rest; break;
      default: r = sum_lanes<S>(block);
    }
    std::memcpy(y + i, &r, sizeof r);
  }
}
extern "C" void of_float(int which, const float* x, float* y, long n) { run(which, x, y, n); }
extern "C" void of_double(int which, const double* x, double* y, long n) { run(which, x, y, n); }
extern "C" int bytes() { return kBytes; }
"""
FUNCTIONS = {"exp2": 0, "softplus": 1, "slope": 2, "sigmoid": 3, "rest": 4}
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
# The processor's own width, and on x86 also what one without AVX-512 and one without any of it would run.
TARGETS = ["native"]
if platform.machine() in ("x86_64", "AMD64"):
    TARGETS += ["x86-64-v3", "x86-64"] if " avx2 " in toolchain.processor() else ["x86-64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("simd")
    (made / "simd_test.cpp").write_text(SOURCE)
    return made


@functools.cache
def library(folder: Path, compiler: str, target: str) -> ctypes.CDLL:
    output = folder / f"{compiler}-{target}.so"
    flags = [f for f in toolchain.find_cxx().flags if target == "native" or not f.startswith("-march")]
    command = [
        compiler,
        *flags,
        *([] if target == "native" else [f"-march={target}"]),
        f"-I{csrc_dir()}",
        str(folder / "simd_test.cpp"),
        "-o",
        str(output),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(output))


def call(lib: ctypes.CDLL, which: int, x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, np.nan)
    function = lib.of_float if x.dtype == np.float32 else lib.of_double
    function(which, x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(len(x)))
    return y


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """The function in extended precision."""
    x = x.astype(np.longdouble)
    with np.errstate(over="ignore", under="ignore"):
        return {
            "exp2": lambda: np.exp2(x),
            "softplus": lambda: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))),
            "slope": lambda: np.where(x > 20, 1, 1 / (1 + np.exp(-x))),
            "sigmoid": lambda: 1 / (1 + np.exp(-x)),
            "rest": lambda: 1 / (1 + np.exp(x)),
        }[name]()


def samples(dtype: type, low: float, high: float) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, 1 << 16).astype(dtype)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs an extended precision to compare with")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_are_exact_to_a_few_ulp(folder: Path, name: str, dtype: type, target: str) -> None:
    lib = library(folder, COMPILERS[0], target)
    limit = 2.5 if name == "exp2" else 5
    if target == "x86-64" and name != "exp2":
        limit = 60  # no fused product: an exponent of 60 has lost six bits
    for low, high in ((-1, 1), (-0.01, 0.01), (-60, 60)):
        x = samples(dtype, low, high)
        want = exact(name, x)
        ulp = np.spacing(np.abs(want).astype(dtype)).astype(np.longdouble)
        assert float((np.abs(call(lib, FUNCTIONS[name], x) - want) / ulp).max()) < limit, (low, high)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges(folder: Path, dtype: type, target: str) -> None:
    lib = library(folder, COMPILERS[0], target)
    huge = np.finfo(dtype).max
    x = np.array([0, -0.0, -huge, huge, -np.inf, np.inf, np.nan, -1e4, 1e4, 20, np.nextafter(dtype(20), dtype(21))])
    x = np.resize(x.astype(dtype), 64)
    got = {name: call(lib, which, x)[:11] for name, which in FUNCTIONS.items()}
    for name, values in got.items():
        assert np.isnan(values[6]), name
        assert not np.isnan(np.delete(values, 6)).any(), name
    np.testing.assert_array_equal(got["exp2"][[0, 1, 2, 3, 4, 5, 7, 8]], [1, 1, 0, np.inf, 0, np.inf, 0, np.inf])
    np.testing.assert_array_equal(got["softplus"][[2, 3, 4, 5, 7, 8, 10]], [0, huge, 0, np.inf, 0, 1e4, x[10]])
    np.testing.assert_array_equal(got["slope"][[0, 2, 3, 4, 5, 7, 8, 10]], [0.5, 0, 1, 0, 1, 0, 1, 1])
    np.testing.assert_array_equal(got["sigmoid"][[0, 2, 3, 4, 5]], [0.5, 0, 1, 0, 1])
    np.testing.assert_array_equal(got["rest"][[0, 2, 3, 4, 5]], [0.5, 1, 0, 1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_that_are_subnormal(folder: Path, dtype: type) -> None:
    lowest = {np.float32: -149, np.float64: -1074}[dtype]
    x = np.arange(lowest, lowest + 64).astype(dtype)
    for target in TARGETS:
        y = call(library(folder, COMPILERS[0], target), 0, x)
        np.testing.assert_array_equal(y, np.ldexp(dtype(1), np.arange(lowest, lowest + 64)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_are_summed(folder: Path, dtype: type, target: str) -> None:
    lib = library(folder, COMPILERS[0], target)
    width = lib.bytes() // np.dtype(dtype).itemsize
    x = np.random.default_rng(0).integers(-50, 50, 64).astype(dtype)
    want = [x[i : i + width].sum() * (j + 1) for i in range(0, 64, width) for j in range(width)]
    np.testing.assert_array_equal(call(lib, 5, x), want)


@pytest.mark.skipif(len(COMPILERS) < 2, reason="needs g++ and clang++")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compilers_give_the_same_bits(folder: Path, dtype: type) -> None:
    same = [target for target in TARGETS if target != "x86-64"]  # where products are fused
    for low, high in ((-2, 2), (-160, 160)):
        x = samples(dtype, low, high)
        for which in FUNCTIONS.values():
            results = [call(library(folder, c, t), which, x).tobytes() for c in COMPILERS for t in same]
            assert len(set(results)) == 1
