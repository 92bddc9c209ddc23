// The backward pass of the packed selective scan: how the work is cut up and what lies in shared memory. What a warp
// does is in ssm_pack_backward_warp.h; the launch, the ladder of versions and the cost are in ssm_pack_backward.cu.
//
//   g_t = dy_t C_t + a_{t+1} g_{t+1}      a_t = exp(dt_t A)
//
// g is the gradient of the state; every other gradient is a product of g with something at hand. A warp walks along
// one sequence with 16 channels, tile after tile (32 tokens) from the last to the first; four warps, a block, share B
// and C. Of each tile:
//   first_sweep()  from the tile's checkpoint along time: the states before every fourth token, into shared memory
//   then, part by part (4 tokens) from the last to the first,
//   along()        the part's states and decays once more, this time kept in registers; y, dz and dC on the way
//   against()      g against time through them; dB, dA, du and ddelta on the way
//   sum_warps()    the four warps' shares of dB and dC, in their order
//
// Lane 8 j + p holds states 4 j to 4 j + 3 of channels 2 p and 2 p + 1. Where there is one number for each token and
// channel, it owns token j of the part and channels 2 p and 2 p + 1.

#pragma once

#include "ssm_pack.h"

#include <cstdint>

namespace mamba_lab::ssm {

inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr int kTile = kCheckpointTokens;
inline constexpr int kPart = 4;  // tokens whose states a thread keeps in registers
inline constexpr int kParts = kTile / kPart;
inline constexpr int kN = 16;                             // states, here
inline constexpr int kStates = 4;                         // of a thread
inline constexpr int kPairs = 8, kChannels = 2 * kPairs;  // of a warp

__device__ __forceinline__ uint32_t bits(float x) { return __float_as_uint(x); }

// A pair of numbers as it lies in memory.
template <class In>
struct PairOf;

template <>
struct PairOf<BFloat16> {
  using Word = uint32_t;
  static __device__ __forceinline__ float first(Word x) { return __uint_as_float(x << 16); }
  static __device__ __forceinline__ float second(Word x) { return __uint_as_float(x & 0xffff0000u); }
  static __device__ __forceinline__ Word of(BFloat16 first, BFloat16 second) {
    return __bfloat16_as_ushort(first) | uint32_t(__bfloat16_as_ushort(second)) << 16;
  }
};

template <>
struct PairOf<float> {
  using Word = uint64_t;
  static __device__ __forceinline__ float first(Word x) { return __uint_as_float(uint32_t(x)); }
  static __device__ __forceinline__ float second(Word x) { return __uint_as_float(uint32_t(x >> 32)); }
  static __device__ __forceinline__ Word of(float first, float second) {
    return bits(first) | uint64_t(bits(second)) << 32;
  }
};

struct InputRows {
  const void* data;
  uint32_t bytes;  // from row to row
};


struct BackwardArguments {
  InputRows u, delta, B, C, z, dy;
  void *du, *ddelta, *y, *dz;
  uint32_t row_bytes, dz_bytes;  // from row to row: of the first three, of dz
  bool wants_y;
  const float *A, *skip, *bias, *dfinal_state, *checkpoints;
  float* dinitial_state;
  // Sums of one block each: over its channels [2 (dB, dC), channel blocks, T, N]; over its sequences [groups, D, N] and
  // [groups, D] twice.
  float *states_parts, *dA_parts, *dskip_parts, *dbias_parts;
  const int32_t *cu_seqlens, *order;
  int64_t T;
  int processors;
  int D, N, sequences, channel_blocks, groups;
  bool softplus;
};

// What a warp asks for at a time: delta and u of a part of the next tile; dy, z and u of the next part.
enum Array { kDelta, kU, kRestDy, kRestZ, kRestU, kArrays };

template <class Input, int kWarpsOfBlock, int kBlocksOfProcessor>
struct BackwardPlan {
  using In = Input;
  static constexpr int kWarps = kWarpsOfBlock, kThreads = kWarps * kWarp;
  static constexpr int kBlocks = kBlocksOfProcessor;  // blocks that must fit on a multiprocessor: bounds the registers
  static constexpr bool kFew = kBlocks < 3;  // warps wait for memory rather than for one another
  static constexpr int kBlockChannels = kWarps * kChannels;

  // What a warp keeps of a part.
  struct Part {
    float4 state[2][kWarp];  // before the part; once it is done, its sums for dB and dC take their place
    float4 step[kWarp];      // dt and dt u of a pair of channels, by token and pair
    float2 slope[kWarp];     // of the softplus
  };
  // Where what a warp has asked for arrives: pairs of channels by token and pair; B and C of one token, which is
  // another one in each of the block's warps.
  struct alignas(16) Box {
    typename PairOf<In>::Word pairs[kArrays][kWarp];
    In states[2 * kN];
    In unread[2 * kN];  // copies of lanes that have nothing to bring
  };
  static_assert(kWarps == kPart);
  struct Shared {
    Part part[kWarps][kParts];
    Box box[kWarps];
    float4 now[kThreads];              // of the part at hand, by token and pair: dt, and dy behind the gate
    float4 constants[kWarps][kPairs];  // D and delta_bias of a pair of channels
    // Sums over tokens are added up for a tile in registers and for all tiles here: long sums lose fewer digits so.
    float4 dA[2][kThreads];  // of a thread's two channels
    float dD_dbias[kThreads];  // by what it is of (two of dD, two of ddelta_bias) and pair
    // Of the block: B and C of two tiles, this one and the one that is being fetched.
    float states[2][kParts][2][kPart][kN];
  };
};

}  // namespace mamba_lab::ssm
