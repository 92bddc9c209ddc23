// The forward pass of the packed selective scan: what one warp does. The launch, the ladder of versions and the cost are
// in ssm_pack_forward.cu.
//
// A warp walks along one sequence with 16 channels, in tiles of 16 tokens, four steps a tile:
//   load    asks for the next tile's u, delta, B and C, so that they arrive while this tile is worked on
//   stage   once for each token and channel: dt and dt u, into shared memory; B and C as float32 beside them
//   scan    the recurrence. Lane 4 g + j holds states 4 j to 4 j + 3 of channels 2 g and 2 g + 1 in registers, and
//           leaves its share of C h in shared memory
//   finish  once for each token and channel: the four shares are added, D u too, the gate is applied, y is stored
// In load, stage and finish lanes t and t + 16 own token t of the tile: half of its channels and half of its B and C each.
// A warp shares nothing with another warp, so there is no barrier for the block.

#pragma once

#include "ssm_pack.h"

namespace mamba_lab::ssm {

template <int kPerThread, int kTokensUnrolled, int kWarpsOfBlock, int kBlocksOfProcessor>
struct Plan {
  static constexpr int kTile = 16;                   // tokens of a tile: two lanes a token
  static constexpr int kPer = kPerThread;            // channels of a thread in the scan
  static constexpr int kUnroll = kTokensUnrolled;    // tokens in one round of the scan's loop
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kBlocks = kBlocksOfProcessor; // blocks that must fit on a multiprocessor: bounds the registers
  static constexpr int kStates = 4, kStateLanes = 4; // states of a thread in the scan, lanes that share a channel
  static constexpr int kPiece = kStates * kStateLanes;                 // states at a time: 16
  static constexpr int kChannels = kPer * (kWarp / kStateLanes);       // channels of a warp
  static constexpr int kOwned = kChannels / 2;                         // channels of a lane in load, stage and finish

  // Each row is 16 bytes longer than what it holds. So the rows of eight tokens, which eight lanes read or write at a
  // time, lie in different banks.
  struct Shared {
    alignas(16) float2 step[kTile][kChannels + 2];  // dt, dt u
    alignas(16) float B[kTile][kPiece + 4];
    alignas(16) float C[kTile][kPiece + 4];
    alignas(16) float share[kTile][kStateLanes * kChannels + 4];
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
        g_(lane_ / P::kStateLanes),
        j_(lane_ % P::kStateLanes),
        row_(lane_ % P::kTile),
        half_(lane_ / P::kTile),
        s_(s),
        length_(args.cu_seqlens[s + 1] - args.cu_seqlens[s]),
        channel_(channel),
        own_(channel + half_ * P::kOwned),
        u_rows_(args.u.at(args.cu_seqlens[s] + row_, own_)),
        delta_rows_(args.delta.at(args.cu_seqlens[s] + row_, own_)),
        z_rows_(args.z.at(args.cu_seqlens[s] + row_, own_)),
        y_rows_(args.y.at(args.cu_seqlens[s] + row_, own_)),
        B_rows_(args.B.at(args.cu_seqlens[s] + row_, half_ * P::kPiece / 2)),
        C_rows_(args.C.at(args.cu_seqlens[s] + row_, half_ * P::kPiece / 2)) {}

