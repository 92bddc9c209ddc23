// The forward pass of the packed selective scan for what ssm_pack_forward.h does not take: numbers of states other than
// 16, numbers of channels that fill no warp, rows that start anywhere. Slower, with the same bits where both can run.
//
// A warp walks along one sequence with 32 channels, one a lane, in tiles of 8 tokens. States are worked on 16 at a time;
// between two tiles they wait in shared memory. Nothing is shared between lanes but B and C.

#pragma once

#include "ssm_pack_forward.h"

namespace mamba_lab::ssm {

struct Generic {
  static constexpr int kTile = 8, kPiece = 16;

  struct Shared {
    float B[kTile][kPiece], C[kTile][kPiece];
  };
  static int pieces(int64_t N) { return static_cast<int>((N + kPiece - 1) / kPiece); }
  static size_t shared_bytes(int64_t N) { return sizeof(Shared) + pieces(N) * kPiece * kWarp * sizeof(float); }
};

template <class In>
class GenericWarp {
 public:
  static constexpr int kTile = Generic::kTile, kPiece = Generic::kPiece;

  __device__ GenericWarp(const ForwardArguments<In>& args, Generic::Shared& shared, float* parked, int s, int channel)
      : a_(args),
        shared_(shared),
        lane_(threadIdx.x % kWarp),
        d_(min(channel + lane_, args.D - 1)),
        exists_(channel + lane_ < args.D),
        start_(args.cu_seqlens[s]),
        length_(args.cu_seqlens[s + 1] - args.cu_seqlens[s]),
        waiting_(parked + lane_),
        bias_(args.bias == nullptr ? 0.0f : args.bias[d_]),
        skip_(args.skip == nullptr ? 0.0f : args.skip[d_]) {}

  __device__ void run(int s) {
    const int64_t states = int64_t(a_.D) * a_.N, at = s * states + int64_t(d_) * a_.N;
    for (int n = 0; n < a_.N; ++n) waiting_[n * kWarp] = a_.initial_state == nullptr ? 0.0f : a_.initial_state[at + n];
    int64_t slot = first_slot(a_.cu_seqlens, s) * states + int64_t(d_) * a_.N;
    for (int t = 0; t < length_; t += kTile) {
      if (t % kCheckpointTokens == 0 && a_.checkpoints != nullptr) {
        store_states(a_.checkpoints + slot);
        slot += states;
      }
      tile(t);
    }
    if (a_.final_state != nullptr) store_states(a_.final_state + at);
  }

 private:
  __device__ void store_states(float* to) const {
    for (int n = 0; exists_ && n < a_.N; ++n) to[n] = waiting_[n * kWarp];
  }

  __device__ void tile(int t) {
    float dt[kTile], dtu[kTile], y[kTile];
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      dt[i] = dtu[i] = y[i] = 0.0f;  // a step of 0 leaves a state as it is
      if (t + i >= length_) continue;
      const float delta = widen(*a_.delta.at(start_ + t + i, d_));
      dt[i] = a_.softplus ? step_size<true>(delta, bias_) : step_size<false>(delta, bias_);
      dtu[i] = __fmul_rn(dt[i], widen(*a_.u.at(start_ + t + i, d_)));
    }
    for (int first = 0; first < a_.N; first += kPiece) {
      __syncwarp();
      stage_states(t, first);
      __syncwarp();
      scan(first, dt, dtu, y);
    }
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      if (t + i >= length_ || !exists_) break;
      float v = __fmaf_rn(skip_, widen(*a_.u.at(start_ + t + i, d_)), y[i]);
      if (a_.z) {
        const float z = widen(*a_.z.at(start_ + t + i, d_));
        v = __fmul_rn(v, __fmul_rn(z, sigmoid(z)));
      }
      *a_.y.at(start_ + t + i, d_) = narrow<In>(v);
    }
  }

  // B and C of a tile, states `first` to `first` + 15; zeros where there is no token or no state.
  __device__ void stage_states(int t, int first) {
    for (int at = lane_; at < kTile * kPiece; at += kWarp) {
      const int i = at / kPiece, n = first + at % kPiece;
      const bool real = t + i < length_ && n < a_.N;
      shared_.B[i][at % kPiece] = real ? widen(*a_.B.at(start_ + t + i, n)) : 0.0f;
      shared_.C[i][at % kPiece] = real ? widen(*a_.C.at(start_ + t + i, n)) : 0.0f;
    }
  }

  // States `first` to `first` + 15 of this lane's channel through a tile; their part of C h is added to y.
  __device__ void scan(int first, const float* dt, const float* dtu, float* y) {
    float h[kPiece], rate[kPiece];
#pragma unroll
    for (int n = 0; n < kPiece; ++n) {
      const bool real = first + n < a_.N;
      h[n] = real ? waiting_[(first + n) * kWarp] : 0.0f;
      rate[n] = real ? decay_rate(a_.A[int64_t(d_) * a_.N + first + n]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      float part[4];
#pragma unroll
      for (int n = 0; n < kPiece; ++n) {
        const float C = shared_.C[i][n];
        h[n] = __fmaf_rn(exp2_fast(__fmul_rn(dt[i], rate[n])), h[n], __fmul_rn(dtu[i], shared_.B[i][n]));
        part[n / 4] = n % 4 == 0 ? __fmul_rn(h[n], C) : __fmaf_rn(h[n], C, part[n / 4]);
      }
      const float sum = __fadd_rn(__fadd_rn(part[0], part[1]), __fadd_rn(part[2], part[3]));
      y[i] = first == 0 ? sum : __fadd_rn(y[i], sum);
    }
#pragma unroll
    for (int n = 0; n < kPiece; ++n) {
      if (first + n < a_.N) waiting_[(first + n) * kWarp] = h[n];
    }
  }

  const ForwardArguments<In>& a_;
  Generic::Shared& shared_;
  const int lane_, d_;
  const bool exists_;
  const int64_t start_;
  const int length_;
  float* const waiting_;  // [N][32]: the states of this lane's channel; no other lane touches them
  const float bias_, skip_;
};

template <class In>
__global__ void __launch_bounds__(kWarp) generic_scan_forward(const __grid_constant__ ForwardArguments<In> args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Generic::Shared*>(memory);
  const int s = args.order[blockIdx.x / args.channel_blocks], channel = blockIdx.x % args.channel_blocks * kWarp;
  GenericWarp<In>(args, shared, reinterpret_cast<float*>(&shared + 1), s, channel).run(s);
}

}  // namespace mamba_lab::ssm
