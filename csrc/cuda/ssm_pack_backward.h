// The backward pass of the packed selective scan: what one warp does. The launch, the ladder of versions and the cost are
// in ssm_pack_backward.cu.
//
//   g_t = dy_t C_t + a_{t+1} g_{t+1}      a_t = exp(dt_t A)
//
// g is the gradient of the state; every other gradient is a product of g with something at hand. A warp walks along one
// sequence with 16 channels, tile after tile (32 tokens) from the last to the first:
//   first sweep   from the tile's checkpoint along time: the states before every fourth token, into shared memory
//   then, part by part (4 tokens) from the last to the first,
//   along()       the part's states and decays once more, this time kept in registers; y and dC on the way
//   against()     g against time through them; dB, dA and the sums behind du and ddelta on the way
//   finish()      once for each token and channel: du, ddelta and dz
//
// Lane 8 j + p holds states 4 j to 4 j + 3 of channels 2 p and 2 p + 1. Where there is one number for each token and
// channel, it owns token j of the part and channels 2 p and 2 p + 1.

#pragma once

#include "ssm_pack.h"

#include <cstdint>

namespace mamba_lab::ssm {

inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr int kTile = kCheckpointTokens;
inline constexpr int kPart = 4;                       // tokens whose states a thread keeps in registers
inline constexpr int kParts = kTile / kPart;
inline constexpr int kN = 16;                         // states, here
inline constexpr int kStates = 4;                     // states of a thread
inline constexpr int kPairs = 8, kChannels = 2 * kPairs;  // channels of a warp

__device__ __forceinline__ uint32_t bits(float x) { return __float_as_uint(x); }

// A pair of numbers as it lies in memory.
template <class In>
struct PairOf;

template <>
struct PairOf<BFloat16> {
  using Word = uint32_t;
  static constexpr Word kZeros = 0, kMinusInfinities = 0xff80ff80u;
  static __device__ __forceinline__ float first(Word x) { return __uint_as_float(x << 16); }
  static __device__ __forceinline__ float second(Word x) { return __uint_as_float(x & 0xffff0000u); }
  static __device__ __forceinline__ Word of(BFloat16 first, BFloat16 second) {
    return __bfloat16_as_ushort(first) | uint32_t(__bfloat16_as_ushort(second)) << 16;
  }
};

template <>
struct PairOf<float> {
  using Word = uint64_t;
  static constexpr Word kZeros = 0, kMinusInfinities = 0xff800000ff800000ull;
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

struct OutputRows {
  void* data;
  uint32_t bytes;
};

struct BackwardArguments {
  InputRows u, delta, B, C, z, dy;
  OutputRows du, ddelta, dz, y;
  const float *A, *skip, *bias, *dfinal_state, *checkpoints;
  float* dinitial_state;
  // Sums of one block each: over its channels [2 (dB, dC), channel blocks, T, N]; over its sequences [groups, D, N] and
  // [groups, D] twice.
  float *states_parts, *dA_parts, *dskip_parts, *dbias_parts;
  const int32_t *cu_seqlens, *order;
  int64_t T;
  int D, N, sequences, channel_blocks, groups;
  bool softplus;
};

// Lost digits: the tensor cores read a float32 without its last 13 bits. What that takes off a number is 2^-11 / ln 4 of
// it on average, if its digits are like those of most numbers (Benford).
inline constexpr float kMakeUp = 1.0f + 0.000352f;

__device__ __forceinline__ float without_last_digits(float x) { return __uint_as_float(bits(x) & 0xffffe000u); }
__device__ __forceinline__ float rounded_to_tf32(float x) { return __uint_as_float(bits(x) + 0x1000u); }

// sum[row][column] += left[row][k] * right[k][column], 16 x 8 x 8, spread over the warp's lanes (PTX: mma.m16n8k8).
__device__ __forceinline__ void multiply_add(float (&sum)[4], float left0, float left1, float left2, float left3,
                                             float right0, float right1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(bits(left0)), "r"(bits(left1)), "r"(bits(left2)), "r"(bits(left3)), "r"(bits(right0)), "r"(bits(right1)));
}

// Sums over the warp's channels, of value[t, d, n] weight[t, d], for the four tokens of a part, on the tensor cores.
// k is a pair of channels (lane % 4) and one of the two, a row a state lane, the half of the channels (lane / 4 % 2) and
// one of two states, a column a token and a half. Only the column of the token at hand has weights in it: one sum grows
// for each token. What counts are the rows and columns of the same half.
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
      multiply_add(sum, value[0][n], value[0][n + 1], value[1][n], value[1][n + 1], high0, high1);
      if (kExact) {
        const auto rest = [&](int c, int i) { return __fsub_rn(value[c][i], without_last_digits(value[c][i])); };
        const float low0 = owned ? low_[0] : 0.0f, low1 = owned ? low_[1] : 0.0f;
        multiply_add(sum, value[0][n], value[0][n + 1], value[1][n], value[1][n + 1], low0, low1);
        multiply_add(sum, rest(0, n), rest(0, n + 1), rest(1, n), rest(1, n + 1), high0, high1);
      }
    }
  }

  // Token lane % 4, states 4 (lane / 8) + 2 (lane / 4 % 2) and the next one.
  __device__ __forceinline__ float2 total(int lane) const {
    const bool half = lane & 4;
    const float keep0 = half ? sum_[1][1] : sum_[0][0], keep1 = half ? sum_[1][3] : sum_[0][2];
    const float send0 = half ? sum_[0][1] : sum_[1][0], send1 = half ? sum_[0][3] : sum_[1][2];
    return {__fadd_rn(keep0, __shfl_xor_sync(kAllLanes, send0, 4)),
            __fadd_rn(keep1, __shfl_xor_sync(kAllLanes, send1, 4))};
  }

 private:
  float high_[2], low_[2] = {};
  float sum_[kStates / 2][4] = {};
};

