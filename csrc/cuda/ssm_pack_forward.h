// The forward pass of the packed selective scan: what one warp does. The launch, the ladder of versions and the cost are
// in ssm_pack_forward.cu.

#pragma once

#include "ssm_pack.h"

namespace mamba_lab::ssm {

template <int kLanesOfChannel, int kTokensUnrolled, int kWarpsOfBlock, int kBlocksOfProcessor>
struct Plan {
  static constexpr int kTile = 16;                     // tokens of a tile
  static constexpr int kPiece = 16;                    // states at a time
  static constexpr int kPer = 2;                       // channels of a thread in the scan
  static constexpr int kStateLanes = kLanesOfChannel;  // lanes that share a channel in the scan: 2 or 4
  static constexpr int kUnroll = kTokensUnrolled;      // tokens in one round of the scan's loop
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kBlocks = kBlocksOfProcessor;   // blocks that must fit on a multiprocessor: bounds the registers
  static constexpr int kStates = kPiece / kStateLanes;             // states of a thread in the scan
  static constexpr int kChannels = kPer * (kWarp / kStateLanes);   // channels of a warp: 32 or 16
  static constexpr int kOwned = 8;                                 // channels that a lane loads, stages and finishes
  static constexpr int kLanesOfRow = kChannels / kOwned;
  static constexpr int kRows = kWarp / kLanesOfRow;                // tokens that the lanes own at a time
  static constexpr int kTurns = kTile / kRows;

  // Rows and half rows are padded so that lanes which read or write at the same time meet different banks.
  static constexpr int kStepRow = kChannels == 32 ? 36 : 18;
  static constexpr int kYRow = kChannels + 4;
  static __device__ int step_at(int channel) { return kChannels == 32 ? channel + channel / 16 * 2 : channel; }

  struct Shared {
    alignas(16) float2 step[kTile][kStepRow];  // dt, dt u
    alignas(16) float B[kTile][kPiece];
    alignas(16) float C[kTile][kPiece];
    alignas(16) float y[kTile][kYRow];
  };
};

template <class In>
struct ForwardArguments {
  RowsOf<const In> u, delta, B, C, z;
  RowsOf<In> y;
  const float *A, *skip, *bias, *initial_state;
  float *final_state, *checkpoints;
  const int32_t *cu_seqlens, *order;
  int D, N, channel_blocks;
  bool softplus;
};

// kFast: N is 16, D a multiple of a warp's channels, and rows can be read 16 bytes at a time. Otherwise: any N, in
// pieces of 16 states, and memory one element at a time.
template <class In, class P, bool kFast>
class ForwardWarp {
 public:
  using Owned = Channels<In, P::kOwned>;
  using HalfRow = Channels<In, P::kPiece / 2>;

  __device__ ForwardWarp(const ForwardArguments<In>& args, typename P::Shared& shared, float* parked, int s, int channel)
      : a_(args),
        shared_(shared),
        parked_(parked),
        lane_(threadIdx.x % kWarp),
        j_(lane_ % P::kStateLanes),
        pair_(lane_ / P::kStateLanes * 2),
        row_(lane_ / P::kLanesOfRow),
        s_(s),
        length_(args.cu_seqlens[s + 1] - args.cu_seqlens[s]),
        channel_(channel),
        own_(channel + lane_ % P::kLanesOfRow * P::kOwned) {
    const int64_t start = args.cu_seqlens[s];
    u_from_ = args.u.at(start + row_, own_);
    delta_from_ = args.delta.at(start + row_, own_);
    z_from_ = args.z.at(start + row_, own_);
    y_to_ = args.y.at(start + row_, own_);
    B_from_ = args.B.at(start + lane_ / 2, lane_ % 2 * P::kPiece / 2);
    C_from_ = args.C.at(start + lane_ / 2, lane_ % 2 * P::kPiece / 2);
  }

