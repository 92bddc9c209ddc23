// conv1d_pack, backward, in one pass over x and dy: the sum before the activation is computed again. dx[t] needs the
// gradients of the W - 1 tokens after t, so a thread that walks forward keeps what it knows of the last W - 1 rows.
//
// Ladder, milliseconds for D 4096, W 4, silu, bfloat16, at T 4096 / 16,384 / 65,536 (one H200, packs of 57 to 2,048):
//   1  4 channels a thread, tiles of 64 tokens, rows loaded, then used   0.075 / 0.182 / 0.644   155 registers
//   2  tiles of 128 tokens, half as many warps                           0.062 / 0.172 / 0.598   fewer rows read twice
//   3  rows fetched ahead into shared memory, 128 registers              0.050 / 0.120 / 0.417   16 warps an SM
//   4  tiles of up to 256 tokens, 3 turns ahead                          0.045 / 0.121 / 0.420   fewer partial sums
// Tried beside version 4: 2 channels a thread 0.479 to 0.526 at T 65,536; 96 registers spill: 0.499; turns of 2 and
// of 8 rows 0.434 and 0.423.
//
// Cost at T 65,536: 1.61 GB, 0.38 ms at the 4.27 TB/s of a copy on that GPU; version 3 achieved 4.09 TB/s by the
// profiler.
// Two of the special functions an entry. The partial sums of weight and bias are written once a block and added up by a
// second kernel in a fixed order: 256 tiles are 64 blocks, 5 MB.

#include "conv1d_pack.h"

