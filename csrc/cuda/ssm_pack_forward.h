// The forward pass of the packed selective scan: what one warp does. The launch, the ladder of versions and the cost are
// in ssm_pack_forward.cu.
//
// A warp walks along one sequence with 32 channels (or 16), in tiles of 16 tokens. Four steps a tile:
//
//   load    ask for the u, delta, B and C of the next tile. They arrive while this tile is worked on.
//   stage   once for each token and channel: dt and dt u, into shared memory. B and C as float32 beside them.
//   scan    the recurrence, and y before skip and gate. States and rates stay in registers from the first token of the
//           sequence to its last.
//   finish  once for each token and channel: add D u, apply the gate, store y.
//
// The lanes are dealt out twice. In load, stage and finish a lane owns 8 neighbouring channels of a token: 16 bytes of
// bfloat16, one load. In the scan two lanes (or four) share two channels, and each has 8 (or 4) of the 16 states of
// both: registers enough for many independent chains, so that one hides the latency of the others.
//
// A warp shares nothing with another warp. No step waits for a block.

#pragma once

#include "ssm_pack.h"

namespace mamba_lab::ssm {

template <class In>
struct ForwardArguments {
  RowsOf<const In> u, delta, B, C, z;
  RowsOf<In> y;
  const float *A, *skip, *bias, *initial_state;
  float *final_state, *checkpoints;  // either may be nullptr: not asked for
  const int32_t *cu_seqlens, *order;
  int D, N;
  int channel_blocks;  // blocks that share out the channels of one sequence
  bool softplus;
};

// How the work is dealt out. No plan changes a bit of the results: sums over states are always made of the same four
// sums of four states.
template <int kLanesOfChannel, int kTokensUnrolled, int kBlocksOfProcessor>
struct Plan {
  static constexpr int kTile = 16;                     // tokens of a tile
  static constexpr int kN = 16;                        // states of a channel
  static constexpr int kWarps = 4;                     // warps of a block
  static constexpr int kBlocks = kBlocksOfProcessor;   // blocks that must fit on a multiprocessor: bounds the registers
  static constexpr int kUnroll = kTokensUnrolled;      // tokens in one round of the scan's loop
  static constexpr int kStateLanes = kLanesOfChannel;  // lanes that share two channels in the scan: 2 or 4
  static constexpr int kStates = kN / kStateLanes;     // states of a lane in the scan: 8 or 4
  static constexpr int kChannels = 2 * kWarp / kStateLanes;  // channels of a warp: 32 or 16
  static constexpr int kOwned = 8;                           // channels of a lane in load, stage and finish
  static constexpr int kRows = kWarp * kOwned / kChannels;   // tokens that the lanes own at the same time: 8 or 16
  static constexpr int kTurns = kTile / kRows;               // how often they do so in a tile: 2 or 1

  // A row is longer than what it holds, and 16 channels of dt fill half a row of banks: so that lanes which read or
  // write at the same time meet different banks.
  static constexpr int kStepRow = kChannels + 2 * (kChannels / 16);
  static constexpr int kYRow = kChannels + 4;
  static __device__ int step_at(int channel) { return channel + 2 * (channel / 16); }

  struct Shared {
    alignas(16) float2 step[kTile][kStepRow];  // dt, dt u
    alignas(16) float B[kTile][kN];
    alignas(16) float C[kTile][kN];
    alignas(16) float y[kTile][kYRow];  // C h
  };
};

template <class In, class P>
class ForwardWarp {
 public:
  using Owned = Channels<In, P::kOwned>;
  using HalfRow = Channels<In, P::kN / 2>;  // of B or C

  __device__ ForwardWarp(const ForwardArguments<In>& args, typename P::Shared& shared, int s, int channel)
      : a_(args),
        shared_(shared),
        lane_(threadIdx.x % kWarp),
        j_(lane_ % P::kStateLanes),
        pair_(lane_ / P::kStateLanes * 2),
        row_(lane_ / (P::kChannels / P::kOwned)),
        column_(lane_ % (P::kChannels / P::kOwned) * P::kOwned),
        s_(s),
        length_(args.cu_seqlens[s + 1] - args.cu_seqlens[s]),
        channel_(channel) {
    const int64_t start = args.cu_seqlens[s];
    u_from_ = args.u.at(start + row_, channel_ + column_);
    delta_from_ = args.delta.at(start + row_, channel_ + column_);
    z_from_ = args.z.at(start + row_, channel_ + column_);
    y_to_ = args.y.at(start + row_, channel_ + column_);
    B_from_ = args.B.at(start + lane_ / 2, lane_ % 2 * P::kN / 2);
    C_from_ = args.C.at(start + lane_ / 2, lane_ % 2 * P::kN / 2);
  }