  __device__ void run() {
    const int pieces = kFast ? 1 : (a_.N + P::kPiece - 1) / P::kPiece;
    const int64_t states = int64_t(a_.D) * a_.N, first = int64_t(channel_) * a_.N;
    const float* const initial = a_.initial_state == nullptr ? nullptr : a_.initial_state + s_ * states + first;
    float* slot = nullptr;
    if (a_.checkpoints != nullptr) slot = a_.checkpoints + first_slot(a_.cu_seqlens, s_) * states + first;
    for (int p = 0; p < pieces; ++p) {
      load_rates(p);
      load_states(initial, p);
      park(p, pieces);
    }
    load_constants();
    load(length_);
    for (int left = length_; left > 0; left -= P::kTile) {
      stage(left);
      for (int p = 0; p < pieces; ++p) {
        stage_states(left, p);
        if (p == 0) load(left - P::kTile);
        unpark(p, pieces);
        if (slot != nullptr && (length_ - left) % kCheckpointTokens == 0) store_states(slot, p);
        __syncwarp();
        scan(min(left, P::kTile), p);
        __syncwarp();
        park(p, pieces);
      }
      finish(left);
      if (slot != nullptr && (length_ - left) % kCheckpointTokens == 0) slot += states;
    }
    if (a_.final_state == nullptr) return;
    for (int p = 0; p < pieces; ++p) {
      unpark(p, pieces);
      store_states(a_.final_state + s_ * states + first, p);
    }
  }

 private:
  // --- Once for each token and channel ---

  __device__ void load_constants() {
    for (int c = 0; c < P::kOwned; ++c) {
      const bool exists = kFast || own_ + c < a_.D;
      bias_[c] = a_.bias != nullptr && exists ? a_.bias[own_ + c] : 0.0f;
      skip_[c] = a_.skip != nullptr && exists ? a_.skip[own_ + c] : 0.0f;
    }
  }

  __device__ void load_owned(const In* from, Owned& to) const {
    if constexpr (kFast) {
      to = *reinterpret_cast<const Owned*>(from);
    } else {
      to.load_some(from, a_.D - own_);
    }
  }

  // What the next tile needs, whose first token has `left - 1` after it. A token after the sequence's end gets a step of
  // 0, which leaves a state as it is: softplus(-inf) is 0.
  __device__ void load(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      if (row_ + i * P::kRows < left) {
        load_owned(u_from_, next_u_[i]);
        load_owned(delta_from_, next_delta_[i]);
      } else {
        next_u_[i].fill(0.0f);
        next_delta_[i].fill(a_.softplus ? -INFINITY : 0.0f);
      }
      u_from_ += P::kRows * a_.u.stride;
      delta_from_ += P::kRows * a_.delta.stride;
    }
    if constexpr (kFast) {
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
  }

