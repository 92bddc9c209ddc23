// The forward pass of the packed selective scan: y, the final states, and a state every 32 tokens for the backward
// pass. What a warp does is in ssm_pack_forward.h.
//
// The ladder. Milliseconds on one H200 for packs of 4,096 / 16,384 / 65,536 tokens in 7 / 24 / 98 sequences of up to
// 2,048 (D 4096, N 16, bfloat16, softplus, bias, skip, gate, checkpoints). mamba-ssm's scan of as many tokens in one
// sequence: 0.320 / 1.486 / 5.816.
//
//   1  2.57  / 2.80  / 3.36   a thread a channel, 16 states in registers, everything read where it is needed. The
//                             longest sequence alone takes 2.5 ms: each token waits for memory.
//   2  0.251 / 0.488 / 1.896  a warp walks a sequence with 16 channels, four lanes a channel. Tiles of 16 tokens in
//                             shared memory, asked for a tile ahead; softplus and gate once for each token and
//                             channel. No barrier for a block. 94% of what shared memory and L1 can do: neighbouring
//                             lanes read different rows, so that one load touched 32 cache lines.
//   3  0.237 / 0.444 / 1.548  neighbours read the same row (8 lines); 32 channels a warp for the largest pack, 16 for
//                             the others; sums over the lanes that share a channel by sending what the other needs.
//   4  0.161 / 0.435 / 1.554  y stays in registers for a round. A store to shared memory between two tokens had held
//                             back the loads of the second one: 192 cycles a token for a warp alone, now 151. In the
//                             smallest pack one block a multiprocessor: the longest sequence has its schedulers alone.
//
// What lost, on the largest pack: 8 channels a warp (more shared memory traffic for each state) 2.82; 16 tokens
// unrolled with 32 channels (registers, instruction cache) 1.72; 5 blocks of 96 registers 1.86; staging the next tile
// between the rounds of this one 1.76; a warp that stages for a warp that scans 1.58 (0.407 on 16,384 tokens).
//
// Cost for 65,536 tokens, in milliseconds if it were all: memory 0.63 (u, delta, z, y once, a float32 state every 32
// tokens), exponentials 1.22 (16 for the decays, 1 for softplus, 1 and a reciprocal for the gate; 16 a clock and
// multiprocessor), instructions 1.06 (for each token, channel and state 5.8 in the scan, 2.4 around it), shared memory
// 0.88. Achieved: 1.55, 79% of the exponential unit, 67% of the issue slots. A polynomial instead of an exponential
// costs ten instructions: there is no room for them.

#include "ssm_pack_forward.h"
#include "ssm_pack_forward_generic.h"

#include <algorithm>

namespace mamba_lab::ssm {
namespace {

template <class In>
ForwardArguments<In> arguments(const Problem& p, const Results& results, int channels_of_block) {
  return {rows_of<In>(p.u), rows_of<In>(p.delta), rows_of<In>(p.B), rows_of<In>(p.C), rows_of<In>(p.z),
          {static_cast<In*>(results.y), p.D}, p.A, p.skip, p.delta_bias, p.initial_state, results.final_state,
          results.checkpoints, p.cu_seqlens, p.order, static_cast<int>(p.D), static_cast<int>(p.N),
          static_cast<int>((p.D + channels_of_block - 1) / channels_of_block), p.softplus};
}

template <class In, class P>
bool fits(const Problem& p) {
  const auto aligned = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * sizeof(In) % 16 == 0;
  };
  bool fit = p.N == P::kN && p.D % P::kChannels == 0;
  for (const Rows& rows : {p.u, p.delta, p.z, p.B, p.C}) fit = fit && aligned(rows.data, rows.stride);
  return fit;
}

// `alone`: one block on a multiprocessor at a time, by asking for more than half of its shared memory.
template <class In, class P>
cudaError_t launch(const Problem& p, const Results& results, cudaStream_t stream, bool alone) {
  const ForwardArguments<In> args = arguments<In>(p, results, P::kWarps * P::kChannels);
  const auto kernel = scan_forward<In, P>;
  size_t bytes = P::kWarps * sizeof(typename P::Shared);
  if (alone) {
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    bytes = std::max<size_t>(bytes, most / 2 + 1024);
  }
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(p.sequences * args.channel_blocks), P::kWarps * kWarp, bytes, stream>>>(args);
  return cudaGetLastError();
}

template <class In>
cudaError_t launch_generic(const Problem& p, const Results& results, cudaStream_t stream) {
  const ForwardArguments<In> args = arguments<In>(p, results, kWarp);
  generic_scan_forward<In><<<static_cast<unsigned>(p.sequences * args.channel_blocks), kWarp,
                             Generic::shared_bytes(p.N), stream>>>(args);
  return cudaGetLastError();
}

template <class In>
cudaError_t forward_of(const Problem& p, const Results& results, cudaStream_t stream) {
  if (p.sequences * p.D == 0) return cudaSuccess;
  using Wide = Plan<2, 4, sizeof(In) == 2 ? 3 : 2>;
  using Narrow = Plan<4, 16, 3>;
  // With little work the longest sequence sets the time: narrow warps, each with a scheduler of its own. With much, what
  // counts is instructions and shared memory for each token: wide warps.
  const int64_t work = p.T * p.D;
  const bool little = work <= int64_t{20} << 20, much = work > int64_t{96} << 20;
  if (much && fits<In, Wide>(p)) return launch<In, Wide>(p, results, stream, false);
  if (fits<In, Narrow>(p)) return launch<In, Narrow>(p, results, stream, little);
  return launch_generic<In>(p, results, stream);
}

}  // namespace

cudaError_t forward(const Problem& problem, const Results& results, cudaStream_t stream) {
  return problem.bf16 ? forward_of<BFloat16>(problem, results, stream) : forward_of<float>(problem, results, stream);
}

}  // namespace mamba_lab::ssm
