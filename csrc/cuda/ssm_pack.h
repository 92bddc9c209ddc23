// The packed selective scan on the GPU: the arithmetic and the layout that its forward and its backward pass share.
//
//   h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t      y_t = C_t h_t + D u_t      (arXiv 2312.00752, equation 2a)
//
// A warp walks along one sequence with a few channels of it. A sequence's first token takes its state from
// `initial_state` or zero: the one before is never touched, so no token has to ask where it stands.
//
// Every multiplication and addition that a result depends on is written as the instruction it becomes (fma, or not), so
// that a compiler cannot round the same sum in two ways in two kernels.

#pragma once

#include "ssm_pack_launch.h"

#include <cuda_bf16.h>

#include <type_traits>

namespace mamba_lab::ssm {

using BFloat16 = __nv_bfloat16;

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr float kLog2E = 1.44269504088896341f;

// Rows of a known element type.
template <class In>
struct RowsOf {
  In* data = nullptr;
  int64_t stride = 0;

  __host__ __device__ In* at(int64_t t, int64_t column = 0) const { return data + t * stride + column; }
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

template <class In>
RowsOf<const In> rows_of(const Rows& rows) {
  return {static_cast<const In*>(rows.data), rows.stride};
}

// Where sequence s keeps its first state. A slot is [D, N], as `initial_state` and `final_state` are.
__host__ __device__ inline int64_t first_slot(const int32_t* cu_seqlens, int64_t s) {
  return cu_seqlens[s] / kCheckpointTokens + s;
}

// --- Exponentials -----------------------------------------------------------------------------------------------------

// 2^x in one instruction, to 2 units in the last place. What is smaller than 2^-126 becomes 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A in units of log2(e), so that exp(dt A) is a power of two. It stays finite: a step of zero times infinity is no decay.
__device__ __forceinline__ float decay_rate(float a) {
  constexpr float most = 3.402823466e38f;
  const float rate = __fmul_rn(a, kLog2E);
  return rate < -most ? -most : rate > most ? most : rate;
}

// log(1 + e) / e for 0 <= e <= 1, to 1.6e-7 of its value: a polynomial of degree 8. The usual lg2.approx of 1 + e loses
// the small steps (1e-3 is a common one), because 1 + e has dropped e's last digits before.
__device__ __forceinline__ float log1p_ratio(float e) {
  float p = 5.232691299e-03f;
  p = __fmaf_rn(p, e, -2.950522676e-02f);
  p = __fmaf_rn(p, e, 7.822593302e-02f);
  p = __fmaf_rn(p, e, -1.366324425e-01f);
  p = __fmaf_rn(p, e, 1.910600662e-01f);
  p = __fmaf_rn(p, e, -2.484298199e-01f);
  p = __fmaf_rn(p, e, 3.331909776e-01f);
  p = __fmaf_rn(p, e, -4.999949336e-01f);
  return __fmaf_rn(p, e, 9.999999404e-01f);
}

// exp(-|x|): what softplus and its slope are made of.
__device__ __forceinline__ float exp_of_minus_abs(float x) { return exp2_fast(__fmul_rn(fabsf(x), -kLog2E)); }

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), `e` being e^-|x|. Above 20 this is x to the bit, as PyTorch has it.
__device__ __forceinline__ float softplus_from(float x, float e) {
  return __fmaf_rn(log1p_ratio(e), e, fmaxf(x, 0.0f));  // max drops a NaN, but e keeps it
}

__device__ __forceinline__ float softplus(float x) { return softplus_from(x, exp_of_minus_abs(x)); }

// The slope of softplus is the sigmoid, from the same exponential.
__device__ __forceinline__ float sigmoid_from(float x, float exp_of_minus_abs_x) {
  const float large = reciprocal(__fadd_rn(1.0f, exp_of_minus_abs_x));
  return x < 0 ? __fmul_rn(exp_of_minus_abs_x, large) : large;
}

// 1 / (1 + e^-x); for x below -88 the exponential is infinite and the result 0.
__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(__fadd_rn(1.0f, exp2_fast(__fmul_rn(x, -kLog2E))));
}

// dt as the recurrence uses it.
template <bool kSoftplus>
__device__ __forceinline__ float step_size(float delta, float bias) {
  const float raw = __fadd_rn(delta, bias);
  return kSoftplus ? softplus(raw) : raw;
}

// --- Loads and stores -------------------------------------------------------------------------------------------------

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(BFloat16 x) { return __bfloat162float(x); }

template <class In>
__device__ __forceinline__ In narrow(float x) {
  if constexpr (std::is_same_v<In, BFloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// Some values that lie side by side, as they lie: one load or store where the address is a multiple of its size.
template <class In, int kCount>
struct alignas(sizeof(In) * kCount) Packed {
  In value[kCount];
};

template <class In, int kCount>
__device__ __forceinline__ Packed<In, kCount> load_packed(const In* p) {
  return *reinterpret_cast<const Packed<In, kCount>*>(p);
}

template <class In, int kCount>
__device__ __forceinline__ void store_packed(In* p, const Packed<In, kCount>& x) {
  *reinterpret_cast<Packed<In, kCount>*>(p) = x;
}

// Channels of a token that one lane reads and writes, in registers as they lie in memory: 16 bytes at a time where they
// are that many. Two bfloat16 stay in one register until their values are asked for.
template <class In, int kCount>
struct alignas(sizeof(In) * kCount < 16 ? sizeof(In) * kCount : 16) Channels {
  static constexpr bool kHalves = std::is_same_v<In, BFloat16>;
  uint32_t word[sizeof(In) * kCount / 4];

  __device__ __forceinline__ float get(int i) const {
    if constexpr (kHalves) {
      return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000u);
    } else {
      return __uint_as_float(word[i]);
    }
  }
  __device__ __forceinline__ void set_two(int i, float first, float second) {  // i is even
    if constexpr (kHalves) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
      word[i / 2] = *reinterpret_cast<const uint32_t*>(&two);
    } else {
      word[i] = __float_as_uint(first);
      word[i + 1] = __float_as_uint(second);
    }
  }
  __device__ __forceinline__ void fill(float x) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) set_two(i, x, x);
  }
  // One element at a time: the first `exists` of them, whatever their address. The others stay as they are.
  __device__ void load_some(const In* p, int exists) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      set_two(i, i < exists ? widen(p[i]) : get(i), i + 1 < exists ? widen(p[i + 1]) : get(i + 1));
    }
  }
  __device__ void store_some(In* p, int exists) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < exists) p[i] = narrow<In>(get(i));
    }
  }
};

}  // namespace mamba_lab::ssm
