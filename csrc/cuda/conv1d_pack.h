// What the convolution's passes share on the GPU: how a thread reads rows, where sequences start, one token's sum.
//
// A warp works on a tile: `span` tokens of 32 * C neighbouring channels, C of them in each thread. A thread walks down
// its tile with the last inputs in registers, so each row is read once. Tiles may lie anywhere: a token's sum has the
// same terms in the same order wherever its tile begins.

#pragma once

#include "conv1d_pack_launch.h"

#include <cuda_bf16.h>

#include <algorithm>

namespace mamba_lab::conv {

using bf16 = __nv_bfloat16;

inline constexpr int kLanes = 32;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float* to) { *to = x; }
__device__ __forceinline__ void narrow(float x, bf16* to) { *to = __float2bfloat16_rn(x); }

// C neighbouring entries of a row, as they lie in memory.
template <class In, int C>
struct alignas(C * sizeof(In)) Piece {
  In at[C];
};

template <class In, int C>
__device__ __forceinline__ Piece<In, C> load_piece(const In* p) {
  Piece<In, C> piece;
  if constexpr (sizeof piece == 16) {
    *reinterpret_cast<uint4*>(&piece) = __ldg(reinterpret_cast<const uint4*>(p));
  } else if constexpr (sizeof piece == 8) {
    *reinterpret_cast<uint2*>(&piece) = __ldg(reinterpret_cast<const uint2*>(p));
  } else if constexpr (sizeof piece == 4) {
    *reinterpret_cast<unsigned*>(&piece) = __ldg(reinterpret_cast<const unsigned*>(p));
  } else {
    *reinterpret_cast<unsigned short*>(&piece) = __ldg(reinterpret_cast<const unsigned short*>(p));
  }
  return piece;
}

// The rows that a thread is about to need, on their way into its own part of the shared memory: it alone reads them, so
// no thread waits for another. Ahead turns of Tokens rows are under way while one is worked on.
template <class In, int C, int Tokens, int Ahead, int Threads>
class Ring {
 public:
  static constexpr int kStages = Ahead + 1;
  using Memory = Piece<In, C>[kStages][Tokens][Threads];

  __device__ __forceinline__ explicit Ring(Memory& memory) : memory_(memory) {}
  __device__ __forceinline__ void copy(int stage, int token, const In* from) {
    Piece<In, C>* const to = &memory_[stage][token][threadIdx.x];
    constexpr int bytes = sizeof(Piece<In, C>);
    if constexpr (bytes >= 4) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                   :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "n"(bytes) : "memory");
    } else {
      *to = load_piece<In, C>(from);
    }
  }
  __device__ __forceinline__ const Piece<In, C>& at(int stage, int token) const {
    return memory_[stage][token][threadIdx.x];
  }

 private:
  Memory& memory_;
};

__device__ __forceinline__ void end_of_turn() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Ahead>
__device__ __forceinline__ void wait_for_turn() {
  asm volatile("cp.async.wait_group %0;" :: "n"(Ahead) : "memory");
}

template <class In, int C>
__device__ __forceinline__ void widen_piece(const Piece<In, C>& piece, float (&to)[C]) {
#pragma unroll
  for (int c = 0; c < C; ++c) to[c] = widen(piece.at[c]);
}

template <class In, int C>
__device__ __forceinline__ void store_piece(const float (&from)[C], In* p) {
  Piece<In, C> piece;
  if constexpr (sizeof(In) == 2 && C % 2 == 0) {
#pragma unroll
    for (int c = 0; c < C; c += 2) {  // two conversions in one instruction
      *reinterpret_cast<__nv_bfloat162*>(&piece.at[c]) = __floats2bfloat162_rn(from[c], from[c + 1]);
    }
  } else {
#pragma unroll
    for (int c = 0; c < C; ++c) narrow(from[c], &piece.at[c]);
  }
  if constexpr (sizeof piece == 16) {
    *reinterpret_cast<uint4*>(p) = *reinterpret_cast<uint4*>(&piece);
  } else if constexpr (sizeof piece == 8) {
    *reinterpret_cast<uint2*>(p) = *reinterpret_cast<uint2*>(&piece);
  } else {
    *reinterpret_cast<Piece<In, C>*>(p) = piece;
  }
}

__device__ __forceinline__ float read(const Parameter& p, int64_t channel, int64_t tap = 0) {
  if (p.data == nullptr) return 0.f;
  const int64_t at = channel * p.by_channel + tap * p.by_tap;
  return p.bf16 ? widen(static_cast<const bf16*>(p.data)[at]) : static_cast<const float*>(p.data)[at];
}

