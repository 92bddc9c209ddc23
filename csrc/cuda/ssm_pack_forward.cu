// The forward pass of the packed selective scan: y, the final states, and a state every 32 tokens for the backward pass.

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