namespace mamba_lab::conv {
namespace {

constexpr int kWarps = 4, kBlocks = 4, kTokens = 4, kAhead = 3, kPieceBytes = 8;
constexpr int64_t kBusyWarps = 2048, kMostTokens = 256;
constexpr int kSlices = 8;

// The gradient of the sum before the activation.
template <int C>
__device__ __forceinline__ void through_silu(const float (&dy)[C], const float (&sum)[C], float (&g)[C]) {
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float s = sigmoid(sum[c]);
    g[c] = __fmul_rn(__fmul_rn(dy[c], s), fmaf(sum[c], __fsub_rn(1.f, s), 1.f));
  }
}

// The warps of a block have the same channels and tiles one after the other; their sums over time become one.
template <class In, int C, int W, bool Silu>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocks)
    backward_tiles(const Problem p, const Gradients out, int span, int64_t blocks) {
  using T = Taps<W, C>;
  using Rows = Ring<In, C, kTokens, kAhead, kWarps * kLanes>;
  __shared__ union {
    typename Rows::Memory rows[2];
    float sums[kWarps][T::kMost + 1][kLanes * C];
  } shared;
  Rows xs(shared.rows[0]), dys(shared.rows[1]);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int64_t block = blockIdx.x % blocks, group = blockIdx.x / blocks;
  const int64_t first = (group * kWarps + warp) * span;
  const int64_t mine = (block * kLanes + lane) * C;
  const bool idle = mine >= p.D;  // such a thread helps to search and stores nothing
  const int64_t channel = idle ? 0 : mine;
  const T taps(p, channel);
  const int reach = taps.width - 1;
  float of_tap[T::kMost][C] = {}, of_bias[C] = {};

  if (first < p.T) {
    // Tokens are counted from `first` on. The last rows of a tile wait for `reach` tokens of the next one.
    const int own = static_cast<int>(min(static_cast<int64_t>(span), p.T - first));
    const int count = static_cast<int>(min(static_cast<int64_t>(own) + reach, p.T - first));
    const In* next_x = static_cast<const In*>(p.x) + first * p.x_stride + channel;
    const In* next_dy = static_cast<const In*>(out.dy) + first * out.dy_stride + channel;
    const auto fetch = [&](int i, int stage) {
#pragma unroll
      for (int k = 0; k < kTokens; ++k, next_x += p.x_stride, next_dy += out.dy_stride) {
        if (i + k < count) xs.copy(stage, k, next_x), dys.copy(stage, k, next_dy);
      }
      end_of_turn();
    };
#pragma unroll
    for (int k = 0; k < kAhead; ++k) fetch(k * kTokens, k);

    Place place(p.cu_seqlens, static_cast<int>(p.sequences), first);
    // Of the last W - 1 tokens: the inputs, and what is known of dx. pending[0] is of the token before this one.
    float before[T::kRoom][C], pending[T::kRoom][C] = {};
    taps.template recall<In>(p, place, first, channel, before);
    const auto end_of_sequence = [&] {
      return static_cast<int>(min(place.stop - first, static_cast<int64_t>(count) + 1));
    };
    int lowest = 0, stop = end_of_sequence();  // rows before `lowest` are another tile's or another sequence's
    In* const dx = static_cast<In*>(out.dx) + first * out.dx_stride + channel;
    In* to = dx - reach * out.dx_stride;

    const auto step = [&](const Piece<In, C>& x_piece, const Piece<In, C>& dy_piece, bool counts, bool stores) {
      float now[C], g[C], done[C];
      widen_piece<In, C>(x_piece, now);
      widen_piece<In, C>(dy_piece, g);
      if constexpr (Silu) {
        float sum[C];
        taps.convolve(now, before, sum);
        through_silu<C>(g, sum, g);
      }
#pragma unroll
      for (int c = 0; c < C; ++c) {
        done[c] = __fmul_rn(taps.tap[0][c], g[c]);  // of this token, until an older one is done
#pragma unroll
        for (int age = T::kReach; age > 0; --age) {
          if (taps.has(age)) pending[age - 1][c] = fmaf(taps.tap[age][c], g[c], pending[age - 1][c]);
        }
        if (counts) {
          of_bias[c] = __fadd_rn(of_bias[c], g[c]);
          of_tap[0][c] = fmaf(g[c], now[c], of_tap[0][c]);
#pragma unroll
          for (int age = 1; age <= T::kReach; ++age) {
            if (taps.has(age)) of_tap[age][c] = fmaf(g[c], before[age - 1][c], of_tap[age][c]);
          }
        }
        float oldest = done[c];
#pragma unroll
        for (int age = 1; age <= T::kReach; ++age) {
          if (age == reach) oldest = pending[age - 1][c];
        }
#pragma unroll
        for (int age = T::kReach; age > 1; --age) pending[age - 1][c] = pending[age - 2][c];
        pending[0][c] = done[c];
        done[c] = oldest;
      }
      taps.push(now, before);
      if (stores && !idle) store_piece<In, C>(done, to);
      to += out.dx_stride;
    };
    // At a sequence's end the rows that wait are done.
    const auto flush = [&] {
#pragma unroll
      for (int age = 1; age <= T::kReach; ++age) {
        const int row = stop - age;
        if (!taps.has(age) || row < lowest || row >= own || idle) continue;
        float done[C];
#pragma unroll
        for (int c = 0; c < C; ++c) {
          done[c] = pending[age - 1][c];
          if (out.dfinal_state != nullptr) {
            done[c] = __fadd_rn(done[c], out.dfinal_state[(place.s * p.D + channel + c) * reach + reach - age]);
          }
        }
        store_piece<In, C>(done, dx + row * out.dx_stride);
      }
    };

    bool ended = false;  // the last of the tile's own sequences
    int stage = 0, stage_ahead = kAhead;
    const auto advance = [](int& stage) { stage = stage + 1 == Rows::kStages ? 0 : stage + 1; };
    for (int i = 0; i < count && !ended; i += kTokens, advance(stage), advance(stage_ahead)) {
      fetch(i + kAhead * kTokens, stage_ahead);
      wait_for_turn<kAhead>();
      if (i >= lowest + reach && i + kTokens <= min(stop, own)) {
#pragma unroll
        for (int k = 0; k < kTokens; ++k) step(xs.at(stage, k), dys.at(stage, k), true, true);
      } else {
#pragma unroll 1
        for (int k = 0; k < kTokens && i + k < count; ++k) {
          if (i + k == stop) {
            flush();
            if ((ended = stop >= own)) break;
            place.next(p.cu_seqlens);
            lowest = stop, stop = end_of_sequence();
            taps.template recall<In>(p, place, place.start, channel, before);
#pragma unroll
            for (int age = 1; age <= T::kReach; ++age) {
#pragma unroll
              for (int c = 0; c < C; ++c) pending[age - 1][c] = 0.f;
            }
          }
          step(xs.at(stage, k), dys.at(stage, k), i + k < own, i + k - reach >= lowest);
        }
      }
    }
    if (!ended && stop == count) flush();
  }

  wait_for_turn<0>();
  __syncthreads();  // the rows' memory is the sums' now
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int age = 0; age < T::kMost; ++age) shared.sums[warp][age][lane * C + c] = of_tap[age][c];
    shared.sums[warp][T::kMost][lane * C + c] = of_bias[c];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < (taps.width + 1) * kLanes * C; i += kWarps * kLanes) {
    const int row = i / (kLanes * C), column = i % (kLanes * C);
    const int64_t to = block * kLanes * C + column;
    if (to >= p.D) continue;
    const int age = row < taps.width ? row : T::kMost;
    float sum = shared.sums[0][age][column];
    for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, shared.sums[w][age][column]);
    out.workspace[(group * (taps.width + 1) + row) * p.D + to] = sum;
  }
}