// Every lane comes with its share of four tokens' sums and leaves with the whole sum of token lane / 8.
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

template <int kWarpsOfBlock, int kBlocksOfProcessor>
struct BackwardPlan {
  static constexpr int kWarps = kWarpsOfBlock, kThreads = kWarps * kWarp;
  static constexpr int kBlocks = kBlocksOfProcessor;  // blocks that must fit on a multiprocessor: bounds the registers
  static constexpr int kBlockChannels = kWarps * kChannels;

  // What a warp keeps of a part.
  struct Part {
    float4 state[2][kWarp];  // before the part; once it is done, its sums for dB and dC take their place
    float4 step[kWarp];      // dt and dt u of a pair of channels, by token and pair
    float2 slope[kWarp];     // of the softplus
  };
  struct Shared {
    Part part[kWarps][kParts];
    float2 dy[kThreads];               // of the part at hand, behind the gate
    float4 constants[kWarps][kPairs];   // D and delta_bias of a pair of channels
    // Sums over tokens are added up for a tile in registers and for all tiles here: long sums lose fewer digits so.
    // Of a thread: dA of its two channels, and of the pair's dD and ddelta_bias.
    float4 totals[3][kThreads];
    // Of the block: B and C of two tiles, this one and the one that is being fetched.
    float states[2][kParts][2][kPart][kN];
  };
};

// kPaired: pairs of channels can be read and written at once.
template <class In, class P, bool kPaired>
class BackwardWarp {
 public:
  using Words = PairOf<In>;
  using Word = typename Words::Word;
  static constexpr bool kExact = std::is_same_v<In, float>;

  __device__ BackwardWarp(const BackwardArguments& args, typename P::Shared& shared)
      : a_(args),
        shared_(shared),
        warp_(threadIdx.x / kWarp),
        lane_(threadIdx.x % kWarp),
        j_(lane_ / kPairs),
        p_(lane_ % kPairs),
        block_(blockIdx.x % args.channel_blocks),
        group_(blockIdx.x / args.channel_blocks),
        channel_((block_ * P::kWarps + warp_) * kChannels + 2 * p_),
        at_channel_(channel_ * static_cast<uint32_t>(sizeof(In))),
        sum_at_(lane_ % 4 * (kN / 2) + 2 * (lane_ / 8) + lane_ / 4 % 2) {}

