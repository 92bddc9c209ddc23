// What a warp of the backward pass reads and writes: rows of tokens on their way to shared memory, states, results, and
// the block's sums. What it computes in between is in ssm_pack_backward_warp.h.

#pragma once

#include "ssm_pack_backward_lanes.h"

namespace mamba_lab::ssm {

// kUsual: softplus and gate are on, channels are a multiple of a warp's, and rows are aligned, so that 16 bytes can be
// read at once and pairs of channels written. The arithmetic is the same.
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
        at_channel_(channel_ * static_cast<uint32_t>(sizeof(In))),
        token_(channel_ < args.D ? j_ : kNever) {}

 protected:
  // The longest sequences come first. Where blocks are few they all start at once, about one on each processor and then
  // a second one on each: every second round goes backwards, so that the longest get the shortest beside them.
  static __device__ int turn(const BackwardArguments& args) {
    const int index = blockIdx.x, round = index / args.processors, first = round * args.processors;
    const int all = args.channel_blocks * args.groups, last = min(first + args.processors, all) - 1;
    return round % 2 == 0 || all > 3 * args.processors ? index : last - (index - first);
  }

  __device__ __forceinline__ bool softplus() const { return kUsual || a_.softplus; }
  __device__ __forceinline__ bool gated() const { return kUsual || a_.z.data != nullptr; }

  // A token past every end: what is missing reads as zeros and is not written.
  static constexpr uint32_t kNever = 1u << 31;

  __device__ __forceinline__ bool exists(uint32_t t) const { return t < static_cast<uint32_t>(length_); }

  __device__ __forceinline__ uint64_t row(int t) const { return uint64_t(start_ + static_cast<uint32_t>(t)); }

  __device__ __forceinline__ const char* pair_at(const InputRows& rows, int t) const {
    return static_cast<const char*>(rows.data) + row(t) * rows.bytes + at_channel_;
  }

  // Token t of the sequence and the two channels of this lane. Zeros where there is no such token.
  __device__ __forceinline__ Word load_pair(const InputRows& rows, int t) const {
    if (!exists(t)) return 0;
    const In* const pair = reinterpret_cast<const In*>(pair_at(rows, t));
    return Words::of(pair[0], channel_ + 1 < a_.D ? pair[1] : narrow<In>(0.0f));
  }

  // --- Fetching ahead: what the next tile's first sweep needs, part by part; what the next part needs beyond that ---
  // "Next" is the one before in time: the walk goes from the end to the start, part by part without a gap.

  // In the usual case a lane copies 16 bytes of delta, u, dy or z: in bfloat16 one instruction brings all four. u of
  // the next part comes with B and C, 4 numbers a lane: 24 fours, and the last eight lanes copy what those before them
  // do to where nobody reads it. What lanes copy arrives side by side, which is by array, token and channel, just as
  // lanes read it.
  static constexpr int kCopied = 16 / sizeof(In), kCopiedLast = 4;  // numbers at a time
  static constexpr int kCopies = 4 * kPart * kChannels / kCopied / kWarp;

  // What a lane copies next: from where, and of which token. Each time it moves on by a part.
  struct Copy {
    const char* from;
    uint32_t part_bytes;
    uint32_t token;
  };