  __device__ void run() {
    const int pieces = kFast ? 1 : (a_.N + P::kPiece - 1) / P::kPiece;
    const int64_t states = int64_t(a_.D) * a_.N;
    float* slot = a_.checkpoints == nullptr ? nullptr : a_.checkpoints + first_slot(a_.cu_seqlens, s_) * states;
    for (int p = 0; p < pieces; ++p) {
      load_rates(p);
      load_initial(p);
      park(p, pieces);
    }
    load_constants();
    load(0);
    for (int t = 0; t < length_; t += P::kTile) {
      const bool kept = t % kCheckpointTokens == 0 && slot != nullptr;
      const int count = min(P::kTile, length_ - t);
      stage(t);
      for (int p = 0; p < pieces; ++p) {
        stage_states(t, p);
        if (p == 0) load(t + P::kTile);
        unpark(p, pieces);
        if (kept) store_states(slot, p);
        __syncwarp();
        scan(count, p);
        __syncwarp();
        park(p, pieces);
      }
      finish(t);
      if (kept) slot += states;
    }
    if (a_.final_state == nullptr) return;
    for (int p = 0; p < pieces; ++p) {
      unpark(p, pieces);
      store_states(a_.final_state + s_ * states, p);
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

  // What the tile from token t on needs. A token after the sequence's end gets a step of 0, which leaves a state as it
  // is: softplus(-inf) is 0.
  __device__ void load(int t) {
    next_u_.fill(0.0f);
    next_delta_.fill(a_.softplus ? -INFINITY : 0.0f);
    next_B_.fill(0.0f);
    next_C_.fill(0.0f);
    if (t + row_ < length_) {
      load_owned(u_rows_ + t * a_.u.stride, next_u_);
      load_owned(delta_rows_ + t * a_.delta.stride, next_delta_);
      if constexpr (kFast) {
        next_B_ = *reinterpret_cast<const HalfRow*>(B_rows_ + t * a_.B.stride);
        next_C_ = *reinterpret_cast<const HalfRow*>(C_rows_ + t * a_.C.stride);
      }
    }
  }

  __device__ void stage(int t) {
    u_ = next_u_;
    if (a_.softplus) {
      stage_steps<true>(t);
    } else {
      stage_steps<false>(t);
    }
    if (a_.z && t + row_ < length_) load_owned(z_rows_ + t * a_.z.stride, z_);
  }

  template <bool kSoftplus>
  __device__ void stage_steps(int t) {
#pragma unroll
    for (int c = 0; c < P::kOwned; c += 2) {
      Packed<float2, 2> step;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float dt = step_size<kSoftplus>(next_delta_.get(c + i), bias_[c + i]);
        if (!kSoftplus && t + row_ >= length_) dt = 0.0f;
        step.value[i] = {dt, __fmul_rn(dt, u_.get(c + i))};
      }
      store_packed<float2, 2>(&shared_.step[row_][half_ * P::kOwned + c], step);
    }
  }

  __device__ void finish(int t) const {
    if (a_.z) {
      finish_rows<true>(t);
    } else {
      finish_rows<false>(t);
    }
  }

  template <bool kGate>
  __device__ void finish_rows(int t) const {
    Owned y;
#pragma unroll
    for (int c = 0; c < P::kOwned; c += 4) {
      Packed<float, 4> share[P::kStateLanes];
#pragma unroll
      for (int j = 0; j < P::kStateLanes; ++j) {
        share[j] = load_packed<float, 4>(&shared_.share[row_][j * P::kChannels + half_ * P::kOwned + c]);
      }
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = __fadd_rn(__fadd_rn(share[0].value[i], share[1].value[i]),
                         __fadd_rn(share[2].value[i], share[3].value[i]));
        v[i] = __fmaf_rn(skip_[c + i], u_.get(c + i), v[i]);
        if (kGate) {
          const float z = z_.get(c + i);
          v[i] = __fmul_rn(v[i], __fmul_rn(z, sigmoid(z)));
        }
      }
      y.set_two(c, v[0], v[1]);
      y.set_two(c + 2, v[2], v[3]);
    }
    if (t + row_ >= length_) return;
    In* const to = y_rows_ + t * a_.y.stride;
    if constexpr (kFast) {
      *reinterpret_cast<Owned*>(to) = y;
    } else {
      y.store_some(to, a_.D - own_);
    }
  }

  // B and C as float32, states 16 piece to 16 piece + 15.
  __device__ void stage_states(int t, int piece) {
    if constexpr (!kFast) {
      next_B_.fill(0.0f);
      next_C_.fill(0.0f);
      if (t + row_ < length_) {
        next_B_.load_some(B_rows_ + t * a_.B.stride + piece * P::kPiece, a_.N - piece * P::kPiece - half_ * P::kPiece / 2);
        next_C_.load_some(C_rows_ + t * a_.C.stride + piece * P::kPiece, a_.N - piece * P::kPiece - half_ * P::kPiece / 2);
      }
    }
#pragma unroll
    for (int n = 0; n < P::kPiece / 2; n += 4) {
      const int at = half_ * P::kPiece / 2 + n;
      store_packed<float, 4>(&shared_.B[row_][at],
                             {{next_B_.get(n), next_B_.get(n + 1), next_B_.get(n + 2), next_B_.get(n + 3)}});
      store_packed<float, 4>(&shared_.C[row_][at],
                             {{next_C_.get(n), next_C_.get(n + 1), next_C_.get(n + 2), next_C_.get(n + 3)}});
    }
  }

  // --- The recurrence ---

  __device__ void scan(int count, int piece) {
#pragma unroll 1
    for (int first = 0; first < count; first += P::kUnroll) {
#pragma unroll
      for (int i = 0; i < P::kUnroll; ++i) token(first + i, piece);
    }
  }