  __device__ void run() {
    load_constants();
    for (int i = group_; i < a_.sequences; i += a_.groups) sequence(a_.order[i]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 x = shared_.totals[c][threadIdx.x];
      dA_[c][0] = x.x, dA_[c][1] = x.y, dA_[c][2] = x.z, dA_[c][3] = x.w;
    }
    store_states(a_.dA_parts + int64_t(group_) * a_.D * kN, dA_);
    float4 sums = shared_.totals[2][threadIdx.x];
    sums = {sum_tokens(sums.x), sum_tokens(sums.y), sum_tokens(sums.z), sum_tokens(sums.w)};
    if (j_ > 0 || channel_ >= a_.D) return;
    const int64_t at = int64_t(group_) * a_.D + channel_;
    const bool both = channel_ + 1 < a_.D;
    if (a_.dskip_parts != nullptr) a_.dskip_parts[at] = sums.x;
    if (a_.dskip_parts != nullptr && both) a_.dskip_parts[at + 1] = sums.y;
    if (a_.dbias_parts != nullptr) a_.dbias_parts[at] = sums.z;
    if (a_.dbias_parts != nullptr && both) a_.dbias_parts[at + 1] = sums.w;
  }

 private:
  __device__ void load_constants() {
    const auto constant = [&](const float* from, int c) {
      return from != nullptr && channel_ + c < a_.D ? from[channel_ + c] : 0.0f;
    };
    if (j_ == 0) {
      shared_.constants[warp_][p_] = {constant(a_.skip, 0), constant(a_.skip, 1), constant(a_.bias, 0),
                                      constant(a_.bias, 1)};
    }
    for (int k = 0; k < 3; ++k) shared_.totals[k][threadIdx.x] = {};
    __syncwarp();
    load_states(a_.A, rate_);
#pragma unroll
    for (int k = 0; k < 2 * kStates; ++k) rate_[k / kStates][k % kStates] = decay_rate(rate_[k / kStates][k % kStates]);
  }

  __device__ void sequence(int s) {
    start_ = a_.cu_seqlens[s];
    length_ = a_.cu_seqlens[s + 1] - static_cast<int>(start_);
    limit_ = channel_ < a_.D ? length_ : 0;
    const int64_t states = int64_t(a_.D) * kN;
    load_states(a_.dfinal_state == nullptr ? nullptr : a_.dfinal_state + s * states, g_);
    const int tiles = (length_ + kTile - 1) / kTile;
    if (tiles > 0) {
      const int slot = static_cast<int>(first_slot(a_.cu_seqlens, s));
      load_states(a_.checkpoints + (slot + tiles - 1) * states, h_);
      for (int part = 0; part < kParts; ++part) {
        request_steps(tiles - 1, part);
        place_steps(tiles - 1, part);
      }
      request_rest((length_ - 1) / kPart);
      for (int tile = tiles - 1; tile >= 0; --tile) {
        __syncthreads();  // B and C are there, and the sums of the tile before have been taken
        const int parts = min(kParts, (length_ - tile * kTile + kPart - 1) / kPart);
        first_sweep(tile, parts);
        for (int part = kParts - 1; part >= 0; --part) {
          if (part < parts) {
            work_on(tile, part);
          } else if (tile > 0) {
            request_steps(tile - 1, part);
          }
          if (tile > 0) place_steps(tile - 1, part);
        }
        add_up_tile();
        if (tile > 0) load_states(a_.checkpoints + (slot + tile - 1) * states, h_);
        __syncthreads();
        sum_warps(tile);
      }
    }
    if (a_.dinitial_state != nullptr) store_states(a_.dinitial_state + s * states, g_);
  }

