// The packed convolution on the GPU as PyTorch calls it: results are allocated here, the passes are in
// conv1d_pack_forward.cu and conv1d_pack_backward.cu. What the arguments mean: mamba_lab/ops/conv1d_pack.py; the
// specification: mamba_lab/ops/reference.py.

#include "conv1d_pack_launch.h"
#include "launch.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

namespace mamba_lab {
namespace {

conv::Parameter parameter(const Optional& p) {
  if (!p) return {};
  return {pointer(p), p->scalar_type() == ScalarType::BFloat16, p->stride(0), p->dim() > 1 ? p->stride(1) : 0};
}

conv::Problem problem(const Tensor& x, const Tensor& weight, const Optional& bias, bool silu, const Tensor& cu_seqlens,
                      const Optional& initial_state) {
  return {x.size(0), x.size(1), cu_seqlens.size(0) - 1, static_cast<int>(weight.size(1)),
          x.scalar_type() == ScalarType::BFloat16, pointer(x), x.stride(0), parameter(weight), parameter(bias), silu,
          static_cast<const int32_t*>(pointer(cu_seqlens)), floats(initial_state)};
}

// Tiles are all of one size, so the order of the sequences is not needed.
std::tuple<Tensor, Tensor> forward(
    const Tensor& x_given, const Tensor& weight, const Optional& bias, bool silu, const Tensor& cu_seqlens,
    const Tensor& /*order*/, const Optional& initial_state, bool return_final_state) {
  const Launch launch(x_given);
  const Tensor x = with_rows(x_given);
  const Optional initial = dense(initial_state);
  const conv::Problem p = problem(x, weight, bias, silu, cu_seqlens, initial);
  const Tensor y = torch::stable::new_empty(x, {p.T, p.D});
  const Tensor final_state =
      return_final_state ? torch::stable::new_empty(x, {p.sequences, p.D, p.width - 1}, ScalarType::Float)
                         : torch::stable::new_empty(x, {0}, ScalarType::Float);
  const conv::Results results{y.mutable_data_ptr(), return_final_state ? written_floats(final_state) : nullptr};
  launch.check(conv::forward(p, results, launch.stream));
  return {y, final_state};
}

// Everything but dx, which is written where the caller says: its rows may lie apart.
std::tuple<Tensor, Tensor, Tensor> backward_into(
    const Tensor& dy_given, const Optional& dfinal_state, const Tensor& x_given, const Tensor& weight,
    const Optional& bias, bool silu, const Tensor& cu_seqlens, const Tensor& /*order*/, const Optional& initial_state,
    const Tensor& dx) {
  const Launch launch(x_given);
  const Tensor x = with_rows(x_given), dy = with_rows(dy_given);
  const Optional initial = dense(initial_state), dfinal = dense(dfinal_state);
  const conv::Problem p = problem(x, weight, bias, silu, cu_seqlens, initial);
  const Tensor dweight = torch::stable::new_empty(weight, {p.D, p.width}), dbias = like(bias, x);
  const Tensor dinitial = like(initial, x);
  const Tensor workspace = torch::stable::new_empty(x, {conv::backward_workspace(p)}, ScalarType::Float);
  const conv::Gradients gradients{
      pointer(dy), dy.stride(0), floats(dfinal), dx.mutable_data_ptr(), dx.stride(0), dweight.mutable_data_ptr(),
      bias ? dbias.mutable_data_ptr() : nullptr, initial ? written_floats(dinitial) : nullptr,
      written_floats(workspace)};
  launch.check(conv::backward(p, gradients, launch.stream));
  return {dweight, dbias, dinitial};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& dy, const Optional& dfinal_state, const Tensor& x, const Tensor& weight, const Optional& bias,
    bool silu, const Tensor& cu_seqlens, const Tensor& order, const Optional& initial_state) {
  const Tensor dx = torch::stable::new_empty(x, {x.size(0), x.size(1)});
  const auto [dweight, dbias, dinitial] =
      backward_into(dy, dfinal_state, x, weight, bias, silu, cu_seqlens, order, initial_state, dx);
  return {dx, dweight, dbias, dinitial};
}

}  // namespace
}  // namespace mamba_lab

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CUDA, m) {
  m.impl("conv1d_pack_cuda", TORCH_BOX(&mamba_lab::forward));
  m.impl("conv1d_pack_cuda_backward", TORCH_BOX(&mamba_lab::backward));
  m.impl("conv1d_pack_cuda_backward_into", TORCH_BOX(&mamba_lab::backward_into));
}