  __device__ __forceinline__ void token(int t, int piece) {
    const auto B = load_packed<float, P::kStates>(&shared_.B[t][P::kStates * j_]);
    const auto C = load_packed<float, P::kStates>(&shared_.C[t][P::kStates * j_]);
    auto* const to = reinterpret_cast<Packed<float, P::kPer>*>(&shared_.share[t][j_ * P::kChannels + P::kPer * g_]);
    Packed<float2, P::kPer> step;
    for (int c = 0; c < P::kPer; c += 2) {
      constexpr int kTwo = P::kPer < 2 ? 1 : 2;
      const auto some = load_packed<float2, kTwo>(&shared_.step[t][P::kPer * g_ + c]);
      for (int i = 0; i < kTwo; ++i) step.value[c + i] = some.value[i];
    }
    Packed<float, P::kPer> share;
#pragma unroll
    for (int c = 0; c < P::kPer; ++c) {
      const float dt = step.value[c].x, dtu = step.value[c].y;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < P::kStates; ++n) {
        const float decay = exp2_fast(__fmul_rn(dt, rate_[c][n]));
        h_[c][n] = __fmaf_rn(decay, h_[c][n], __fmul_rn(dtu, B.value[n]));
        sum = n == 0 ? __fmul_rn(h_[c][n], C.value[n]) : __fmaf_rn(h_[c][n], C.value[n], sum);
      }
      share.value[c] = !kFast && piece > 0 ? __fadd_rn(to->value[c], sum) : sum;
    }
    *to = share;
  }

  // --- States: [D, N] in memory, four side by side in a thread ---

  template <class F>
  __device__ __forceinline__ void each_state(int piece, const F& f) {
#pragma unroll
    for (int c = 0; c < P::kPer; ++c) {
#pragma unroll
      for (int i = 0; i < P::kStates; ++i) {
        const int d = channel_ + P::kPer * g_ + c, n = piece * P::kPiece + P::kStates * j_ + i;
        f(c, i, int64_t(d) * a_.N + n, kFast || (d < a_.D && n < a_.N));
      }
    }
  }

  __device__ void load_rates(int piece) {
    each_state(piece, [&](int c, int i, int64_t at, bool exists) {
      rate_[c][i] = exists ? decay_rate(a_.A[at]) : 0.0f;
    });
  }

  __device__ void load_initial(int piece) {
    const float* from = a_.initial_state == nullptr ? nullptr : a_.initial_state + int64_t(s_) * a_.D * a_.N;
    each_state(piece, [&](int c, int i, int64_t at, bool exists) {
      h_[c][i] = from != nullptr && exists ? from[at] : 0.0f;
    });
  }

  __device__ void store_states(float* to, int piece) {
    if constexpr (kFast) {
#pragma unroll
      for (int c = 0; c < P::kPer; ++c) {
        const int d = channel_ + P::kPer * g_ + c;
        store_packed<float, 4>(to + int64_t(d) * P::kPiece + P::kStates * j_, {{h_[c][0], h_[c][1], h_[c][2], h_[c][3]}});
      }
    } else {
      each_state(piece, [&](int c, int i, int64_t at, bool exists) {
        if (exists) to[at] = h_[c][i];
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
  const int lane_, g_, j_;       // g, j: channels and states in the scan
  const int row_, half_;         // the token of a tile that this lane owns, and which half of its channels
  const int s_, length_, channel_, own_;
  const In *u_rows_, *delta_rows_, *z_rows_;
  In* y_rows_;
  const In *B_rows_, *C_rows_;
  float h_[P::kPer][P::kStates], rate_[P::kPer][P::kStates];
  float bias_[P::kOwned], skip_[P::kOwned];
  Owned u_, z_, next_u_, next_delta_;
  HalfRow next_B_, next_C_;
};

template <class In, class P, bool kFast>
__global__ void __launch_bounds__(P::kWarps * kWarp, P::kBlocks)
    scan_forward(const __grid_constant__ ForwardArguments<In> args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* const shared = reinterpret_cast<typename P::Shared*>(memory);
  const int warp = threadIdx.x / kWarp;
  const int channel = (blockIdx.x % args.channel_blocks * P::kWarps + warp) * P::kChannels;
  if (channel >= args.D) return;
  const int pieces = (args.N + P::kPiece - 1) / P::kPiece;
  float* const parked =
      reinterpret_cast<float*>(shared + P::kWarps) + warp * pieces * (P::kPer * P::kStates * kWarp);
  ForwardWarp<In, P, kFast> walk(args, shared[warp], parked, args.order[blockIdx.x / args.channel_blocks], channel);
  walk.run();
}

}  // namespace mamba_lab::ssm