  // --- Fetching ahead: what the next tile's first sweep needs, part by part; what the next part needs beyond that ---

  __device__ __forceinline__ uint64_t row(int t) const { return uint64_t(start_ + static_cast<uint32_t>(t)); }

  // Token t of the sequence and the two channels of this lane.
  __device__ __forceinline__ Word load_pair(const InputRows& rows, int t, Word otherwise) const {
    const char* from = static_cast<const char*>(rows.data) + row(t) * rows.bytes + at_channel_;
    Word x = otherwise;
    if constexpr (kPaired) {
      if (static_cast<unsigned>(t) < limit_) x = *reinterpret_cast<const Word*>(from);
    } else if (static_cast<unsigned>(t) < limit_) {
      const In* pair = reinterpret_cast<const In*>(from);
      x = Words::of(pair[0], channel_ + 1 < a_.D ? pair[1] : narrow<In>(Words::second(otherwise)));
    }
    return x;
  }

  // A token after the sequence's end gets a step of 0, which leaves a state as it is: softplus(-inf) is 0.
  __device__ __forceinline__ void request_steps(int tile, int part) {
    const int t = tile * kTile + part * kPart + j_;
    next_delta_ = load_pair(a_.delta, t, a_.softplus ? Words::kMinusInfinities : Words::kZeros);
    next_u_ = load_pair(a_.u, t, Words::kZeros);
    // One number of B or C for each thread of the block.
    const int t_of_state = tile * kTile + part * kPart + threadIdx.x / kN % kPart;
    const InputRows& rows = threadIdx.x < kPart * kN ? a_.B : a_.C;
    const char* from = static_cast<const char*>(rows.data) + row(t_of_state) * rows.bytes + threadIdx.x % kN * sizeof(In);
    next_state_ = narrow<In>(0.0f);
    if (threadIdx.x < 2 * kPart * kN && t_of_state < length_) next_state_ = *reinterpret_cast<const In*>(from);
  }

  __device__ __forceinline__ void place_steps(int tile, int part) {
    const float4 constants = shared_.constants[warp_][p_];
    const float raw0 = __fadd_rn(Words::first(next_delta_), constants.z);
    const float raw1 = __fadd_rn(Words::second(next_delta_), constants.w);
    float dt0, dt1, slope0, slope1;
    if (a_.softplus) {
      const float e0 = exp_of_minus_abs(raw0), e1 = exp_of_minus_abs(raw1);
      dt0 = softplus_from(raw0, e0), dt1 = softplus_from(raw1, e1);
      slope0 = sigmoid_from(raw0, e0), slope1 = sigmoid_from(raw1, e1);
    } else {
      const bool exists = tile * kTile + part * kPart + j_ < length_;
      dt0 = exists ? raw0 : 0.0f, dt1 = exists ? raw1 : 0.0f;
      slope0 = slope1 = exists ? 1.0f : 0.0f;
    }
    auto& to = shared_.part[warp_][part];
    __syncwarp();
    to.step[lane_] = {dt0, dt1, __fmul_rn(dt0, Words::first(next_u_)), __fmul_rn(dt1, Words::second(next_u_))};
    to.slope[lane_] = {slope0, slope1};
    if (threadIdx.x < 2 * kPart * kN) (&shared_.states[tile % 2][part][0][0][0])[threadIdx.x] = widen(next_state_);
  }

  // Part number `part` of the sequence, -1 being none.
  __device__ __forceinline__ void request_rest(int part) {
    const int t = part * kPart + j_;
    rest_u_ = load_pair(a_.u, t, Words::kZeros);
    rest_dy_ = load_pair(a_.dy, t, Words::kZeros);
    if (a_.z.data != nullptr) rest_z_ = load_pair(a_.z, t, Words::kZeros);
  }

  // --- The sweeps ---

