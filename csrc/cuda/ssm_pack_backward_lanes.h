// What the backward pass asks of the processor beyond plain arithmetic: stores without a branch, copies that nobody
// waits for, sums over the channels and over the states of a warp.

#pragma once

#include "ssm_pack_backward.h"

namespace mamba_lab::ssm {

// The lane's number, read once more: what is made of it need not stay in registers for long.
__device__ __forceinline__ int lane_again() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// total + more; what rounding took off comes back in `more`, which is to go with what is added next (Kahan).
__device__ __forceinline__ float add_carefully(float total, float& more) {
  const float sum = __fadd_rn(total, more), lost = __fsub_rn(more, __fsub_rn(sum, total));
  more = isfinite(lost) ? lost : 0.0f;  // an infinite sum has lost nothing
  return sum;
}

// A store without a branch: branches keep the compiler from mixing what stands before and behind them.
__device__ __forceinline__ void store_if(bool condition, void* to, uint32_t x) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.b32 [%0], %1;}" ::"l"(to), "r"(x),
               "r"(static_cast<uint32_t>(condition))
               : "memory");
}

__device__ __forceinline__ void store_if(bool condition, void* to, uint64_t x) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.b64 [%0], %1;}" ::"l"(to), "l"(x),
               "r"(static_cast<uint32_t>(condition))
               : "memory");
}

// Moves what lies there into the L2 cache.
__device__ __forceinline__ void fetch_if(bool condition, const void* from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p prefetch.global.L2 [%0];}" ::"l"(from),
               "r"(static_cast<uint32_t>(condition)));
}

// Copies some bytes from global to shared memory while the thread goes on, or writes zeros there. The compiler has six
// counters to wait for loads into registers with, and for exponentials: a copy like this one needs none of them.
template <int kBytes>
__device__ __forceinline__ void copy_later(void* to, const void* from, bool exists) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const uint32_t bytes = exists ? kBytes : 0;  // the rest becomes zeros
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(kBytes), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Lost digits: the tensor cores read a float32 without its last 13 bits. What that takes off a number is 2^-11 / ln 4
// of it on average, if its digits are like those of most numbers (Benford).
inline constexpr float kMakeUp = 1.0f + 0.000352f;

__device__ __forceinline__ float without_last_digits(float x) { return __uint_as_float(bits(x) & 0xffffe000u); }
__device__ __forceinline__ float rounded_to_tf32(float x) { return __uint_as_float(bits(x) + 0x1000u); }

// sum[row][column] += left[row][k] * right[k][column], 16 x 8 x 8, spread over the warp's lanes (PTX: mma.m16n8k8).
__device__ __forceinline__ void multiply_add(float (&sum)[4], float left0, float left1, float left2, float left3,
                                             float right0, float right1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(bits(left0)), "r"(bits(left1)), "r"(bits(left2)), "r"(bits(left3)), "r"(bits(right0)), "r"(bits(right1)));
}

// Sums over the warp's channels, of value[t, d, n] weight[t, d], for the four tokens of a part, on the tensor cores.
// k is a pair of channels (lane % 4) and one of the two, a row a state lane, the half of the channels (lane / 4 % 2)
// and one of two states, a column a token and a half. Only the column of the token at hand has weights in it: one sum
// grows for each token. What counts are the rows and columns of the same half.
//
// Of two states the second comes first. The four registers of a product's left side follow each other, and so do four
// states of B or C that were loaded at once. A processor reads one even and one odd register a cycle: this way h and B,
// or g and C, of a state are one of each.
template <bool kExact>
class SumOverChannels {
 public:
  // The weights of the token and channels that this lane owns.
  __device__ __forceinline__ SumOverChannels(float weight0, float weight1) {
    if (kExact) {
      high_[0] = without_last_digits(weight0), high_[1] = without_last_digits(weight1);
      low_[0] = __fsub_rn(weight0, high_[0]), low_[1] = __fsub_rn(weight1, high_[1]);
    } else {
      high_[0] = rounded_to_tf32(__fmul_rn(weight0, kMakeUp)), high_[1] = rounded_to_tf32(__fmul_rn(weight1, kMakeUp));
    }
  }

  __device__ __forceinline__ void add(bool owned, const float (&value)[2][kStates]) {
    const float high0 = owned ? high_[0] : 0.0f, high1 = owned ? high_[1] : 0.0f;
#pragma unroll
    for (int n = 0; n < kStates; n += 2) {
      float(&sum)[4] = sum_[n / 2];
      multiply_add(sum, value[0][n + 1], value[0][n], value[1][n + 1], value[1][n], high0, high1);
      if (kExact) {
        const auto rest = [&](int c, int i) { return __fsub_rn(value[c][i], without_last_digits(value[c][i])); };
        const float low0 = owned ? low_[0] : 0.0f, low1 = owned ? low_[1] : 0.0f;
        multiply_add(sum, value[0][n + 1], value[0][n], value[1][n + 1], value[1][n], low0, low1);
        multiply_add(sum, rest(0, n + 1), rest(0, n), rest(1, n + 1), rest(1, n), high0, high1);
      }
    }
  }

  // Token lane % 4, states 4 (lane / 8) + 2 (lane / 4 % 2) and the next one.
  __device__ __forceinline__ float2 total(int lane) const {
    const bool half = lane & 4;
    const float keep1 = half ? sum_[1][1] : sum_[0][0], keep0 = half ? sum_[1][3] : sum_[0][2];
    const float send1 = half ? sum_[0][1] : sum_[1][0], send0 = half ? sum_[0][3] : sum_[1][2];
    const float sum1 = __fadd_rn(keep1, __shfl_xor_sync(kAllLanes, send1, 4));
    const float sum0 = __fadd_rn(keep0, __shfl_xor_sync(kAllLanes, send0, 4));
    return {sum0, sum1};
  }

 private:
  float high_[2], low_[2] = {};
  float sum_[kStates / 2][4] = {};
};

// What lane 8 i + p has, for all lanes 8 j + p.
__device__ __forceinline__ float of_token(int i, float x) {
  float y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x71f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(8 * i));
  return y;
}

// Every lane comes with its share of four sums and leaves with the whole of sum lane / 8.
__device__ __forceinline__ float sum_over_states(const float (&share)[kPart], int lane) {
  const bool odd = lane & 8, late = lane & 16;
  float pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float keep = odd ? share[2 * i + 1] : share[2 * i], send = odd ? share[2 * i] : share[2 * i + 1];
    pair[i] = __fadd_rn(keep, __shfl_xor_sync(kAllLanes, send, 8));
  }
  const float keep = late ? pair[1] : pair[0], send = late ? pair[0] : pair[1];
  return __fadd_rn(keep, __shfl_xor_sync(kAllLanes, send, 16));
}

}  // namespace mamba_lab::ssm
