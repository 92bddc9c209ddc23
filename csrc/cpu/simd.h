// Vectors of the processor's own width, and the few functions that a scan needs on them.
//
// Every function treats each lane alone and in the same way, so a channel's bits do not depend on its neighbours or on
// where a block of channels ends. Products are fused where `fma` is written and nowhere else (-ffp-contract=off): every
// compiler then gives the same bits.

#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mamba_lab::simd {

#if defined(__AVX512F__)
inline constexpr int kBytes = 64;
#elif defined(__AVX__)
inline constexpr int kBytes = 32;
#else
inline constexpr int kBytes = 16;
#endif

#define MAMBA_LAB_INLINE [[gnu::always_inline]] inline

template <class S>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float Vec __attribute__((vector_size(kBytes)));
  typedef int32_t Int __attribute__((vector_size(kBytes)));
  static constexpr int width = kBytes / 4, mantissa = 23, bias = 127;
  static constexpr float lowest = -160, highest = 160;  // beyond these 2^x is 0 or infinity
  static constexpr float magic = 0x1.8p23f;             // adding it leaves the nearest whole number in the last bits
  static constexpr float log2e = 0x1.715476p0f, log2e_rest = 0x1.4ae0cp-26f;
  // (2^f - 1) / f for |f| <= 1/2, highest power first: relative error of 2^f 9e-8, none at f = 0. Remez's exchange.
  static constexpr float exp2[] = {1.32644607428474278e-3f, 9.67172559203461694e-3f, 5.5507363077505352e-2f,
                                   2.40222388293163322e-1f, 6.93146975167107081e-1f};
  // log((1 + t) / (1 - t)) / t as a polynomial in t^2 <= 1/9, highest power first.
  static constexpr float log1p[] = {0.244130678157457087f, 0.213932506971626517f, 0.286207221063204927f,
                                    0.399986909028769163f, 0.666666793074400228f, 2.0f};
};

template <>
struct Lanes<double> {
  typedef double Vec __attribute__((vector_size(kBytes)));
  typedef int64_t Int __attribute__((vector_size(kBytes)));
  static constexpr int width = kBytes / 8, mantissa = 52, bias = 1023;
  static constexpr double lowest = -1100, highest = 1100;
  static constexpr double magic = 0x1.8p52;
  static constexpr double log2e = 0x1.71547652b82fep0, log2e_rest = 0x1.777d0ffda0d24p-56;
  static constexpr double exp2[] = {4.43472754598812917e-10, 7.07385858204191509e-9, 1.01782004867470825e-7,
                                    1.32154348706363192e-6, 1.52527334893713739e-5, 1.54035304578770387e-4,
                                    1.3333558146780201e-3, 9.61812910759356962e-3, 5.5504108664820053e-2,
                                    0.240226506959101325, 0.693147180559945326};
  static constexpr double log1p[] = {0.16088061536975839, 0.0577508900776443774, 0.101011921911164945,
                                     0.104544443454087557, 0.117706719466461889, 0.133329957790911549,
                                     0.153846283961122481, 0.181818178468035952, 0.222222222277465476,
                                     0.285714285713744466, 0.400000000000002752, 0.666666666666666661, 2.0};
};

template <class S>
using Vec = typename Lanes<S>::Vec;

template <class S>
MAMBA_LAB_INLINE Vec<S> all(S x) {
  return x - Vec<S>{};
}

template <class S>
MAMBA_LAB_INLINE Vec<S> load(const S* p) {
  Vec<S> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// a * b + c, rounded once.
template <class S>
MAMBA_LAB_INLINE Vec<S> fma(Vec<S> a, Vec<S> b, Vec<S> c) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<S, float>) {
    return _mm512_fmadd_ps(a, b, c);
  } else {
    return _mm512_fmadd_pd(a, b, c);
  }
#elif defined(__AVX__) && defined(__FMA__)
  if constexpr (std::is_same_v<S, float>) {
    return _mm256_fmadd_ps(a, b, c);
  } else {
    return _mm256_fmadd_pd(a, b, c);
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<S, float>) {
    return vfmaq_f32(c, a, b);
  } else {
    return vfmaq_f64(c, a, b);
  }
#else
  return a * b + c;  // a processor without a fused product rounds twice
#endif
}

template <class S, int Terms>
MAMBA_LAB_INLINE Vec<S> horner(const S (&coefficients)[Terms], Vec<S> x) {
  Vec<S> sum = all<S>(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < Terms; ++i) sum = fma<S>(sum, x, all<S>(coefficients[i]));
  return sum;
}

// whole * 2^n with n a whole number: right also where the result is subnormal, zero or infinite.
template <class S>
MAMBA_LAB_INLINE Vec<S> scale(Vec<S> x, Vec<S> n) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<S, float>) {
    return _mm512_scalef_ps(x, n);
  } else {
    return _mm512_scalef_pd(x, n);
  }