  // The first ask() is for t0.
  __device__ __forceinline__ void start_copies(int t0) {
    if constexpr (!kUsual) return;
    const int lane = lane_again(), first_channel = channel_ - lane % kPairs * 2;
    const uint32_t missing = first_channel < a_.D ? 0 : kNever;
    const auto copy_of = [&](const InputRows& rows, int column, int token, uint32_t missing) {
      const char* const row = static_cast<const char*>(rows.data) + int64_t(start_ + t0 + token) * rows.bytes;
      return Copy{row + column * sizeof(In), kPart * rows.bytes, t0 + token + missing};
    };
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = (i * kWarp + lane) * kCopied, array = at / (kPart * kChannels);
      const InputRows rows = array == kDelta ? a_.delta : array == kU ? a_.u : array == kRestDy ? a_.dy : a_.z;
      copies_[i] = copy_of(rows, first_channel + at % kChannels,
                           at / kChannels % kPart - (array < kRestDy ? kTile : kPart), missing);
    }
    const int at = (lane < 24 ? lane : lane - 8) * kCopiedLast;
    if (at < kPart * kChannels) {
      last_ = copy_of(a_.u, first_channel + at % kChannels, at / kChannels - kPart, missing);
    } else {
      last_ = copy_of(at % (2 * kN) < kN ? a_.B : a_.C, at % kN, warp_ - kTile, 0);
    }
  }

  template <int kCount>
  __device__ __forceinline__ void start(Copy& copy, void* to) const {
    copy_later<kCount * sizeof(In)>(to, copy.from, exists(copy.token));
    copy.from -= copy.part_bytes, copy.token -= kPart;
    if constexpr (P::kFew) fetch_if(exists(copy.token), copy.from);
  }

  // For delta, u, B and C of the part a tile before t0, and for dy, z and u of the part before t0. Nothing waits.
  __device__ __forceinline__ void ask(int t0) {
    auto& box = shared_.box[warp_];
    if constexpr (kUsual) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        start<kCopied>(copies_[i], reinterpret_cast<In*>(&box.pairs[kDelta][0]) + (i * kWarp + lane_) * kCopied);
      }
      start<kCopiedLast>(last_, reinterpret_cast<In*>(&box.pairs[kRestU][0]) + lane_ * kCopiedLast);
    } else {
      box.pairs[kDelta][lane_] = load_pair(a_.delta, t0 - kTile + token_);
      box.pairs[kU][lane_] = load_pair(a_.u, t0 - kTile + token_);
      box.pairs[kRestDy][lane_] = load_pair(a_.dy, t0 - kPart + token_);
      box.pairs[kRestZ][lane_] = gated() ? load_pair(a_.z, t0 - kPart + token_) : 0;
      box.pairs[kRestU][lane_] = load_pair(a_.u, t0 - kPart + token_);
      const InputRows& rows = lane_ < kN ? a_.B : a_.C;
      const int t = t0 - kTile + warp_;
      const char* const from = static_cast<const char*>(rows.data) + row(t) * rows.bytes;
      box.states[lane_] = exists(t) ? reinterpret_cast<const In*>(from)[lane_ % kN] : narrow<In>(0.0f);
    }
  }

  // What has been asked for is there, for all lanes.
  __device__ __forceinline__ void wait() const {
    wait_for_copies();
    __syncwarp();
  }

  // Where this lane's numbers of a part lie in shared memory, in bytes: it moves from part to part, so that nothing has
  // to be computed from the part's number.
  struct Cursor {
    uint32_t lane, pair, sum;  // in the part: of this lane, of its pair, of its sums over channels and its slope
    uint32_t states, next;     // its four states of B and C; where it puts one of the next tile

    __device__ __forceinline__ void step_back() {
      lane -= sizeof(typename P::Part), pair -= sizeof(typename P::Part);
      sum -= sizeof(typename P::Part), states -= kStatesBytes, next -= kStatesBytes;
      hide();
    }
    // From before the first part of a tile to the last one of the tile before, where B and C lie the other way round.
    __device__ __forceinline__ void turn(int tile) {
      constexpr uint32_t kAll = kParts * sizeof(typename P::Part), kBoth = 2 * kParts * kStatesBytes;
      lane += kAll, pair += kAll, sum += kAll;
      states += tile & 1 ? 0 : kBoth, next += tile & 1 ? kBoth : 0;
      hide();
    }
    // The compiler must not see that these numbers have to do with each other, or it computes them anew.
    __device__ __forceinline__ void hide() {
      asm("" : "+r"(lane), "+r"(pair), "+r"(sum), "+r"(states), "+r"(next));
    }
  };
  static constexpr uint32_t kStatesBytes = 2 * kPart * kN * 4;
  static constexpr uint32_t kStep = 2 * kWarp * 16, kSlope = kStep + kWarp * 16;

  // Where four of a part's sums over channels lie, `at` being 4 token + their lane j: no two lanes that store at once
  // want the same bank.
  static __device__ __forceinline__ uint32_t swizzled(uint32_t at) { return at ^ (at >> 2 & 2); }

  // At a tile's last part.
  __device__ __forceinline__ Cursor cursor(int tile) const {
    constexpr int part = kParts - 1;
    const auto offset = [&](const void* x) {
      return static_cast<uint32_t>(static_cast<const char*>(x) - reinterpret_cast<const char*>(&shared_));
    };
    const uint32_t at = offset(&shared_.part[warp_][part]), lane = lane_again();
    return {at + 16 * lane, at + lane % kPairs * 16, at + 8 * (2 * swizzled(lane % 4 * 4 + lane / 8) + lane / 4 % 2),
            offset(&shared_.states[tile & 1][part][0][0][lane / kPairs * kStates]),
            offset(&shared_.states[tile & 1 ^ 1][part][lane / kN][warp_][lane % kN])};
  }

  template <class X>
  __device__ __forceinline__ X& shared(uint32_t at) const {
    return *reinterpret_cast<X*>(reinterpret_cast<char*>(&shared_) + at);
  }
  __device__ __forceinline__ float2& two(uint32_t at) const { return shared<float2>(at); }
  __device__ __forceinline__ float4& four(uint32_t at) const { return shared<float4>(at); }

  // The step of the token and channels that this lane owns, and its slope.
  struct Step {
    float dt[2], dtu[2], slope[2], state;
  };

  // A token after the sequence's end, and one of the tile before the first, gets a step of 0, which leaves a state as
  // it is: softplus(-inf) is 0, and so is its slope.
  __device__ __forceinline__ Step step_asked_for(int tile, int part) const {
    const auto& box = shared_.box[warp_];
    const Word delta = box.pairs[kDelta][lane_], u = box.pairs[kU][lane_];
    const float4 constants = shared_.constants[warp_][p_];
    const bool exists = this->exists(tile * kTile + part * kPart + token_);
    Step step;
    step.state = widen(box.states[lane_]);
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

  __device__ __forceinline__ void place(const Cursor& at, const Step& step) const {
    four(at.lane + kStep) = {step.dt[0], step.dt[1], step.dtu[0], step.dtu[1]};
    two(at.sum + kSlope) = {step.slope[0], step.slope[1]};
    shared<float>(at.next) = step.state;
  }

  // One part of the tile before, all at once.
  __device__ __forceinline__ void ask_and_place(int tile, int part, const Cursor& at) {
    ask(tile * kTile + part * kPart);
    wait();
    const Step step = step_asked_for(tile - 1, part);
    take_rest();
    __syncwarp();
    place(at, step);
  }

  __device__ __forceinline__ void take_rest() {
    const auto& box = shared_.box[warp_];
    rest_u_ = box.pairs[kRestU][lane_];
    rest_dy_ = box.pairs[kRestDy][lane_];
    rest_z_ = box.pairs[kRestZ][lane_];
  }

  // This lane's four numbers of B (0) or C (1).
  __device__ __forceinline__ const Packed<float, kStates>& states_at(uint32_t at, int i, int matrix) const {
    return shared<Packed<float, kStates>>(at + (matrix * kPart + i) * kN * 4);
  }

  // --- Results ---

  __device__ __forceinline__ void store_pair(void* rows, uint64_t at, bool exists, float first, float second) const {
    const In x[2] = {narrow<In>(first), narrow<In>(second)};
    In* const to = reinterpret_cast<In*>(static_cast<char*>(rows) + at);
    if constexpr (kUsual) {
      store_if(exists, to, Words::of(x[0], x[1]));
    } else {
      if (exists) to[0] = x[0];
      if (exists && channel_ + 1 < a_.D) to[1] = x[1];
    }
  }

  // The block's part of the tile's dB and dC, warp after warp. A thread adds up four states of one token.
  __device__ void sum_warps(int tile) const {
    constexpr int kFours = kPart * kN / 4;  // of one matrix in one part
    static_assert(P::kThreads == kTile * kN / 4);
    const uint32_t thread = warp_ * kWarp + lane_again(), part = thread / kFours, at = swizzled(thread % kFours);
    if (!exists(tile * kTile + thread / (kN / 4))) return;
    float4* to = reinterpret_cast<float4*>(a_.states_parts + (block_ * a_.T + row(tile * kTile)) * kN) + thread;
#pragma unroll
    for (int matrix = 0; matrix < 2; ++matrix, to += a_.channel_blocks * a_.T * (kN / 4)) {
      float4 sum = shared_.part[0][part].state[0][matrix * kFours + at];
#pragma unroll
      for (int w = 1; w < P::kWarps; ++w) {
        const float4 x = shared_.part[w][part].state[0][matrix * kFours + at];
        sum = {__fadd_rn(sum.x, x.x), __fadd_rn(sum.y, x.y), __fadd_rn(sum.z, x.z), __fadd_rn(sum.w, x.w)};
      }
      *to = sum;
    }
  }

  // --- States: [D, N] in memory, four side by side in a thread ---

  __device__ __forceinline__ const float* checkpoint(int s, int tile) const {
    return a_.checkpoints + int64_t(start_ / kCheckpointTokens + s + tile) * (a_.D * kN);
  }

  // Of this lane's first channel. Computed whenever it is needed: one register more for the parts.
  __device__ __forceinline__ uint32_t state_at() const {
    return (channel_ * (kN / kStates) + lane_again() / kPairs) * kStates;
  }

  // Whether there is such a channel. In the usual case they are a multiple of a warp's.
  __device__ __forceinline__ bool has(int c) const { return channel_ + (kUsual ? 0 : c) < a_.D; }

  __device__ void load_states(const float* from, float (&to)[2][kStates]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float4 x = {};
      if (from != nullptr && has(c)) x = *reinterpret_cast<const float4*>(from + state_at() + c * kN);
      to[c][0] = x.x, to[c][1] = x.y, to[c][2] = x.z, to[c][3] = x.w;
    }
  }

  // Moves them into the L2 cache, so that loading them takes a third of the time.
  __device__ void fetch_states(const float* from) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (has(c)) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + state_at() + c * kN));
    }
  }

  __device__ void store_states(float* to, const float (&from)[2][kStates]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!has(c)) break;
      *reinterpret_cast<float4*>(to + state_at() + c * kN) = {from[c][0], from[c][1], from[c][2], from[c][3]};
    }
  }

  static_assert(P::kThreads >= kPart * kN);
  const BackwardArguments& a_;
  typename P::Shared& shared_;
  const int warp_, lane_;
  const int j_, p_;  // states and token, channels
  const int block_, group_, channel_;
  const uint32_t at_channel_;  // in bytes
  const uint32_t token_;       // of a part: this lane's, or none
  uint32_t start_ = 0;
  int length_ = 0;
  Word rest_u_, rest_dy_, rest_z_;  // of the part at hand
  Copy copies_[kCopies], last_;
};

}  // namespace mamba_lab::ssm
