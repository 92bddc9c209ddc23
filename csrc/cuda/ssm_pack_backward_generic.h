// The backward pass of the packed selective scan for any number of states (1 to 256): short rather than fast.
//
// A thread walks along one sequence with one channel, tile after tile (32 tokens) from the last to the first, and in a
// tile state after state: the state and its decay at every token stay in registers between the sweep along time and the
// one against it. What sums over states grows in shared memory, a column for each thread; what sums over channels is
// added up over the warp's lanes, then over the block's warps.

#pragma once

#include "ssm_pack_backward.h"

namespace mamba_lab::ssm {

inline constexpr int kGenericThreads = 128, kGenericWarps = kGenericThreads / kWarp;
inline constexpr int kMostStates = 256;

struct GenericShared {
  float dt[kTile][kGenericThreads], dtu[kTile][kGenericThreads], dy[kTile][kGenericThreads];
  float y[kTile][kGenericThreads], gB[kTile][kGenericThreads], gA[kTile][kGenericThreads];
  float warps[2][kGenericWarps][kWarp];  // of one state: dB and dC of the tile's tokens
};

// Every lane comes with 32 numbers; lane t leaves with the sum of all lanes' number t.
__device__ __forceinline__ float sum_over_lanes(float (&x)[kWarp], int lane) {
#pragma unroll
  for (int half = kWarp / 2; half > 0; half /= 2) {
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? x[i + half] : x[i], send = upper ? x[i] : x[i + half];
      x[i] = __fadd_rn(keep, __shfl_xor_sync(kAllLanes, send, half));
    }
  }
  return x[0];
}

template <class In>
class GenericBackward {
 public:
  __device__ GenericBackward(const BackwardArguments& args, GenericShared& shared)
      : a_(args),
        shared_(shared),
        x_(threadIdx.x),
        block_(blockIdx.x % args.channel_blocks),
        group_(blockIdx.x / args.channel_blocks),
        d_(block_ * kGenericThreads + x_),
        exists_(d_ < args.D),
        skip_(exists_ && args.skip != nullptr ? args.skip[d_] : 0.0f),
        bias_(exists_ && args.bias != nullptr ? args.bias[d_] : 0.0f) {}

  __device__ void run() {
    for (int n = 0; n < a_.N; ++n) dA_[n] = 0.0f;
    for (int i = group_; i < a_.sequences; i += a_.groups) sequence(a_.order[i]);
    if (!exists_) return;
    for (int n = 0; n < a_.N; ++n) a_.dA_parts[(int64_t(group_) * a_.D + d_) * a_.N + n] = dA_[n];
    if (a_.dskip_parts != nullptr) a_.dskip_parts[int64_t(group_) * a_.D + d_] = dskip_;
    if (a_.dbias_parts != nullptr) a_.dbias_parts[int64_t(group_) * a_.D + d_] = dbias_;
  }

 private:
  __device__ void sequence(int s) {
    start_ = a_.cu_seqlens[s];
    length_ = a_.cu_seqlens[s + 1] - start_;
    const int64_t states = int64_t(a_.D) * a_.N, of_channel = int64_t(d_) * a_.N;
    for (int n = 0; n < a_.N; ++n) {
      g_[n] = exists_ && a_.dfinal_state != nullptr ? a_.dfinal_state[s * states + of_channel + n] : 0.0f;
    }
    for (int tile = (length_ + kTile - 1) / kTile - 1; tile >= 0; --tile) {
      const float* slot = a_.checkpoints + (first_slot(a_.cu_seqlens, s) + tile) * states + of_channel;
      stage(tile * kTile);
      for (int n = 0; n < a_.N; ++n) one_state(tile * kTile, n, exists_ ? slot[n] : 0.0f);
      finish(tile * kTile);
    }
    if (!exists_ || a_.dinitial_state == nullptr) return;
    for (int n = 0; n < a_.N; ++n) a_.dinitial_state[s * states + of_channel + n] = g_[n];
  }

  // Column `column` of token t; `otherwise` where there is no such token.
  __device__ float load(const InputRows& rows, int t, int column, float otherwise) const {
    const char* row = static_cast<const char*>(rows.data) + int64_t(start_ + t) * rows.bytes;
    return t < length_ ? widen(reinterpret_cast<const In*>(row)[column]) : otherwise;
  }

  __device__ float load(const InputRows& rows, int t) const { return exists_ ? load(rows, t, d_, 0.0f) : 0.0f; }

  __device__ float raw_step(int t) const { return __fadd_rn(load(a_.delta, t), bias_); }

  __device__ void stage(int t0) {
    for (int i = 0; i < kTile; ++i) {
      const int t = t0 + i;
      const float raw = raw_step(t), dt = t < length_ ? (a_.softplus ? softplus(raw) : raw) : 0.0f;
      float dy = load(a_.dy, t);
      if (a_.z.data != nullptr) {
        const float z = load(a_.z, t);
        dy = __fmul_rn(dy, __fmul_rn(z, sigmoid(z)));
      }
      shared_.dt[i][x_] = dt;
      shared_.dtu[i][x_] = __fmul_rn(dt, load(a_.u, t));
      shared_.dy[i][x_] = dy;
      shared_.y[i][x_] = shared_.gB[i][x_] = shared_.gA[i][x_] = 0.0f;
    }
  }

