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

// Copies sizeof(Word) bytes from global to shared memory while the thread goes on, or writes zeros there. The compiler has
// six counters to wait for loads into registers with, for exponentials too: copies like this one need none of them.
template <class Word>
__device__ __forceinline__ void copy_later(Word* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "n"(sizeof(Word)), "r"(exists ? static_cast<uint32_t>(sizeof(Word)) : 0u)
               : "memory");
}

__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups of copies but the last kLast have arrived.
template <int kLast>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLast) : "memory");
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

// What a lane has under way: delta and u of the tile behind, B and C too, and u, dy and z of the part behind.
enum Box { kDelta, kU, kStatesOfTile, kRestU, kRestDy, kRestZ, kBoxes };

template <class Input, int kWarpsOfBlock, int kBlocksOfProcessor>
struct BackwardPlan {
  using In = Input;
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
    typename PairOf<In>::Word box[kBoxes][kThreads];  // what has been asked for, of each thread
    float2 dy[kThreads];                // of the part at hand, behind the gate
    float4 constants[kWarps][kPairs];   // D and delta_bias of a pair of channels
    // Sums over tokens are added up for a tile in registers and for all tiles here: long sums lose fewer digits so.
    // Of a thread: dA of its two channels, and of the pair's dD and ddelta_bias.
    float4 totals[3][kThreads];
    // Of the block: B and C of two tiles, this one and the one that is being fetched.
    float states[2][kParts][2][kPart][kN];
  };
};

