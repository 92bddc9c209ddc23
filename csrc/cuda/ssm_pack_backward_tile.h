// What a warp of the backward pass reads and writes: rows of tokens on their way to shared memory, states, results, and
// the block's sums. What it computes in between is in ssm_pack_backward_warp.h.

#pragma once

#include "ssm_pack_backward_lanes.h"

namespace mamba_lab::ssm {

// kUsual: softplus and gate are on, and pairs of channels can be read and written at once. The arithmetic is the same.
template <class P, bool kUsual>
class BackwardTile {
 public:
  using In = typename P::In;
  using Words = PairOf<In>;
  using Word = typename Words::Word;

  __device__ BackwardTile(const BackwardArguments& args, typename P::Shared& shared)
      : a_(args),
        shared_(shared),
        warp_(threadIdx.x / kWarp),
        lane_(threadIdx.x % kWarp),
        j_(lane_ / kPairs),
        p_(lane_ % kPairs),
        block_(turn(args) % args.channel_blocks),
        group_(turn(args) / args.channel_blocks),
        channel_((block_ * P::kWarps + warp_) * kChannels + 2 * p_),
        at_channel_(channel_ * static_cast<uint32_t>(sizeof(In))) {}

 protected:
  // Blocks start in the order of their index, one on each processor, then a second one on each. The longest sequence
  // comes first; every second round goes backwards, so that its processors get the shortest ones beside it.
  static __device__ int turn(const BackwardArguments& args) {
    const int index = blockIdx.x, round = index / args.processors, first = round * args.processors;
    const int last = min(first + args.processors, args.channel_blocks * args.groups) - 1;
    return round % 2 == 0 ? index : last - (index - first);
  }

  __device__ __forceinline__ bool softplus() const { return kUsual || a_.softplus; }
  __device__ __forceinline__ bool gated() const { return kUsual || a_.z.data != nullptr; }

  // --- Fetching ahead: what the next tile's first sweep needs, part by part; what the next part needs beyond that ---
  // "Next" is the one before in time: the walk goes from the end to the start.

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
    const char* const from =
        static_cast<const char*>(rows.data) + row(t) * rows.bytes + threadIdx.x % (kN / 2) * sizeof(Word);
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
  }

  // What the parts beyond that need of a token: part number `part` of the sequence, -1 being none.
  __device__ __forceinline__ void ask_for_rest(int part) const {
    const int t = part * kPart + j_;
    ask_for_pair(kRestU, a_.u, t);
    ask_for_pair(kRestDy, a_.dy, t);
    if (gated()) ask_for_pair(kRestZ, a_.z, t);
  }

  // The step of the token and channels that this lane owns, and its slope.
  struct Step {
    float dt[2], dtu[2], slope[2];
  };

  // A token after the sequence's end, and one of the tile before the first, gets a step of 0, which leaves a state as
  // it is: softplus(-inf) is 0, and so is its slope.
  __device__ __forceinline__ Step step_asked_for(int tile, int part) const {
    const Word delta = shared_.box[kDelta][threadIdx.x], u = shared_.box[kU][threadIdx.x];
    const float4 constants = shared_.constants[warp_][p_];
    const bool exists = static_cast<unsigned>(tile * kTile + part * kPart + j_) < static_cast<unsigned>(length_);
    Step step;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float raw = c == 0 ? __fadd_rn(Words::first(delta), constants.z) : __fadd_rn(Words::second(delta), constants.w);
      if (!exists) raw = -INFINITY;
      const float e = exp_of_minus_abs(raw);
      step.dt[c] = softplus() ? softplus_from(raw, e) : exists ? raw : 0.0f;
      step.dtu[c] = __fmul_rn(step.dt[c], c == 0 ? Words::first(u) : Words::second(u));
      step.slope[c] = softplus() ? __fmul_rn(raw < 0 ? e : 1.0f, reciprocal(__fadd_rn(1.0f, e))) : exists ? 1.0f : 0.0f;
    }
    return step;
  }

  __device__ __forceinline__ void place(int tile, int part, const Step& step) const {
    auto& to = shared_.part[warp_][part];
    __syncwarp();
    to.step[lane_] = {step.dt[0], step.dt[1], step.dtu[0], step.dtu[1]};
    to.slope[lane_] = {step.slope[0], step.slope[1]};
    if (threadIdx.x >= kPart * kN) return;
    const Word states = shared_.box[kStatesOfTile][threadIdx.x];
    reinterpret_cast<float2*>(shared_.states[tile & 1][part])[threadIdx.x] = {Words::first(states),
                                                                              Words::second(states)};
  }

  __device__ void ask_and_place(int tile, int part) const {
    ask_for_steps(tile, part);
    wait_for_copies();
    place(tile, part, step_asked_for(tile, part));
  }

  __device__ __forceinline__ void take_rest() {
    rest_u_ = shared_.box[kRestU][threadIdx.x];
    rest_dy_ = shared_.box[kRestDy][threadIdx.x];
    rest_z_ = gated() ? shared_.box[kRestZ][threadIdx.x] : 0;
  }

  // This lane's four numbers of B (0) or C (1).
  __device__ __forceinline__ Packed<float, kStates> states_at(int tile, int part, int i, int matrix) const {
    return load_packed<float, kStates>(&shared_.states[tile & 1][part][matrix][i][kStates * j_]);
  }

  // --- Results ---

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

  // --- States: [D, N] in memory, four side by side in a thread ---

  __device__ __forceinline__ const float* checkpoint(int s, int tile) const {
    return a_.checkpoints + int64_t(start_ / kCheckpointTokens + s + tile) * (a_.D * kN);
  }

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
  uint32_t start_ = 0;
  int length_ = 0;
  Word rest_u_, rest_dy_, rest_z_;  // of the part at hand
  unsigned limit_ = 0;  // tokens that this lane reads and writes: none where its channels do not exist
};

}  // namespace mamba_lab::ssm