  __device__ void run() {
    const int64_t states = int64_t(a_.D) * P::kN, at = s_ * states + channel_ * P::kN;
    float* slot = nullptr;
    if (a_.checkpoints != nullptr) {
      slot = a_.checkpoints + first_slot(a_.cu_seqlens, s_) * states + channel_ * P::kN;
    }
    load_states(a_.initial_state == nullptr ? nullptr : a_.initial_state + at);
    load(length_);
    for (int left = length_; left > 0; left -= P::kTile) {
      stage(left);
      load(left - P::kTile);
      if (slot != nullptr && (length_ - left) % kCheckpointTokens == 0) {
        store_states(slot);
        slot += states;
      }
      __syncwarp();
      scan(min(left, P::kTile));
      __syncwarp();
      finish(left);
    }
    if (a_.final_state != nullptr) store_states(a_.final_state + at);
  }

 private:
  // --- load -----------------------------------------------------------------------------------------------------------

  // `left` tokens are left when the next tile starts. A token after the last one gets a step of 0 and B = 0, which leave
  // a state as it is: softplus(-inf) is 0.
  __device__ void load(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      if (row_ + i * P::kRows < left) {
        next_u_[i] = *reinterpret_cast<const Owned*>(u_from_);
        next_delta_[i] = *reinterpret_cast<const Owned*>(delta_from_);
      } else {
        next_u_[i].fill(0.0f);
        next_delta_[i].fill(a_.softplus ? -INFINITY : 0.0f);
      }
      u_from_ += P::kRows * a_.u.stride;
      delta_from_ += P::kRows * a_.delta.stride;
    }
    if (lane_ / 2 < left) {
      next_B_ = *reinterpret_cast<const HalfRow*>(B_from_);
      next_C_ = *reinterpret_cast<const HalfRow*>(C_from_);
    } else {
      next_B_.fill(0.0f);
      next_C_.fill(0.0f);
    }
    B_from_ += P::kTile * a_.B.stride;
    C_from_ += P::kTile * a_.C.stride;
  }

  // --- stage ----------------------------------------------------------------------------------------------------------

  __device__ void stage(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      u_[i] = next_u_[i];
      if (a_.softplus) {
        stage_steps<true>(i, left);
      } else {
        stage_steps<false>(i, left);
      }
      if (a_.z && row_ + i * P::kRows < left) z_[i] = *reinterpret_cast<const Owned*>(z_from_);
      z_from_ += P::kRows * a_.z.stride;
    }
    store_row(next_B_, shared_.B[lane_ / 2]);
    store_row(next_C_, shared_.C[lane_ / 2]);
  }

  template <bool kSoftplus>
  __device__ void stage_steps(int i, int left) {
    const int row = row_ + i * P::kRows;
#pragma unroll
    for (int c = 0; c < P::kOwned; c += 2) {
      Packed<float2, 2> step;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float dt = step_size<kSoftplus>(next_delta_[i].get(c + k), bias_[c + k]);
        if (!kSoftplus && row >= left) dt = 0.0f;
        step.value[k] = {dt, __fmul_rn(dt, u_[i].get(c + k))};
      }
      store_packed<float2, 2>(&shared_.step[row][P::step_at(column_) + c], step);
    }
  }

  __device__ void store_row(const HalfRow& from, float* to) {
#pragma unroll
    for (int n = 0; n < P::kN / 2; n += 4) {
      store_packed<float, 4>(to + lane_ % 2 * P::kN / 2 + n,
                             {{from.get(n), from.get(n + 1), from.get(n + 2), from.get(n + 3)}});
    }
  }

  // --- scan -----------------------------------------------------------------------------------------------------------

  // y waits in registers until a round is done. A store to shared memory in between would hold back every load after it:
  // the compiler cannot know that they lie apart.
  __device__ void scan(int count) {
    constexpr int kEach = P::kStateLanes / 2;  // tokens that leave one y a lane
#pragma unroll 1
    for (int first = 0; first < count; first += P::kUnroll) {
      float y[P::kUnroll / kEach];
#pragma unroll
      for (int i = 0; i < P::kUnroll / kEach; ++i) y[i] = own_y(first + i * kEach);
#pragma unroll
      for (int i = 0; i < P::kUnroll / kEach; ++i) shared_.y[first + i * kEach + j_ / 2][pair_ + j_ % 2] = y[i];
    }
  }

  // Of the y that a group of lanes makes, each lane ends with one, so that none is added up twice. Two lanes: the two
  // channels of token t. Four lanes: those of tokens t and t + 1.
  __device__ __forceinline__ float own_y(int t) {
    if constexpr (P::kStateLanes == 2) return own_channel(t);
    const float first = own_channel(t), second = own_channel(t + 1);
    const bool is_second = j_ / 2 != 0;
    return __fadd_rn(is_second ? second : first, __shfl_xor_sync(kAllLanes, is_second ? first : second, 2));
  }

  // One token of two channels. k = 0 is this lane's own, k = 1 its neighbour's; the neighbour sees them the other way
  // round. So each sends what the other needs, and one exchange is enough for both sums.
  __device__ __forceinline__ float own_channel(int t) {
    float B[P::kStates], C[P::kStates];
    load_state_row(shared_.B[t], B);
    load_state_row(shared_.C[t], C);
    float sum[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float2 step = shared_.step[t][P::step_at(pair_ + (j_ % 2 ^ k))];
      float of_four[P::kStates / 4];
#pragma unroll
      for (int n = 0; n < P::kStates; ++n) {
        const float decay = exp2_fast(__fmul_rn(step.x, rate_[k][n]));
        h_[k][n] = __fmaf_rn(decay, h_[k][n], __fmul_rn(step.y, B[n]));
        of_four[n / 4] = n % 4 == 0 ? __fmul_rn(h_[k][n], C[n]) : __fmaf_rn(h_[k][n], C[n], of_four[n / 4]);
      }
      sum[k] = P::kStates == 4 ? of_four[0] : __fadd_rn(of_four[0], of_four[P::kStates / 4 - 1]);
    }
    return __fadd_rn(sum[0], __shfl_xor_sync(kAllLanes, sum[1], 1));
  }

  // The states of this lane.
  __device__ __forceinline__ void load_state_row(const float* row, float* to) const {
#pragma unroll
    for (int n = 0; n < P::kStates; n += 4) {
      const auto four = load_packed<float, 4>(row + P::kStates * j_ + n);
#pragma unroll
      for (int k = 0; k < 4; ++k) to[n + k] = four.value[k];
    }
  }

  // --- finish ---------------------------------------------------------------------------------------------------------

  __device__ void finish(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      if (row_ + i * P::kRows < left) {
        *reinterpret_cast<Owned*>(y_to_) = a_.z ? finished<true>(i) : finished<false>(i);
      }
      y_to_ += P::kRows * a_.y.stride;
    }
  }

  template <bool kGate>
  __device__ Owned finished(int i) const {
    Owned y;
#pragma unroll
    for (int c = 0; c < P::kOwned; c += 4) {
      auto v = load_packed<float, 4>(&shared_.y[row_ + i * P::kRows][column_ + c]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v.value[k] = __fmaf_rn(skip_[c + k], u_[i].get(c + k), v.value[k]);
        if (kGate) {
          const float z = z_[i].get(c + k);
          v.value[k] = __fmul_rn(v.value[k], __fmul_rn(z, sigmoid(z)));
        }
      }
      y.set_two(c, v.value[0], v.value[1]);
      y.set_two(c + 2, v.value[2], v.value[3]);
    }
    return y;
  }

  // --- What stays in registers ----------------------------------------------------------------------------------------

  // Where this lane's states of channel k lie in a [channels, N] matrix of this warp's channels.
  __device__ int state_at(int k) const { return (pair_ + (j_ % 2 ^ k)) * P::kN + P::kStates * j_; }

  __device__ void load_states(const float* initial) {
    const float* const A = a_.A + int64_t(channel_) * P::kN;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int n = 0; n < P::kStates; ++n) {
        rate_[k][n] = decay_rate(A[state_at(k) + n]);
        h_[k][n] = initial == nullptr ? 0.0f : initial[state_at(k) + n];
      }
    }
