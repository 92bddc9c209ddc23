// exp and what follows from it, as plain arithmetic: a loop over channels vectorises, and a value's bits do not depend on
// its place in a vector. (PyTorch's own differ in the last bit between a tensor's body and its tail.)

#pragma once

#include <bit>
#include <cstdint>

namespace mamba_lab {

// e^x for x <= 0, within 1 ulp, down to 0 through the subnormal numbers. NaN stays NaN.
inline float exp_of(float x) {
  x = x < -110.0f ? -110.0f : x;
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
  // In two steps, because 2^n alone may lie outside the range.
  const int32_t whole = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(12582912.0f), half = whole >> 1;
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((whole - half + 127) << 23);
}

inline double exp_of(double x) {
  x = x < -750.0 ? -750.0 : x;
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
  const int64_t whole = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(6755399441055744.0), half = whole >> 1;
  return p * std::bit_cast<double>((half + 1023) << 52) * std::bit_cast<double>((whole - half + 1023) << 52);
}

// 1 / (1 + e^-x), and one minus it without cancellation; from e^-|x|, which never overflows.
template <typename Real>
struct Sigmoid {
  Real value, rest;
};

template <typename Real>
inline Sigmoid<Real> sigmoid(Real x) {
  const Real e = exp_of(x < 0 ? x : -x), sum = 1 + e;
  return {(x < 0 ? e : Real(1)) / sum, (x < 0 ? Real(1) : e) / sum};
}

}  // namespace mamba_lab