// Adds the groups' sums: slices side by side, each first to last, then the slices.
__global__ void add_up(const Problem p, const Gradients out, int64_t groups) {
  __shared__ float shared[kSlices][kLanes];
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x, row = blockIdx.y;
  float sum = 0.f;
  if (channel < p.D) {
    const float* from = out.workspace + row * p.D + channel;
    const int64_t stride = (p.width + 1) * p.D;
#pragma unroll 4
    for (int64_t g = threadIdx.y; g < groups; g += kSlices) sum += from[g * stride];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || channel >= p.D) return;
  for (int i = 1; i < kSlices; ++i) sum += shared[i][threadIdx.x];
  const bool of_bias = row == p.width;
  void* const to = of_bias ? out.dbias : out.dweight;
  if (to == nullptr) return;
  const int64_t at = of_bias ? channel : channel * p.width + p.width - 1 - row;  // rows are taps by age
  if (of_bias ? p.bias.bf16 : p.weight.bf16) {
    static_cast<bf16*>(to)[at] = __float2bfloat16_rn(sum);
  } else {
    static_cast<float*>(to)[at] = sum;
  }
}

// An initial state is the inputs before token 0: its gradient comes from the first W - 1 tokens, and from the final
// state where the sequence is shorter than that.
template <class In>
__global__ void initial_states(const Problem p, const Gradients out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.sequences * p.D) return;
  const int64_t s = i / p.D, channel = i % p.D;
  const int64_t start = p.cu_seqlens[s], length = p.cu_seqlens[s + 1] - start;
  const int reach = p.width - 1;
  const Taps<0, 1> taps(p, channel);
  float before[kWidest - 1][1], dstate[kWidest - 1] = {};