  __device__ void stage(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) u_[i] = next_u_[i];
    if (a_.softplus) {
      stage_steps<true>(left);
    } else {
      stage_steps<false>(left);
    }
    if (!a_.z) return;
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      if (row_ + i * P::kRows < left) load_owned(z_from_, z_[i]);
      z_from_ += P::kRows * a_.z.stride;
    }
  }

  template <bool kSoftplus>
  __device__ void stage_steps(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      const int row = row_ + i * P::kRows;
      float2* const to = &shared_.step[row][P::step_at(own_ - channel_)];
#pragma unroll
      for (int c = 0; c < P::kOwned; c += 2) {
        Packed<float2, 2> step;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float dt = step_size<kSoftplus>(next_delta_[i].get(c + k), bias_[c + k]);
          if (!kSoftplus && row >= left) dt = 0.0f;
          step.value[k] = {dt, __fmul_rn(dt, u_[i].get(c + k))};
        }
        store_packed<float2, 2>(to + c, step);
      }
    }
  }

  __device__ void finish(int left) {
#pragma unroll
    for (int i = 0; i < P::kTurns; ++i) {
      if (row_ + i * P::kRows < left) {
        if (a_.z) {
          finish_row<true>(i);
        } else {
          finish_row<false>(i);
        }
      }
      y_to_ += P::kRows * a_.y.stride;
    }
  }

  template <bool kGate>
  __device__ void finish_row(int i) const {
    Owned y;
#pragma unroll
    for (int c = 0; c < P::kOwned; c += 4) {
      const auto sum = load_packed<float, 4>(&shared_.y[row_ + i * P::kRows][own_ - channel_ + c]);
      float v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v[k] = __fmaf_rn(skip_[c + k], u_[i].get(c + k), sum.value[k]);
        if (kGate) {
          const float z = z_[i].get(c + k);
          v[k] = __fmul_rn(v[k], __fmul_rn(z, sigmoid(z)));
        }
      }
      y.set_two(c, v[0], v[1]);
      y.set_two(c + 2, v[2], v[3]);
    }
    if constexpr (kFast) {
      *reinterpret_cast<Owned*>(y_to_) = y;
    } else {
      y.store_some(y_to_, a_.D - own_);
    }
  }

  // B and C as float32, states 16 piece to 16 piece + 15.
  __device__ void stage_states(int left, int piece) {
    if constexpr (!kFast) {
      const int first = piece * P::kPiece, exist = a_.N - first - lane_ % 2 * P::kPiece / 2;
      next_B_.fill(0.0f);
      next_C_.fill(0.0f);
      if (lane_ / 2 < left) {
        next_B_.load_some(B_from_ + (length_ - left) * a_.B.stride + first, exist);
        next_C_.load_some(C_from_ + (length_ - left) * a_.C.stride + first, exist);
      }
    }
#pragma unroll
    for (int n = 0; n < P::kPiece / 2; n += 4) {
      const int at = lane_ % 2 * P::kPiece / 2 + n;
      store_packed<float, 4>(&shared_.B[lane_ / 2][at],
                             {{next_B_.get(n), next_B_.get(n + 1), next_B_.get(n + 2), next_B_.get(n + 3)}});
      store_packed<float, 4>(&shared_.C[lane_ / 2][at],
                             {{next_C_.get(n), next_C_.get(n + 1), next_C_.get(n + 2), next_C_.get(n + 3)}});
    }
  }

  // --- The recurrence ---

  __device__ void scan(int count, int piece) {
#pragma unroll 1
    for (int first = 0; first < count; first += P::kUnroll) {
#pragma unroll
      for (int i = 0; i < P::kUnroll; i += P::kStateLanes / 2) tokens(first + i, piece);
    }
  }

  // kStateLanes / 2 tokens, so that each lane ends up with the y of one token and channel.
  __device__ __forceinline__ void tokens(int t, int piece) {
    float y;
    if constexpr (P::kStateLanes == 2) {
      y = own_sum(t);
    } else {
      const float first = own_sum(t), second = own_sum(t + 1);
      const bool is_second = j_ / 2 != 0;
      y = __fadd_rn(is_second ? second : first, __shfl_xor_sync(kAllLanes, is_second ? first : second, 2));
      t += j_ / 2;
    }
    float& to = shared_.y[t][pair_ + j_ % 2];
    to = !kFast && piece > 0 ? __fadd_rn(to, y) : y;
  }

  // One token of this thread's two channels. Each has its sum over this thread's states; what comes back is the sum of
  // this lane's and its neighbour's states, for the channel that is this lane's own.
  __device__ __forceinline__ float own_sum(int t) {
    float B[P::kStates], C[P::kStates];
#pragma unroll
    for (int n = 0; n < P::kStates; n += 4) {
      const auto b = load_packed<float, 4>(&shared_.B[t][P::kStates * j_ + n]);
      const auto c = load_packed<float, 4>(&shared_.C[t][P::kStates * j_ + n]);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        B[n + m] = b.value[m];
        C[n + m] = c.value[m];
      }
    }
    float sum[P::kPer];
