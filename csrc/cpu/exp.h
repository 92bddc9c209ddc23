// exp and what follows from it, as plain arithmetic: a loop over channels vectorises, and a value's bits do not depend on
// its place in a vector. (PyTorch's own differ in the last bit between a tensor's body and its tail.)

#pragma once

#include <bit>
#include <cstdint>

namespace mamba_lab {

// Within 1 ulp. Clamped where the result would leave the normal numbers. NaN stays NaN.
inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits.
  const float shifted = x * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
}

inline double exp_of(double x) {
  x = x < -708.0 ? -708.0 : x;
  x = x > 709.0 ? 709.0 : x;
  const double shifted = x * 1.4426950408889634074 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) << 52) + 0x3ff0000000000000u);
}

template <typename Real>
inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exp_of(-x));
}

}  // namespace mamba_lab
