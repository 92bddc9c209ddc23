// The first rungs of the scan's ladder, short enough to be read in one go: notebook 13 reads them, and runs them against
// ssm_pack on a GPU. Forward only, bfloat16, 16 states, softplus and gate on; no states in or out. Not for training.
//
//   version 1  one thread a channel, everything from global memory
//   version 2  a tile of tokens at a time in shared memory: dt, dt u, B and C are made once and read by all
//   version 3  four lanes share a channel, four states each: four times the threads, and y is a sum over four lanes
//   version 4  version 3 with one mistake planted, for the exercise
//
// What came after is in ssm_pack_forward.cu.

#include "launch.h"
#include "ssm_pack.h"

#include <torch/csrc/stable/library.h>

namespace mamba_lab::ladder {
namespace {

using namespace ssm;

constexpr int kN = 16, kThreads = 128;

struct Scan {
  const BFloat16 *u, *delta, *B, *C, *z;  // [T, D] and [T, N], dense
  const float *A, *skip, *bias;
  const int32_t *cu_seqlens, *order;
  BFloat16* y;
  int D, channel_blocks;
};

__device__ float gated(const Scan& a, int64_t at, int channel, float y) {
  const float z = widen(a.z[at]);
  return (y + a.skip[channel] * widen(a.u[at])) * z * sigmoid(z);
}

__global__ void __launch_bounds__(kThreads) version1(Scan a) {
  const int channel = blockIdx.x % a.channel_blocks * kThreads + threadIdx.x;
  if (channel >= a.D) return;
  const int s = a.order[blockIdx.x / a.channel_blocks];
  float h[kN] = {};
  for (int64_t t = a.cu_seqlens[s]; t < a.cu_seqlens[s + 1]; ++t) {
    const int64_t at = t * a.D + channel;
    const float dt = softplus(widen(a.delta[at]) + a.bias[channel]), u = widen(a.u[at]);
    float y = 0;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      h[n] = expf(dt * a.A[channel * kN + n]) * h[n] + dt * u * widen(a.B[t * kN + n]);
      y += widen(a.C[t * kN + n]) * h[n];
    }
    a.y[at] = narrow<BFloat16>(gated(a, at, channel, y));
  }
}

template <int kLanes, int kTile, bool kBroken = false>
__global__ void __launch_bounds__(kThreads) tiled(Scan a) {
  constexpr int kChannels = kThreads / kLanes, kStates = kN / kLanes;
  __shared__ float2 step[kTile][kChannels];
  __shared__ float B[kTile][kN], C[kTile][kN];
  const int s = a.order[blockIdx.x / a.channel_blocks], lane = threadIdx.x % kLanes;
  const int first_channel = blockIdx.x % a.channel_blocks * kChannels;
  const int mine = threadIdx.x / kLanes, channel = first_channel + mine;

  float rate[kStates], h[kStates] = {};
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    rate[n] = channel < a.D ? decay_rate(a.A[channel * kN + lane * kStates + n]) : 0.0f;
  }

  const int64_t stop = a.cu_seqlens[s + 1];
  for (int64_t start = a.cu_seqlens[s]; start < stop; start += kTile) {
    const int count = min(int64_t(kTile), stop - start);
    const int numbers = kBroken ? min(count * kN, kThreads) : count * kN;  // of B and of C
    // Stage: every number of the tile is made by one thread and read by many.
    for (int i = threadIdx.x; i < count * kChannels; i += kThreads) {
      const int t = i / kChannels, d = first_channel + i % kChannels;
      if (d >= a.D) continue;
      const int64_t at = (start + t) * a.D + d;
      const float dt = softplus(widen(a.delta[at]) + a.bias[d]);
      step[t][i % kChannels] = {dt, dt * widen(a.u[at])};
    }
    for (int i = threadIdx.x; i < numbers; i += kThreads) {
      B[i / kN][i % kN] = widen(a.B[start * kN + i]);
      C[i / kN][i % kN] = widen(a.C[start * kN + i]);
    }
    __syncthreads();
    // Scan: the states stay in registers.
    for (int t = 0; t < count; ++t) {
      const float2 now = step[t][mine];
      float y = 0;
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        h[n] = exp2_fast(now.x * rate[n]) * h[n] + now.y * B[t][lane * kStates + n];
        y += C[t][lane * kStates + n] * h[n];
      }
#pragma unroll
      for (int apart = 1; apart < kLanes; apart *= 2) y += __shfl_xor_sync(kAllLanes, y, apart);
      const int64_t at = (start + t) * a.D + channel;
      if (lane == 0 && channel < a.D) a.y[at] = narrow<BFloat16>(gated(a, at, channel, y));
    }
    __syncthreads();  // before the next tile is staged over this one
  }
}

template <int kLanes, int kTile, bool kBroken = false>
void launch_tiled(Scan a, int64_t sequences, cudaStream_t stream) {
  a.channel_blocks = (a.D + kThreads / kLanes - 1) / (kThreads / kLanes);
  tiled<kLanes, kTile, kBroken><<<sequences * a.channel_blocks, kThreads, 0, stream>>>(a);
}

template <int kLanes>
void launch_tile_of(int64_t tile, const Scan& a, int64_t sequences, cudaStream_t stream) {
  if (tile == 4) launch_tiled<kLanes, 4>(a, sequences, stream);
  if (tile == 8) launch_tiled<kLanes, 8>(a, sequences, stream);
  if (tile == 16) launch_tiled<kLanes, 16>(a, sequences, stream);
  if (tile == 32) launch_tiled<kLanes, 32>(a, sequences, stream);
}

// Python has checked versions, tiles, shapes and dtypes (mamba_lab/ops/scan_ladder.py).
Tensor scan_ladder(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                   const Tensor& D, const Tensor& z, const Tensor& delta_bias, const Tensor& cu_seqlens,
                   const Tensor& order, int64_t version, int64_t tile) {
  const Launch launch(u);
  const Tensor y = torch::stable::new_empty(u, {u.size(0), u.size(1)});
  const int64_t sequences = cu_seqlens.size(0) - 1;
  if (sequences == 0 || u.size(1) == 0) return y;
  const auto halves = [](const Tensor& x) { return static_cast<const BFloat16*>(x.const_data_ptr()); };
  const auto whole = [](const Tensor& x) { return static_cast<const int32_t*>(x.const_data_ptr()); };
  const int channels = static_cast<int>(u.size(1));
  const Scan scan{halves(u),          halves(delta),     halves(B),
                  halves(C),          halves(z),         floats(A),
                  floats(D),          floats(delta_bias), whole(cu_seqlens),
                  whole(order),       static_cast<BFloat16*>(y.mutable_data_ptr()), channels,
                  (channels + kThreads - 1) / kThreads};
  if (version == 1) version1<<<sequences * scan.channel_blocks, kThreads, 0, launch.stream>>>(scan);
  if (version == 2) launch_tile_of<1>(tile, scan, sequences, launch.stream);
  if (version == 3) launch_tile_of<4>(tile, scan, sequences, launch.stream);
  if (version == 4) launch_tiled<4, 16, true>(scan, sequences, launch.stream);
  launch.check(cudaGetLastError());
  return y;
}

}  // namespace
}  // namespace mamba_lab::ladder

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CUDA, m) { m.impl("scan_ladder", TORCH_BOX(&mamba_lab::ladder::scan_ladder)); }