#else
  // In two steps, because 2^n alone may lie outside the range.
  using Int = typename Lanes<S>::Int;
  const Int whole = __builtin_convertvector(n, Int), half = whole >> 1;
  const Int low = (half + Lanes<S>::bias) << Lanes<S>::mantissa;
  const Int high = (whole - half + Lanes<S>::bias) << Lanes<S>::mantissa;
  return x * std::bit_cast<Vec<S>>(low) * std::bit_cast<Vec<S>>(high);
#endif
}

template <class S>
MAMBA_LAB_INLINE Vec<S> nearest(Vec<S> x) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<S, float>) {
    return _mm512_roundscale_ps(x, 8);  // 8: to the nearest, no exceptions raised
  } else {
    return _mm512_roundscale_pd(x, 8);
  }
#else
  return (x + Lanes<S>::magic) - Lanes<S>::magic;
#endif
}

// 2^x for any x.
template <class S>
MAMBA_LAB_INLINE Vec<S> exp2(Vec<S> x) {
#if !defined(__AVX512F__)
  // AVX-512's two instructions need no such help. A NaN stays one.
  x = x < Lanes<S>::lowest ? all<S>(Lanes<S>::lowest) : x;
  x = x > Lanes<S>::highest ? all<S>(Lanes<S>::highest) : x;
#endif
  const Vec<S> n = nearest<S>(x), f = x - n;
  return scale<S>(fma<S>(horner<S>(Lanes<S>::exp2, f), f, all<S>(1)), n);
}

// e^-|x|: unlike exp2(-|x| log2(e)) as exact for a large x as for a small one.
template <class S>
MAMBA_LAB_INLINE Vec<S> exp_of_minus_abs(Vec<S> x) {
  using Int = typename Lanes<S>::Int;
  const Vec<S> zero = all<S>(S(-0.0));
  x = std::bit_cast<Vec<S>>(std::bit_cast<Int>(x) | std::bit_cast<Int>(zero));  // the sign bit alone
  x = x < Lanes<S>::lowest ? all<S>(Lanes<S>::lowest) : x;
  const Vec<S> n = nearest<S>(x * Lanes<S>::log2e);
  const Vec<S> f = fma<S>(x, all<S>(Lanes<S>::log2e_rest), fma<S>(x, all<S>(Lanes<S>::log2e), -n));
  return scale<S>(fma<S>(horner<S>(Lanes<S>::exp2, f), f, all<S>(1)), n);
}

// 1 / (1 + e^-x), and one minus it without cancellation.
template <class S>
struct Sigmoid {
  Vec<S> value, rest;
};

// The same from e = e^-|x|.
template <class S>
MAMBA_LAB_INLINE Sigmoid<S> sigmoid(Vec<S> x, Vec<S> e) {
  const Vec<S> large = 1 / (1 + e), small = e * large;
  return {x < 0 ? small : large, x < 0 ? large : small};
}

template <class S>
MAMBA_LAB_INLINE Sigmoid<S> sigmoid(Vec<S> x) {
  return sigmoid<S>(x, exp_of_minus_abs<S>(x));
}

// log(1 + e^x) and its derivative; above 20 x itself and 1, as PyTorch has it.
template <class S>
struct Softplus {
  Vec<S> value, slope;
};

template <class S>
MAMBA_LAB_INLINE Softplus<S> softplus(Vec<S> x) {
  // log(1 + e) = log((1 + t) / (1 - t)) with t = e / (2 + e) <= 1/3.
  const Vec<S> e = exp_of_minus_abs<S>(x), t = e / (2 + e);
  const Vec<S> log1p = t * horner<S>(Lanes<S>::log1p, t * t);
  return {x > 20 ? x : (x < 0 ? Vec<S>{} : x) + log1p, x > 20 ? all<S>(1) : sigmoid<S>(x, e).value};
}

template <class S, int Odd, int... I>
MAMBA_LAB_INLINE Vec<S> every_other(Vec<S> a, Vec<S> b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I + Odd)...);
}

// The sums over the lanes of as many vectors as a vector has lanes: lane j of the result is vector j's sum. A fixed tree.
template <class S>
MAMBA_LAB_INLINE Vec<S> sum_lanes(const Vec<S>* vectors) {
  constexpr int width = Lanes<S>::width;
  constexpr auto lanes = std::make_integer_sequence<int, width>();
  Vec<S> sums[width];
  for (int i = 0; i < width; ++i) sums[i] = vectors[i];
#pragma GCC unroll 4
  for (int left = width / 2; left > 0; left /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < left; ++i) {
      const Vec<S> a = sums[2 * i], b = sums[2 * i + 1];
      sums[i] = every_other<S, 0>(a, b, lanes) + every_other<S, 1>(a, b, lanes);
    }
  }
  return sums[0];
}

}  // namespace mamba_lab::simd