// 1 / (1 + exp(-x)), to two units in the last place.
__device__ __forceinline__ float sigmoid(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(__fmul_rn(x, -1.4426950408889634f)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(__fadd_rn(1.f, e)));
  return r;
}

// The sequence that holds token t, found by a whole warp: each round, 32 lanes look at 32 places.
__device__ __forceinline__ int sequence_at(const int32_t* cu_seqlens, int sequences, int64_t t) {
  const int lane = threadIdx.x % kLanes;
  int first = 0, last = sequences;
  while (first < last) {
    const int step = (last - first + kLanes - 1) / kLanes, probe = first + (lane + 1) * step;
    const bool before = probe <= last && __ldg(cu_seqlens + probe) <= t;
    first += __popc(__ballot_sync(~0u, before)) * step;
    last = min(last, first + step - 1);
  }
  return first;
}

// Where a walk over tokens stands: the sequence, its tokens start .. stop - 1.
struct Place {
  int s;
  int64_t start, stop;

  __device__ Place(const int32_t* cu_seqlens, int sequences, int64_t t)
      : s(sequence_at(cu_seqlens, sequences, t)), start(__ldg(cu_seqlens + s)), stop(__ldg(cu_seqlens + s + 1)) {}
  // To the sequence that starts where this one stops, past empty ones.
  __device__ void next(const int32_t* cu_seqlens) {
    start = stop;
    do stop = __ldg(cu_seqlens + ++s + 1);
    while (stop == start);
  }
};

// The taps of C channels, by age: tap 0 meets the token itself. W = 0 is a width known at run time.
template <int W, int C>
struct Taps {
  static constexpr int kMost = W > 0 ? W : kWidest, kReach = kMost - 1, kRoom = kReach > 0 ? kReach : 1;
  int width;
  float tap[kMost][C], bias[C];

  __device__ __forceinline__ Taps(const Problem& p, int64_t channel) : width(W > 0 ? W : p.width) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      bias[c] = read(p.bias, channel + c);
#pragma unroll
      for (int age = 0; age < kMost; ++age) tap[age][c] = has(age) ? read(p.weight, channel + c, width - 1 - age) : 0.f;
    }
  }
  __device__ __forceinline__ bool has(int age) const { return W > 0 || age < width; }

  // `before[age - 1]` is the input so many tokens ago. The sum begins with the bias, then the oldest input.
  __device__ __forceinline__ void convolve(const float (&now)[C], const float (&before)[kRoom][C],
                                           float (&sum)[C]) const {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      sum[c] = bias[c];
#pragma unroll
      for (int age = kReach; age > 0; --age) {
        if (has(age)) sum[c] = fmaf(tap[age][c], before[age - 1][c], sum[c]);
      }
      sum[c] = fmaf(tap[0][c], now[c], sum[c]);
    }
  }

  __device__ __forceinline__ static void push(const float (&now)[C], float (&before)[kRoom][C]) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int age = kReach; age > 1; --age) before[age - 1][c] = before[age - 2][c];
      before[0][c] = now[c];
    }
  }

  // The inputs before token t: the sequence's own, earlier than those its initial state, or zeros.
  template <class In>
  __device__ __forceinline__ void recall(const Problem& p, const Place& place, int64_t t, int64_t channel,
                                         float (&before)[kRoom][C]) const {
#pragma unroll
    for (int age = 1; age <= kReach; ++age) {
      if (!has(age)) continue;
      if (t - age >= place.start) {
        const In* const row = static_cast<const In*>(p.x) + (t - age) * p.x_stride;
        widen_piece<In, C>(load_piece<In, C>(row + channel), before[age - 1]);
        continue;
      }
      const int64_t place_in_state = width - 1 + (t - age - place.start);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        before[age - 1][c] = p.initial_state == nullptr
            ? 0.f
            : p.initial_state[(place.s * p.D + channel + c) * (width - 1) + place_in_state];
      }
    }
  }
};

// Whether pieces of C entries can be read whole: rows that start where a piece may, and no rest.
inline bool in_pieces(const void* data, int64_t stride, int64_t D, int64_t bytes, int C) {
  const int64_t piece = C * bytes;
  return D % C == 0 && reinterpret_cast<uintptr_t>(data) % piece == 0 && stride * bytes % piece == 0;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens of a tile: as many as leave `warps` warps busy, so that few rows are read by two tiles.
inline int64_t span_of_tiles(const Problem& p, int64_t blocks, int64_t warps, int64_t most) {
  int64_t span = 16;
  while (span < most && p.T * blocks / (2 * span) >= warps) span *= 2;
  return span;
}

}  // namespace mamba_lab::conv