// kUsual: softplus and gate are on, and pairs of channels can be read and written at once. The arithmetic is the same.
template <class P, bool kUsual>
class BackwardWarp {
 public:
  using In = typename P::In;
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
      for (int part = 0; part < kParts; ++part) ask_and_place(tiles - 1, part);
      ask_for_rest((length_ - 1) / kPart);
      for (int tile = tiles - 1; tile >= 0; --tile) {
        __syncthreads();  // B and C are there, and the sums of the tile before have been taken
        const int parts = min(kParts, (length_ - tile * kTile + kPart - 1) / kPart);
        if (tile > 0) fetch_states(a_.checkpoints + (slot + tile - 1) * states);
        first_sweep(tile, parts);
        for (int part = parts; part < kParts; ++part) ask_and_place(tile - 1, part);
        for (int part = parts - 1; part >= 0; --part) work_on(tile, part);
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

  __device__ __forceinline__ const char* pair_at(const InputRows& rows, int t) const {
    return static_cast<const char*>(rows.data) + row(t) * rows.bytes + at_channel_;
  }

  // Token t of the sequence and the two channels of this lane. Zeros where there is no such token.
  __device__ __forceinline__ Word load_pair(const InputRows& rows, int t) const {
    if (static_cast<unsigned>(t) >= limit_) return 0;
    const char* const from = pair_at(rows, t);
    if constexpr (kUsual) return *reinterpret_cast<const Word*>(from);
    const In* const pair = reinterpret_cast<const In*>(from);
    return Words::of(pair[0], channel_ + 1 < a_.D ? pair[1] : narrow<In>(0.0f));
  }

  // The same without waiting for it: it goes to shared memory without passing through a register.
  __device__ __forceinline__ void ask_for_pair(Box box, const InputRows& rows, int t) const {
    Word* const to = &shared_.box[box][threadIdx.x];
    if constexpr (kUsual) {
      copy_later(to, pair_at(rows, t), static_cast<unsigned>(t) < limit_);
    } else {
      *to = load_pair(rows, t);
    }
  }

  // Two states of B or C: 64 threads of the block fetch those of a part.
  __device__ __forceinline__ void ask_for_states(int t0) const {
    if (threadIdx.x >= kPart * kN) return;
    const InputRows& rows = threadIdx.x < kPart * kN / 2 ? a_.B : a_.C;
    const int t = t0 + threadIdx.x / (kN / 2) % kPart;
    const char* const from = static_cast<const char*>(rows.data) + row(t) * rows.bytes + threadIdx.x % (kN / 2) * sizeof(Word);
    const bool exists = static_cast<unsigned>(t) < static_cast<unsigned>(length_);
    Word* const to = &shared_.box[kStatesOfTile][threadIdx.x];
    if constexpr (kUsual) {
      copy_later(to, from, exists);
    } else {
      const In* const pair = reinterpret_cast<const In*>(from);
      *to = exists ? Words::of(pair[0], pair[1]) : 0;
    }
  }

  // What the first sweep of a tile needs of one part.
  __device__ __forceinline__ void ask_for_steps(int tile, int part) const {
    const int t = tile * kTile + part * kPart;
    ask_for_pair(kDelta, a_.delta, t + j_);
    ask_for_pair(kU, a_.u, t + j_);
    ask_for_states(t);
    close_group();
  }

  // What the parts beyond that need of a token: part number `part` of the sequence, -1 being none.
  __device__ __forceinline__ void ask_for_rest(int part) const {
    const int t = part * kPart + j_;
    ask_for_pair(kRestU, a_.u, t);
    ask_for_pair(kRestDy, a_.dy, t);
    if (gated()) ask_for_pair(kRestZ, a_.z, t);
    close_group();
  }

  __device__ void ask_and_place(int tile, int part) const {
    ask_for_steps(tile, part);
    wait_for_groups<0>();
    place_steps(tile, part);
  }

  // A token after the sequence's end, and one of the tile before the first, gets a step of 0, which leaves a state as it
  // is: softplus(-inf) is 0, and so is its slope.
  __device__ __forceinline__ void place_steps(int tile, int part) const {
    const Word delta = shared_.box[kDelta][threadIdx.x], u = shared_.box[kU][threadIdx.x];
    const float4 constants = shared_.constants[warp_][p_];
    const bool exists = static_cast<unsigned>(tile * kTile + part * kPart + j_) < static_cast<unsigned>(length_);
    float dt[2], slope[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float raw = c == 0 ? __fadd_rn(Words::first(delta), constants.z) : __fadd_rn(Words::second(delta), constants.w);
      if (!exists) raw = -INFINITY;
      const float e = exp_of_minus_abs(raw);
      dt[c] = softplus() ? softplus_from(raw, e) : exists ? raw : 0.0f;
      slope[c] = softplus() ? __fmul_rn(raw < 0 ? e : 1.0f, reciprocal(__fadd_rn(1.0f, e))) : exists ? 1.0f : 0.0f;
    }
    auto& to = shared_.part[warp_][part];
    __syncwarp();
    to.step[lane_] = {dt[0], dt[1], __fmul_rn(dt[0], Words::first(u)), __fmul_rn(dt[1], Words::second(u))};
    to.slope[lane_] = {slope[0], slope[1]};
    if (threadIdx.x >= kPart * kN) return;
    const Word states = shared_.box[kStatesOfTile][threadIdx.x];
    reinterpret_cast<float2*>(shared_.states[tile & 1][part])[threadIdx.x] = {Words::first(states), Words::second(states)};
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
    return load_packed<float, kStates>(&shared_.states[tile & 1][part][matrix][i][kStates * j_]);
  }

  using OfPart = float[kPart][2][kStates];

  __device__ __forceinline__ void work_on(int tile, int part) {
    OfPart decay, before;
    wait_for_groups<0>();
    const Word own_u = shared_.box[kRestU][threadIdx.x];
    const float u[2] = {Words::first(own_u), Words::second(own_u)};
    along(tile, part, u, decay, before);
    against(tile, part, u, decay, before);
    wait_for_groups<1>();
    place_steps(tile - 1, part);
  }

  // Along time: the states once more, and with them y, so dz, and dC.
  __device__ __forceinline__ void along(int tile, int part, const float (&u)[2], OfPart& decay, OfPart& before) {
    const Word own_dy = shared_.box[kRestDy][threadIdx.x], own_z = gated() ? shared_.box[kRestZ][threadIdx.x] : 0;
    const float z[2] = {Words::first(own_z), Words::second(own_z)};
    float dy[2] = {Words::first(own_dy), Words::second(own_dy)}, gate[2], dz[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float open = sigmoid(z[c]);
      gate[c] = gated() ? __fmul_rn(z[c], open) : 1.0f;
      dz[c] = __fmul_rn(dy[c], __fmaf_rn(gate[c], __fsub_rn(1.0f, open), open));
      dy[c] = __fmul_rn(dy[c], gate[c]);
    }
    dskip_[0] = __fmaf_rn(dy[0], u[0], dskip_[0]), dskip_[1] = __fmaf_rn(dy[1], u[1], dskip_[1]);
    __syncwarp();
    shared_.dy[threadIdx.x] = {dy[0], dy[1]};
    ask_for_steps(tile - 1, part);
    ask_for_rest(tile * kParts + part - 1);

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
    store_pair(a_.dz, t, __fmul_rn(dz[0], y[0]), __fmul_rn(dz[1], y[1]), gated());
    store_pair(a_.y, t, __fmul_rn(y[0], gate[0]), __fmul_rn(y[1], gate[1]), a_.y.data != nullptr);
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
    store_pair(a_.du, t, du[0], du[1]);
    store_pair(a_.ddelta, t, ddelta[0], ddelta[1]);
  }

  __device__ __forceinline__ float2* sums_of(typename P::Part& part) const {
    return reinterpret_cast<float2*>(part.state) + sum_at_;
  }

  __device__ __forceinline__ void store_pair(const OutputRows& rows, int t, float first, float second,
                                             bool wanted = true) const {
    const In x[2] = {narrow<In>(first), narrow<In>(second)};
    In* const to = reinterpret_cast<In*>(static_cast<char*>(rows.data) + row(t) * rows.bytes + at_channel_);
    const bool exists = static_cast<unsigned>(t) < limit_ && wanted;
    if constexpr (kUsual) {
      store_if(exists, to, Words::of(x[0], x[1]));
    } else {
      if (exists) to[0] = x[0];
      if (exists && channel_ + 1 < a_.D) to[1] = x[1];
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

  __device__ __forceinline__ bool softplus() const { return kUsual || a_.softplus; }
  __device__ __forceinline__ bool gated() const { return kUsual || a_.z.data != nullptr; }

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

  // Moves them into the L2 cache, so that loading them takes a third of the time.
  __device__ void fetch_states(const float* from) const {
    const float* const of_lane = from + int64_t(channel_ + j_ % 2) * kN;
    if (channel_ + j_ % 2 < a_.D) asm volatile("prefetch.global.L2 [%0];" ::"l"(of_lane));
  }

  __device__ void store_states(float* to, const float (&from)[2][kStates]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (channel_ + c >= a_.D) break;
      *reinterpret_cast<float4*>(to + int64_t(channel_ + c) * kN + kStates * j_) = {from[c][0], from[c][1], from[c][2],
                                                                                   from[c][3]};
    }
  }

  static_assert(P::kThreads >= kPart * kN);
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
};

template <class P, bool kUsual>
__global__ void __launch_bounds__(P::kThreads, P::kBlocks) scan_backward(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  BackwardWarp<P, kUsual>(args, *reinterpret_cast<typename P::Shared*>(memory)).run();
}

}  // namespace mamba_lab::ssm
