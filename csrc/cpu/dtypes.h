// The element types that rows are stored in, and how a block of channels moves between them and the arithmetic's type.

#pragma once

#include <bit>
#include <cstdint>

namespace mamba_lab {

struct BFloat16 {
  uint16_t bits;
};

template <typename Stored>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename Stored>
using Wide = typename WideOf<Stored>::type;

// Channels that are worked on together: 256 bytes, whole vectors on every processor.
template <typename Real>
inline constexpr int kBlock = 256 / sizeof(Real);

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline void narrow(float x, float* out) { *out = x; }
inline void narrow(double x, double* out) { *out = x; }
// To the nearest, ties to even, as PyTorch does. NaN keeps a bit that the cut would lose.
inline void narrow(float x, BFloat16* out) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

// Reads n channels into a block whose rest becomes zero, so that all arithmetic is on whole blocks.
template <typename Stored, typename Real>
inline void load_block(const Stored* __restrict from, int n, Real* __restrict to) {
  if (n == kBlock<Real>) {
    for (int j = 0; j < kBlock<Real>; ++j) to[j] = widen(from[j]);
  } else {
    for (int j = 0; j < kBlock<Real>; ++j) to[j] = j < n ? widen(from[j]) : Real(0);
  }
}

template <typename Stored, typename Real>
inline void store_block(const Real* __restrict from, int n, Stored* __restrict to) {
  if (n == kBlock<Real>) {
    for (int j = 0; j < kBlock<Real>; ++j) narrow(from[j], to + j);
  } else {
    for (int j = 0; j < n; ++j) narrow(from[j], to + j);
  }
}

}  // namespace mamba_lab