  __device__ void first_sweep(int tile, int parts) {
    for (int part = 0;; ++part) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        shared_.part[warp_][part].state[c][lane_] = {h_[c][0], h_[c][1], h_[c][2], h_[c][3]};
      }
      if (part == parts - 1) break;
      const auto& here = shared_.part[warp_][part];
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        const float4 step = here.step[i * kPairs + p_];
        const auto B = states_at(tile, part, i, 0);
#pragma unroll
        for (int k = 0; k < 2 * kStates; ++k) {
          const int c = k / kStates, n = k % kStates;
          const float decay = exp2_fast(__fmul_rn(c == 0 ? step.x : step.y, rate_[c][n]));
          h_[c][n] = __fmaf_rn(decay, h_[c][n], __fmul_rn(c == 0 ? step.z : step.w, B.value[n]));
        }
      }
    }
  }

  // This lane's four numbers of B (0) or C (1).
  __device__ __forceinline__ Packed<float, kStates> states_at(int tile, int part, int i, int matrix) const {
    return load_packed<float, kStates>(&shared_.states[tile % 2][part][matrix][i][kStates * j_]);
  }

  using OfPart = float[kPart][2][kStates];

  __device__ __forceinline__ void work_on(int tile, int part) {
    OfPart decay, before;
    const float u[2] = {Words::first(rest_u_), Words::second(rest_u_)};
    along(tile, part, u, decay, before);
    against(tile, part, u, decay, before);
  }

  // Along time: the states once more, and with them y, so dz, and dC.
  __device__ __forceinline__ void along(int tile, int part, const float (&u)[2], OfPart& decay, OfPart& before) {
    float dy[2] = {Words::first(rest_dy_), Words::second(rest_dy_)}, gate[2], dz[2];
    if (a_.z.data != nullptr) {
      const float z[2] = {Words::first(rest_z_), Words::second(rest_z_)};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float open = sigmoid(z[c]);
        gate[c] = __fmul_rn(z[c], open);
        dz[c] = __fmul_rn(dy[c], __fmaf_rn(gate[c], __fsub_rn(1.0f, open), open));
        dy[c] = __fmul_rn(dy[c], gate[c]);
      }
    }
    dskip_[0] = __fmaf_rn(dy[0], u[0], dskip_[0]), dskip_[1] = __fmaf_rn(dy[1], u[1], dskip_[1]);
    __syncwarp();
    shared_.dy[threadIdx.x] = {dy[0], dy[1]};
    // Asked for only now that the last ones have been used: a wait for one load is a wait for all that were asked for.
    if (tile > 0) request_steps(tile - 1, part);
    request_rest(tile * kParts + part - 1);

    auto& here = shared_.part[warp_][part];
    float h[2][kStates], share[2][kPart];
    SumOverChannels<kExact> dC(dy[0], dy[1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 from = here.state[c][lane_];
      h[c][0] = from.x, h[c][1] = from.y, h[c][2] = from.z, h[c][3] = from.w;
    }
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const float4 step = here.step[i * kPairs + p_];
      const auto B = states_at(tile, part, i, 0), C = states_at(tile, part, i, 1);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        before[i][c][n] = h[c][n];
        decay[i][c][n] = exp2_fast(__fmul_rn(c == 0 ? step.x : step.y, rate_[c][n]));
        h[c][n] = __fmaf_rn(decay[i][c][n], h[c][n], __fmul_rn(c == 0 ? step.z : step.w, B.value[n]));
        share[c][i] = n == 0 ? __fmul_rn(h[c][n], C.value[n]) : __fmaf_rn(h[c][n], C.value[n], share[c][i]);
      }
      dC.add(j_ == i, h);
    }
    __syncwarp();
    sums_of(here)[kPart * kN / 2] = dC.total(lane_);

    const float4 constants = shared_.constants[warp_][p_];
    const float y[2] = {__fmaf_rn(constants.x, u[0], sum_over_states(share[0], lane_)),
                        __fmaf_rn(constants.y, u[1], sum_over_states(share[1], lane_))};
    const int t = tile * kTile + part * kPart + j_;
    if (a_.z.data == nullptr || static_cast<unsigned>(t) >= limit_) return;
    store_pair(a_.dz, t, __fmul_rn(dz[0], y[0]), __fmul_rn(dz[1], y[1]));
    if (a_.y.data != nullptr) store_pair(a_.y, t, __fmul_rn(y[0], gate[0]), __fmul_rn(y[1], gate[1]));
  }

  // Against time: g, and with it dB, dA, and gB and gA, which du and ddelta are made of.
  __device__ __forceinline__ void against(int tile, int part, const float (&u)[2], const OfPart& decay,
                                          const OfPart& before) {
    auto& here = shared_.part[warp_][part];
    const float4 own_step = here.step[lane_];
    float share_B[2][kPart], share_A[2][kPart];
    SumOverChannels<kExact> dB(own_step.z, own_step.w);
#pragma unroll
    for (int i = kPart - 1; i >= 0; --i) {
      const float2 dt = *reinterpret_cast<const float2*>(&here.step[i * kPairs + p_]);
      const float2 dy = shared_.dy[warp_ * kWarp + i * kPairs + p_];
      const auto B = states_at(tile, part, i, 0), C = states_at(tile, part, i, 1);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        g_[c][n] = __fmaf_rn(c == 0 ? dy.x : dy.y, C.value[n], g_[c][n]);
      }
      dB.add(j_ == i, g_);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        share_B[c][i] = n == 0 ? __fmul_rn(g_[c][n], B.value[n]) : __fmaf_rn(g_[c][n], B.value[n], share_B[c][i]);
        g_[c][n] = __fmul_rn(g_[c][n], decay[i][c][n]);
        const float through = __fmul_rn(g_[c][n], before[i][c][n]);  // the gradient of dt A
        share_A[c][i] = n == 0 ? __fmul_rn(through, rate_[c][n]) : __fmaf_rn(through, rate_[c][n], share_A[c][i]);
        dA_[c][n] = __fmaf_rn(through, c == 0 ? dt.x : dt.y, dA_[c][n]);
      }
    }
    sums_of(here)[0] = dB.total(lane_);

    const float2 slope = here.slope[lane_], dy = shared_.dy[threadIdx.x];
    const float4 constants = shared_.constants[warp_][p_];
    float du[2], ddelta[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float gB = sum_over_states(share_B[c], lane_), gA = sum_over_states(share_A[c], lane_);
      du[c] = __fmaf_rn(c == 0 ? own_step.x : own_step.y, gB,
                        __fmul_rn(c == 0 ? constants.x : constants.y, c == 0 ? dy.x : dy.y));
      ddelta[c] = __fmul_rn(__fmaf_rn(u[c], gB, __fmul_rn(gA, kLn2)), c == 0 ? slope.x : slope.y);
      dbias_[c] = __fadd_rn(dbias_[c], ddelta[c]);
    }
    const int t = tile * kTile + part * kPart + j_;
    if (static_cast<unsigned>(t) >= limit_) return;
    store_pair(a_.du, t, du[0], du[1]);
    store_pair(a_.ddelta, t, ddelta[0], ddelta[1]);
  }

  __device__ __forceinline__ float2* sums_of(typename P::Part& part) const {
    return reinterpret_cast<float2*>(part.state) + sum_at_;
  }

  __device__ __forceinline__ void store_pair(const OutputRows& rows, int t, float first, float second) const {
    const In x[2] = {narrow<In>(first), narrow<In>(second)};
    In* const to = reinterpret_cast<In*>(static_cast<char*>(rows.data) + row(t) * rows.bytes + at_channel_);
    if constexpr (kPaired) {
      *reinterpret_cast<Word*>(to) = Words::of(x[0], x[1]);
    } else {
      to[0] = x[0];
      if (channel_ + 1 < a_.D) to[1] = x[1];
    }
  }

  // --- Sums over more than a warp's registers ---

  // The block's part of the tile's dB and dC, warp after warp.
  __device__ void sum_warps(int tile) const {
    constexpr unsigned kFours = kPart * kN / 4;  // of one matrix in one part
    for (unsigned k = threadIdx.x; k < 2 * kParts * kFours; k += P::kThreads) {
      const unsigned matrix = k / (kParts * kFours), part = k / kFours % kParts, at = k % kFours;
      const int t = tile * kTile + part * kPart + at / (kN / 4);
      if (t >= length_) continue;
      float4 sum = (&shared_.part[0][part].state[0][0])[matrix * kFours + at];
#pragma unroll
      for (int w = 1; w < P::kWarps; ++w) {
        const float4 x = (&shared_.part[w][part].state[0][0])[matrix * kFours + at];
        sum = {__fadd_rn(sum.x, x.x), __fadd_rn(sum.y, x.y), __fadd_rn(sum.z, x.z), __fadd_rn(sum.w, x.w)};
      }
      const int64_t to = (int64_t(matrix) * a_.channel_blocks + block_) * a_.T + row(t);
      *reinterpret_cast<float4*>(a_.states_parts + to * kN + at % (kN / 4) * 4) = sum;
    }
  }

  __device__ void add_up_tile() {
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      float4& total = shared_.totals[k][threadIdx.x];
      const float4 more = k == 2 ? float4{dskip_[0], dskip_[1], dbias_[0], dbias_[1]}
                                 : float4{dA_[k % 2][0], dA_[k % 2][1], dA_[k % 2][2], dA_[k % 2][3]};
      const float4 x = total;
      total = {__fadd_rn(x.x, more.x), __fadd_rn(x.y, more.y), __fadd_rn(x.z, more.z), __fadd_rn(x.w, more.w)};
    }
