// conv1d_pack, forward: y[t] = act(bias + sum_k weight[k] x[t - (W - 1) + k]), never past a sequence's start.
//
// Ladder, milliseconds for D 4096, W 4, silu, bfloat16, at T 4096 / 16,384 / 65,536 (one H200, packs of 57 to 2,048):
//   1  8 channels a thread, 8 rows loaded, then worked on     0.053 / 0.128 / 0.386   168 registers: 12 warps an SM
//   2  4 channels a thread                                    0.043 / 0.102 / 0.350   fewer registers, more warps
//   3  8 warps a block, at least 2 blocks                     0.039 / 0.095 / 0.336
//   4  rows fetched ahead into shared memory (cp.async)       0.031 / 0.083 / 0.289   loads no longer wait for sums
// Tried beside version 4: 8 channels a thread 0.319 at T 65,536, 2 channels 0.298; tiles of 64 and of 256 tokens, turns
// of 4 and 16 rows, 2 to 4 turns ahead: 0.278 to 0.290, some of them slower at T 4096.
//
// Cost at T 65,536: 1.07 GB read and written once, 0.25 ms at the 4.27 TB/s of a copy on that GPU; achieved 3.84 TB/s
// by the profiler, 0.289 ms. Two of the special functions an entry (exp2, reciprocal): 0.54e9, 0.13 ms of that unit.
// Issue slots are half used. What is left is the memory's own.

#include "conv1d_pack.h"

namespace mamba_lab::conv {
namespace {

constexpr int kWarps = 8, kBlocks = 2, kTokens = 8, kAhead = 1, kPieceBytes = 8;
constexpr int64_t kBusyWarps = 4096, kMostTokens = 128;

template <class In, int C, int W, bool Silu>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocks)
    forward_tiles(const Problem p, In* __restrict__ y, int span, int64_t blocks) {
  using Rows = Ring<In, C, kTokens, kAhead, kWarps * kLanes>;
  __shared__ typename Rows::Memory memory;
  Rows rows(memory);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  const int64_t first = warp / blocks * span;
  if (first >= p.T) return;
  const int count = static_cast<int>(min(static_cast<int64_t>(span), p.T - first));
  const int64_t mine = (warp % blocks * kLanes + threadIdx.x % kLanes) * C;
  const bool idle = mine >= p.D;  // such a thread helps to search and stores nothing
  const int64_t channel = idle ? 0 : mine;

  const In* next = static_cast<const In*>(p.x) + first * p.x_stride + channel;
  const auto fetch = [&](int i, int stage) {
#pragma unroll
    for (int k = 0; k < kTokens; ++k, next += p.x_stride) {
      if (i + k < count) rows.copy(stage, k, next);
    }
    end_of_turn();
  };
#pragma unroll
  for (int k = 0; k < kAhead; ++k) fetch(k * kTokens, k);

  Place place(p.cu_seqlens, static_cast<int>(p.sequences), first);
  const Taps<W, C> taps(p, channel);
  float before[Taps<W, C>::kRoom][C];
  taps.template recall<In>(p, place, first, channel, before);
  In* to = y + first * p.D + channel;
  int stop = static_cast<int>(min(place.stop - first, static_cast<int64_t>(span)));  // of the sequence, from `first` on

  const auto step = [&](const Piece<In, C>& piece) {
    float now[C], sum[C];
    widen_piece<In, C>(piece, now);
    taps.convolve(now, before, sum);
    taps.push(now, before);
    if constexpr (Silu) {
#pragma unroll
      for (int c = 0; c < C; ++c) sum[c] = __fmul_rn(sum[c], sigmoid(sum[c]));
    }
    if (!idle) store_piece<In, C>(sum, to);
    to += p.D;
  };

  int stage = 0, stage_ahead = kAhead;
  const auto advance = [](int& stage) { stage = stage + 1 == Rows::kStages ? 0 : stage + 1; };
  for (int i = 0; i < count; i += kTokens, advance(stage), advance(stage_ahead)) {
    fetch(i + kAhead * kTokens, stage_ahead);
    wait_for_turn<kAhead>();
    if (i + kTokens <= stop) {
#pragma unroll
      for (int k = 0; k < kTokens; ++k) step(rows.at(stage, k));
      continue;
    }
#pragma unroll 1
    for (int k = 0; k < kTokens && i + k < count; ++k) {
      if (i + k == stop) {
        place.next(p.cu_seqlens);
        taps.template recall<In>(p, place, place.start, channel, before);
        stop = static_cast<int>(min(place.stop - first, static_cast<int64_t>(span)));
      }
      step(rows.at(stage, k));
    }
  }
}

// The last W - 1 inputs of each sequence; where it has fewer, the end of its initial state goes before them.
template <class In>
__global__ void final_states(const Problem p, float* final_state) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.sequences * p.D) return;
  const int64_t s = i / p.D, channel = i % p.D, reach = p.width - 1;
  const int64_t start = p.cu_seqlens[s], length = p.cu_seqlens[s + 1] - start;
  for (int64_t k = 0; k < reach; ++k) {
    const int64_t t = length - reach + k;
    float value = 0.f;
    if (t >= 0) {
      value = widen(static_cast<const In*>(p.x)[(start + t) * p.x_stride + channel]);
    } else if (p.initial_state != nullptr) {
      value = p.initial_state[i * reach + reach + t];
    }
    final_state[i * reach + k] = value;
  }
}

template <class In, int C, int W, bool Silu>
cudaError_t launch_tiles(const Problem& p, void* y, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.D, kLanes * C), span = span_of_tiles(p, blocks, kBusyWarps, kMostTokens);
  const int64_t grid = ceil_div(ceil_div(p.T, span) * blocks, kWarps);
  forward_tiles<In, C, W, Silu><<<static_cast<unsigned>(grid), kWarps * kLanes, 0, stream>>>(
      p, static_cast<In*>(y), static_cast<int>(span), blocks);
  return cudaGetLastError();
}

template <class In, bool Silu>
cudaError_t launch_width(const Problem& p, void* y, cudaStream_t stream) {
  constexpr int C = kPieceBytes / sizeof(In);
  if (in_pieces(p.x, p.x_stride, p.D, sizeof(In), C)) {
    switch (p.width) {
      case 2: return launch_tiles<In, C, 2, Silu>(p, y, stream);
      case 3: return launch_tiles<In, C, 3, Silu>(p, y, stream);
      case 4: return launch_tiles<In, C, 4, Silu>(p, y, stream);
    }
  }
  return launch_tiles<In, 1, 0, Silu>(p, y, stream);
}

template <class In>
cudaError_t run(const Problem& p, const Results& results, cudaStream_t stream) {
  if (p.T > 0 && p.D > 0) {
    const cudaError_t status = p.silu ? launch_width<In, true>(p, results.y, stream)
                                      : launch_width<In, false>(p, results.y, stream);
    if (status != cudaSuccess) return status;
  }
  if (results.final_state == nullptr || p.sequences * p.D * (p.width - 1) == 0) return cudaSuccess;
  final_states<In><<<static_cast<unsigned>(ceil_div(p.sequences * p.D, 256)), 256, 0, stream>>>(p, results.final_state);
  return cudaGetLastError();
}

}  // namespace

cudaError_t forward(const Problem& problem, const Results& results, cudaStream_t stream) {
  return problem.bf16 ? run<bf16>(problem, results, stream) : run<float>(problem, results, stream);
}

}  // namespace mamba_lab::conv
