// The scanner of a team: the recurrence of 8 channels (or 16).
//
//   h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t      and C_t h_t
//
// Four lanes (or two) share a channel; each has 4 (or 8) of its 16 states, in registers from the sequence's first token
// to its last. Lanes next to each other have different channels and the same states, so that they read the same four
// numbers of B and of C: such a load takes 2 cycles of shared memory, and 4 where neighbours read different ones.

#pragma once

#include "ssm_pack_forward_tile.h"

namespace mamba_lab::ssm {

template <class In, class P>
class Scanner {
 public:
  static constexpr int kStates = P::kStates;

  __device__ Scanner(const ForwardArguments<In>& args, TeamTile<P>* tiles, int scanner, int s, int channel)
      : a_(args),
        tiles_(tiles),
        j_(threadIdx.x % kWarp / P::kOfScanner),
        channel_(scanner * P::kOfScanner + threadIdx.x % P::kOfScanner),
        s_(s),
        length_(args.cu_seqlens[s + 1] - args.cu_seqlens[s]),
        states_(int64_t(args.D) * P::kN),
        at_(int64_t(channel + channel_) * P::kN + kStates * j_) {}

  __device__ void run() {
    load_states();
    float* slot = nullptr;
    if (a_.checkpoints != nullptr) slot = a_.checkpoints + first_slot(a_.cu_seqlens, s_) * states_ + at_;
    for (int t = 0; t < length_; t += P::kTile) {
      if (slot != nullptr && t % kCheckpointTokens == 0) {
        store_states(slot);
        slot += states_;
      }
      meet();  // the tile is staged
      scan(min(length_ - t, P::kTile), tiles_[t / P::kTile % 2]);
    }
    meet();
    if (a_.final_state != nullptr) store_states(a_.final_state + s_ * states_ + at_);
  }

 private:
  // This lane's part of a row of B or C.
  struct Row {
    float value[kStates];
  };

  static __device__ __forceinline__ Row row(const float* from) {
    Row x;
#pragma unroll
    for (int n = 0; n < kStates; n += 4) {
      const auto four = load_packed<float, 4>(from + n);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.value[n + i] = four.value[i];
    }
    return x;
  }

  // Through the first `count` tokens of a tile, or a few more: those have a step of 0.
  //
  // Everything comes one token ahead, or two: while a token's decays are used, those of the next one are computed. C h
  // waits in registers until a round is done: a store to shared memory in between would hold back every load after it,
  // because the compiler cannot know that they lie apart.
  __device__ void scan(int count, TeamTile<P>& tile) {
    constexpr int kStepRow = TeamTile<P>::kStepRow, kSumRow = TeamTile<P>::kSumRow;
    const float4* const steps = &tile.step[0][TeamTile<P>::step_at(channel_)];
    const float* const B = &tile.B[0][kStates * j_];
    const float* const C = &tile.C[0][kStates * j_];
    float* const sums = &tile.sums[0][TeamTile<P>::sum_at(j_, channel_)];
    float4 step = steps[0], next_step = steps[kStepRow], later_step = next_step;
    float decay[kStates], next_decay[kStates] = {};
    decays(step.x, decay);
    Row B_here, C_here, B_next = row(B), C_next = row(C);
#pragma unroll 1
    for (int first = 0; first < count; first += P::kUnroll) {
      float sum[P::kUnroll];
#pragma unroll
      for (int i = 0; i < P::kUnroll; ++i) {
        const int t = first + i;
        B_here = B_next, C_here = C_next;
        if (P::kUnroll < P::kTile || i + 1 < P::kTile) {  // there is a next token
          decays(i % 2 == 0 ? step.z : next_step.x, next_decay);
          B_next = row(B + (t + 1) % P::kTile * P::kN);
          C_next = row(C + (t + 1) % P::kTile * P::kN);
        }
        if (i % 2 == 0) later_step = steps[(t / 2 + 2) % (P::kTile / 2) * kStepRow];
        sum[i] = token(decay, i % 2 == 0 ? step.y : step.w, B_here, C_here);
        if (i % 2 == 1) step = next_step, next_step = later_step;
#pragma unroll
        for (int n = 0; n < kStates; ++n) decay[n] = next_decay[n];
      }
#pragma unroll
      for (int i = 0; i < P::kUnroll; ++i) sums[(first + i) * kSumRow] = sum[i];
    }
  }

  __device__ __forceinline__ void decays(float dt, float (&to)[kStates]) const {
#pragma unroll
    for (int n = 0; n < kStates; ++n) to[n] = exp2_fast(__fmul_rn(dt, rate_[n]));
  }

  __device__ __forceinline__ float token(const float (&decay)[kStates], float dtu, const Row& B, const Row& C) {
    float of_four[kStates / 4];
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      h_[n] = __fmaf_rn(decay[n], h_[n], __fmul_rn(dtu, B.value[n]));
      of_four[n / 4] = n % 4 == 0 ? __fmul_rn(h_[n], C.value[n]) : __fmaf_rn(h_[n], C.value[n], of_four[n / 4]);
    }
    return kStates == 4 ? of_four[0] : __fadd_rn(of_four[0], of_four[kStates / 4 - 1]);
  }

  __device__ void load_states() {
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      rate_[n] = decay_rate(a_.A[at_ + n]);
      h_[n] = a_.initial_state == nullptr ? 0.0f : a_.initial_state[s_ * states_ + at_ + n];
    }
  }

  __device__ void store_states(float* to) const {
#pragma unroll
    for (int n = 0; n < kStates; n += 4) {
      store_packed<float, 4>(to + n, {{h_[n], h_[n + 1], h_[n + 2], h_[n + 3]}});
    }
  }

  const ForwardArguments<In>& a_;
  TeamTile<P>* const tiles_;
  const int j_, channel_;  // states kStates j and on of one channel, counted from the team's first
  const int s_, length_;
  const int64_t states_, at_;  // numbers of a [D, N] matrix, and where in it this lane's states are
  float h_[kStates], rate_[kStates];
};

}  // namespace mamba_lab::ssm