#pragma unroll
  for (int age = 1; age < kWidest; ++age) {
    before[age - 1][0] = taps.has(age) ? p.initial_state[i * reach + reach - age] : 0.f;
  }
  for (int t = 0; t < reach && t < length; ++t) {
    const float now[1] = {widen(static_cast<const In*>(p.x)[(start + t) * p.x_stride + channel])};
    float g[1] = {widen(static_cast<const In*>(out.dy)[(start + t) * out.dy_stride + channel])}, sum[1];
    if (p.silu) {
      taps.convolve(now, before, sum);
      through_silu<1>(g, sum, g);
    }
    taps.push(now, before);
    // Entry k of a state is reach - k tokens before the start, so its age at token t is t + reach - k.
#pragma unroll
    for (int k = 0; k < kWidest - 1; ++k) {
#pragma unroll
      for (int age = 1; age < kWidest; ++age) {
        if (age == t + reach - k && age <= reach) dstate[k] = fmaf(taps.tap[age][0], g[0], dstate[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kWidest - 1; ++k) {
    if (k >= reach) break;
    float done = dstate[k];
    if (k >= length && out.dfinal_state != nullptr) done = __fadd_rn(done, out.dfinal_state[i * reach + k - length]);
    out.dinitial_state[i * reach + k] = done;
  }
}

struct Grid {
  int64_t blocks, span, groups;
};

template <class In, int C>
Grid grid_of(const Problem& p) {
  const int64_t blocks = ceil_div(p.D, kLanes * C), span = span_of_tiles(p, blocks, kBusyWarps, kMostTokens);
  return {blocks, span, ceil_div(p.T, span * kWarps)};
}

cudaError_t launch_add_up(const Problem& p, const Gradients& out, int64_t groups, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(p.D, kLanes)), p.width + 1);
  add_up<<<grid, dim3(kLanes, kSlices), 0, stream>>>(p, out, groups);
  return cudaGetLastError();
}

template <class In, int C, int W, bool Silu>
cudaError_t launch_tiles(const Problem& p, const Gradients& out, cudaStream_t stream) {
  const Grid grid = grid_of<In, C>(p);
  backward_tiles<In, C, W, Silu><<<static_cast<unsigned>(grid.blocks * grid.groups), kWarps * kLanes, 0, stream>>>(
      p, out, static_cast<int>(grid.span), grid.blocks);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  return launch_add_up(p, out, grid.groups, stream);
}

template <class In>
constexpr int kPiece = kPieceBytes / sizeof(In);

template <class In, bool Silu>
cudaError_t launch_width(const Problem& p, const Gradients& out, cudaStream_t stream) {
  constexpr int C = kPiece<In>;
  if (in_pieces(p.x, p.x_stride, p.D, sizeof(In), C) && in_pieces(out.dy, out.dy_stride, p.D, sizeof(In), C) &&
      in_pieces(out.dx, out.dx_stride, p.D, sizeof(In), C)) {
    switch (p.width) {
      case 2: return launch_tiles<In, C, 2, Silu>(p, out, stream);
      case 3: return launch_tiles<In, C, 3, Silu>(p, out, stream);
      case 4: return launch_tiles<In, C, 4, Silu>(p, out, stream);
    }
  }
  return launch_tiles<In, 1, 0, Silu>(p, out, stream);
}

template <class In>
cudaError_t run(const Problem& p, const Gradients& out, cudaStream_t stream) {
  if (p.D == 0) return cudaSuccess;
  if (p.T > 0) {
    const cudaError_t status = p.silu ? launch_width<In, true>(p, out, stream)
                                      : launch_width<In, false>(p, out, stream);
    if (status != cudaSuccess) return status;
  } else if (const cudaError_t status = launch_add_up(p, out, 0, stream); status != cudaSuccess) {
    return status;
  }
  if (out.dinitial_state == nullptr || p.sequences * (p.width - 1) == 0) return cudaSuccess;
  initial_states<In><<<static_cast<unsigned>(ceil_div(p.sequences * p.D, 256)), 256, 0, stream>>>(p, out);
  return cudaGetLastError();
}

}  // namespace

int64_t backward_workspace(const Problem& p) {
  const auto floats = [&](const Grid& grid) { return grid.groups * (p.width + 1) * p.D; };
  if (p.bf16) return std::max(floats(grid_of<bf16, 1>(p)), floats(grid_of<bf16, kPiece<bf16>>(p)));
  return std::max(floats(grid_of<float, 1>(p)), floats(grid_of<float, kPiece<float>>(p)));
}

cudaError_t backward(const Problem& problem, const Gradients& gradients, cudaStream_t stream) {
  return problem.bf16 ? run<bf16>(problem, gradients, stream) : run<float>(problem, gradients, stream);
}

}  // namespace mamba_lab::conv
