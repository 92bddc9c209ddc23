// The forward pass of the packed selective scan: y, the final states, and a state every 32 tokens for the backward pass.

#include "ssm_pack_forward.h"

namespace mamba_lab::ssm {
namespace {

template <class P>
constexpr int kParkedBytes = P::kPer * P::kStates * kWarp * sizeof(float);

template <class In>
bool can_run_fast(const Problem& p, int channels) {
  const auto aligned = [](const void* data, int64_t stride, size_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride * sizeof(In) % bytes == 0;
  };
  bool fast = p.N == 16 && p.D % channels == 0;
  for (const Rows& rows : {p.u, p.delta, p.z}) fast = fast && aligned(rows.data, rows.stride, 16);
  for (const Rows& rows : {p.B, p.C}) fast = fast && aligned(rows.data, rows.stride, 16);
  return fast;
}

template <class In, class P, bool kFast>
auto kernel_of() {
  if constexpr (kFast) {
    return scan_forward<In, P>;
  } else {
    return generic_scan_forward<In, P>;
  }
}

template <class In, class P, bool kFast>
cudaError_t launch(const Problem& p, const Results& results, cudaStream_t stream) {
  const int channels = P::kWarps * P::kChannels, pieces = static_cast<int>((p.N + P::kPiece - 1) / P::kPiece);
  const ForwardArguments<In> args{
      rows_of<In>(p.u), rows_of<In>(p.delta), rows_of<In>(p.B), rows_of<In>(p.C), rows_of<In>(p.z),
      {static_cast<In*>(results.y), p.D}, p.A, p.skip, p.delta_bias, p.initial_state, results.final_state,
      results.checkpoints, p.cu_seqlens, p.order, static_cast<int>(p.D), static_cast<int>(p.N),
      static_cast<int>((p.D + channels - 1) / channels), p.softplus};
  const int64_t blocks = p.sequences * args.channel_blocks;
  if (blocks == 0) return cudaSuccess;
  const size_t bytes = P::kWarps * (sizeof(typename P::Shared) + (kFast || pieces == 1 ? 0 : pieces * kParkedBytes<P>));
  const auto kernel = kernel_of<In, P, kFast>();
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(blocks), P::kWarps * kWarp, bytes, stream>>>(args);
  return cudaGetLastError();
}

using Fast = Plan<2, 4, 4, 4>;
using General = Plan<4, 4, 2, 4>;

template <class In>
cudaError_t forward_of(const Problem& p, const Results& results, cudaStream_t stream) {
  return can_run_fast<In>(p, Fast::kChannels) ? launch<In, Fast, true>(p, results, stream)
                                              : launch<In, General, false>(p, results, stream);
}

}  // namespace

cudaError_t forward(const Problem& problem, const Results& results, cudaStream_t stream) {
  return problem.bf16 ? forward_of<BFloat16>(problem, results, stream) : forward_of<float>(problem, results, stream);
}

}  // namespace mamba_lab::ssm