#pragma unroll
    for (int c = 0; c < P::kOwned; ++c) {
      bias_[c] = a_.bias == nullptr ? 0.0f : a_.bias[channel_ + column_ + c];
      skip_[c] = a_.skip == nullptr ? 0.0f : a_.skip[channel_ + column_ + c];
    }
  }

  __device__ void store_states(float* to) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int n = 0; n < P::kStates; n += 4) {
        store_packed<float, 4>(to + state_at(k) + n, {{h_[k][n], h_[k][n + 1], h_[k][n + 2], h_[k][n + 3]}});
      }
    }
  }

  const ForwardArguments<In>& a_;
  typename P::Shared& shared_;
  const int lane_, j_, pair_;    // in the scan: states kStates j and on, channels `pair` and the next one
  const int row_, column_;       // otherwise: tokens row, row + kRows, ... of a tile, channels `column` and 7 more
  const int s_, length_, channel_;
  const In *u_from_, *delta_from_, *z_from_, *B_from_, *C_from_;
  In* y_to_;
  float h_[2][P::kStates], rate_[2][P::kStates];
  float bias_[P::kOwned], skip_[P::kOwned];
  Owned u_[P::kTurns], z_[P::kTurns], next_u_[P::kTurns], next_delta_[P::kTurns];
  HalfRow next_B_, next_C_;
};

// Block b takes the sequence order[b / channel_blocks], the longest first: short ones fill the gaps at the end.
template <class In, class P>
__global__ void __launch_bounds__(P::kWarps * kWarp, P::kBlocks)
    scan_forward(const __grid_constant__ ForwardArguments<In> args) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int warp = threadIdx.x / kWarp;
  const int channel = (blockIdx.x % args.channel_blocks * P::kWarps + warp) * P::kChannels;
  if (channel >= args.D) return;  // nobody waits for this warp
  auto& shared = reinterpret_cast<typename P::Shared*>(memory)[warp];
  ForwardWarp<In, P>(args, shared, args.order[blockIdx.x / args.channel_blocks], channel).run();
}

}  // namespace mamba_lab::ssm