#pragma unroll
    for (int k = 0; k < 2 * kStates; ++k) dA_[k / kStates][k % kStates] = 0.0f;
    dskip_[0] = dskip_[1] = dbias_[0] = dbias_[1] = 0.0f;
  }

  // The four lanes with the same channels have summed up different tokens.
  __device__ float sum_tokens(float x) const {
    x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, 8));
    return __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, 16));
  }

  // --- States: [D, N] in memory, four side by side in a thread ---

  __device__ void load_states(const float* from, float (&to)[2][kStates]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float4 x = {};
      if (from != nullptr && channel_ + c < a_.D) {
        x = *reinterpret_cast<const float4*>(from + int64_t(channel_ + c) * kN + kStates * j_);
      }
      to[c][0] = x.x, to[c][1] = x.y, to[c][2] = x.z, to[c][3] = x.w;
    }
  }

  __device__ void store_states(float* to, const float (&from)[2][kStates]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (channel_ + c >= a_.D) break;
      *reinterpret_cast<float4*>(to + int64_t(channel_ + c) * kN + kStates * j_) = {from[c][0], from[c][1], from[c][2],
                                                                                   from[c][3]};
    }
  }

  static_assert(P::kThreads >= 2 * kPart * kN);
  const BackwardArguments& a_;
  typename P::Shared& shared_;
  const int warp_, lane_;
  const int j_, p_;  // states and token, channels
  const int block_, group_, channel_;
  const uint32_t at_channel_;  // in bytes
  const int sum_at_;  // where this lane's two sums over channels belong among those of the warp
  uint32_t start_ = 0;
  int length_ = 0;
  unsigned limit_ = 0;  // tokens that this lane reads and writes: none where its channels do not exist
  float rate_[2][kStates], h_[2][kStates], g_[2][kStates], dA_[2][kStates] = {};
  float dskip_[2] = {}, dbias_[2] = {};
  Word next_delta_, next_u_, rest_u_, rest_dy_, rest_z_;
  In next_state_;
};

template <class In, class P, bool kPaired>
__global__ void __launch_bounds__(P::kThreads, P::kBlocks) scan_backward(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  BackwardWarp<In, P, kPaired>(args, *reinterpret_cast<typename P::Shared*>(memory)).run();
}

}  // namespace mamba_lab::ssm