  __device__ void one_state(int t0, int n, float h) {
    const float rate = exists_ ? decay_rate(a_.A[int64_t(d_) * a_.N + n]) : 0.0f;
    float decay[kTile], before[kTile], of_channels[kTile];
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      before[i] = h;
      decay[i] = exp2_fast(__fmul_rn(shared_.dt[i][x_], rate));
      h = __fmaf_rn(decay[i], h, __fmul_rn(shared_.dtu[i][x_], load(a_.B, t0 + i, n, 0.0f)));
      shared_.y[i][x_] = __fmaf_rn(h, load(a_.C, t0 + i, n, 0.0f), shared_.y[i][x_]);
      of_channels[i] = __fmul_rn(shared_.dy[i][x_], h);
    }
    const int warp = x_ / kWarp, lane = x_ % kWarp;
    shared_.warps[1][warp][lane] = sum_over_lanes(of_channels, lane);

    float g = g_[n], dA = 0.0f;
#pragma unroll
    for (int i = kTile - 1; i >= 0; --i) {
      g = __fmaf_rn(shared_.dy[i][x_], load(a_.C, t0 + i, n, 0.0f), g);
      of_channels[i] = __fmul_rn(g, shared_.dtu[i][x_]);
      shared_.gB[i][x_] = __fmaf_rn(g, load(a_.B, t0 + i, n, 0.0f), shared_.gB[i][x_]);
      g = __fmul_rn(g, decay[i]);
      const float through = __fmul_rn(g, before[i]);  // the gradient of dt A
      shared_.gA[i][x_] = __fmaf_rn(through, rate, shared_.gA[i][x_]);
      dA = __fmaf_rn(through, shared_.dt[i][x_], dA);
    }
    g_[n] = g;
    dA_[n] = __fadd_rn(dA_[n], dA);
    shared_.warps[0][warp][lane] = sum_over_lanes(of_channels, lane);
    __syncthreads();
    sum_warps(t0, n);
    __syncthreads();
  }

  __device__ void sum_warps(int t0, int n) const {
    const int matrix = x_ / kWarp, t = t0 + x_ % kWarp;
    if (matrix >= 2 || t >= length_) return;
    float sum = shared_.warps[matrix][0][x_ % kWarp];
    for (int w = 1; w < kGenericWarps; ++w) sum = __fadd_rn(sum, shared_.warps[matrix][w][x_ % kWarp]);
    a_.states_parts[((int64_t(matrix) * a_.channel_blocks + block_) * a_.T + start_ + t) * a_.N + n] = sum;
  }

  __device__ void finish(int t0) {
    float dskip = 0.0f, dbias = 0.0f;
    for (int i = 0; exists_ && i < kTile && t0 + i < length_; ++i) {
      const int t = t0 + i;
      const float u = load(a_.u, t), dy = shared_.dy[i][x_], gB = shared_.gB[i][x_];
      const float raw = raw_step(t), slope = a_.softplus ? sigmoid_from(raw, exp_of_minus_abs(raw)) : 1.0f;
      const float ddelta = __fmul_rn(__fmaf_rn(u, gB, __fmul_rn(shared_.gA[i][x_], kLn2)), slope);
      const float y = __fmaf_rn(skip_, u, shared_.y[i][x_]);
      store(a_.du, a_.row_bytes, t, __fmaf_rn(shared_.dt[i][x_], gB, __fmul_rn(skip_, dy)));
      store(a_.ddelta, a_.row_bytes, t, ddelta);
      dskip = __fmaf_rn(dy, u, dskip);
      dbias = __fadd_rn(dbias, ddelta);
      if (a_.z.data == nullptr) {
        store(a_.y, a_.row_bytes, t, y);
        continue;
      }
      const float z = load(a_.z, t), open = sigmoid(z), gate = __fmul_rn(z, open);
      const float slope_of_gate = __fmaf_rn(gate, __fsub_rn(1.0f, open), open);
      store(a_.dz, a_.dz_bytes, t, __fmul_rn(__fmul_rn(load(a_.dy, t), slope_of_gate), y));
      store(a_.y, a_.row_bytes, t, __fmul_rn(y, gate));
    }
    dskip_ = __fadd_rn(dskip_, dskip);
    dbias_ = __fadd_rn(dbias_, dbias);
  }

  __device__ void store(void* rows, uint32_t bytes, int t, float x) const {
    if (rows == nullptr) return;
    reinterpret_cast<In*>(static_cast<char*>(rows) + int64_t(start_ + t) * bytes)[d_] = narrow<In>(x);
  }

  const BackwardArguments& a_;
  GenericShared& shared_;
  const int x_, block_, group_, d_;
  const bool exists_;
  const float skip_, bias_;
  int start_ = 0, length_ = 0;
  float g_[kMostStates], dA_[kMostStates], dskip_ = 0.0f, dbias_ = 0.0f;
};

template <class In>
__global__ void __launch_bounds__(kGenericThreads) generic_backward(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  GenericBackward<In>(args, *reinterpret_cast<GenericShared*>(memory)).run();
}

}  // namespace mamba_lab::ssm