#pragma unroll
    for (int k = 0; k < P::kPer; ++k) {
      const float2 step = shared_.step[t][P::step_at(pair_ + (j_ % 2 ^ k))];
      float of_four[P::kStates / 4];
#pragma unroll
      for (int n = 0; n < P::kStates; ++n) {
        const float decay = exp2_fast(__fmul_rn(step.x, rate_[k][n]));
        h_[k][n] = __fmaf_rn(decay, h_[k][n], __fmul_rn(step.y, B[n]));
        of_four[n / 4] = n % 4 == 0 ? __fmul_rn(h_[k][n], C[n]) : __fmaf_rn(h_[k][n], C[n], of_four[n / 4]);
      }
      sum[k] = P::kStates == 8 ? __fadd_rn(of_four[0], of_four[P::kStates / 4 - 1]) : of_four[0];
    }
    return __fadd_rn(sum[0], __shfl_xor_sync(kAllLanes, sum[1], 1));
  }

  // --- States: [D, N] in memory ---

  // `f(k, i, at, exists)` for state i of channel k of this thread; `at` counts from the warp's first channel.
  template <class F>
  __device__ __forceinline__ void each_state(int piece, const F& f) {
#pragma unroll
    for (int k = 0; k < P::kPer; ++k) {
#pragma unroll
      for (int i = 0; i < P::kStates; ++i) {
        const int d = pair_ + (j_ % 2 ^ k), n = piece * P::kPiece + P::kStates * j_ + i;
        f(k, i, d * (kFast ? P::kPiece : a_.N) + n, kFast || (channel_ + d < a_.D && n < a_.N));
      }
    }
  }

  __device__ void load_rates(int piece) {
    const float* const from = a_.A + int64_t(channel_) * a_.N;
    each_state(piece, [&](int k, int i, int at, bool exists) { rate_[k][i] = exists ? decay_rate(from[at]) : 0.0f; });
  }

  __device__ void load_states(const float* from, int piece) {
    each_state(piece, [&](int k, int i, int at, bool exists) {
      h_[k][i] = from != nullptr && exists ? from[at] : 0.0f;
    });
  }

  __device__ void store_states(float* to, int piece) {
    if constexpr (kFast) {
#pragma unroll
      for (int k = 0; k < P::kPer; ++k) {
        float* const p = to + (pair_ + (j_ % 2 ^ k)) * P::kPiece + P::kStates * j_;
#pragma unroll
        for (int n = 0; n < P::kStates; n += 4) {
          store_packed<float, 4>(p + n, {{h_[k][n], h_[k][n + 1], h_[k][n + 2], h_[k][n + 3]}});
        }
      }
    } else {
      each_state(piece, [&](int k, int i, int at, bool exists) {
        if (exists) to[at] = h_[k][i];
      });
    }
  }

  // With more than one piece of states, the others wait in shared memory; a thread reads only what it wrote.
  __device__ void park(int piece, int pieces) {
    if (kFast || pieces == 1) return;
    float* const to = parked_ + piece * (P::kPer * P::kStates * kWarp) + lane_;
#pragma unroll
    for (int k = 0; k < P::kPer * P::kStates; ++k) to[k * kWarp] = h_[k / P::kStates][k % P::kStates];
  }

  __device__ void unpark(int piece, int pieces) {
    if (kFast || pieces == 1) return;
    load_rates(piece);
    const float* const from = parked_ + piece * (P::kPer * P::kStates * kWarp) + lane_;
#pragma unroll
    for (int k = 0; k < P::kPer * P::kStates; ++k) h_[k / P::kStates][k % P::kStates] = from[k * kWarp];
  }

  const ForwardArguments<In>& a_;
  typename P::Shared& shared_;
  float* const parked_;
  const int lane_, j_, pair_;    // j, pair: states and channels in the scan
  const int row_;                // the first token of a tile that this lane owns
  const int s_, length_, channel_, own_;
  const In *u_from_, *delta_from_, *z_from_, *B_from_, *C_from_;
  In* y_to_;
  float h_[P::kPer][P::kStates], rate_[P::kPer][P::kStates];
  float bias_[P::kOwned], skip_[P::kOwned];
  Owned u_[P::kTurns], z_[P::kTurns], next_u_[P::kTurns], next_delta_[P::kTurns];
  HalfRow next_B_, next_C_;
};

// One warp's walk: which sequence, which channels.
template <class In, class P, bool kFast>
__device__ __forceinline__ void walk(const ForwardArguments<In>& args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* const shared = reinterpret_cast<typename P::Shared*>(memory);
  const int warp = threadIdx.x / kWarp;
  const int channel = (blockIdx.x % args.channel_blocks * P::kWarps + warp) * P::kChannels;
  if (channel >= args.D) return;  // nobody waits for this warp
  const int pieces = (args.N + P::kPiece - 1) / P::kPiece;
  float* const parked =
      reinterpret_cast<float*>(shared + P::kWarps) + warp * pieces * (P::kPer * P::kStates * kWarp);
  ForwardWarp<In, P, kFast>(args, shared[warp], parked, args.order[blockIdx.x / args.channel_blocks], channel).run();
}

template <class In, class P>
__global__ void __launch_bounds__(P::kWarps * kWarp, P::kBlocks)
    scan_forward(const __grid_constant__ ForwardArguments<In> args) {
  walk<In, P, true>(args);
}

template <class In, class P>
__global__ void __launch_bounds__(P::kWarps * kWarp, P::kBlocks)
    generic_scan_forward(const __grid_constant__ ForwardArguments<In> args) {
  walk<In, P, false>(args);
}

}  // namespace mamba_lab::ssm
