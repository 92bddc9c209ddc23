// The packed selective scan on the GPU as PyTorch calls it: results are allocated here, the passes are in
// ssm_pack_forward.cu and ssm_pack_backward.cu. What the arguments mean: mamba_lab/ops/ssm_pack.py; the specification:
// mamba_lab/ops/reference.py.

#include "launch.h"
#include "ssm_pack_launch.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

namespace mamba_lab {
namespace {

// The inputs, held so that copies made of them live as long as the pointers to them.
struct Inputs {
  Tensor u, delta, A, B, C;
  Optional D, z, bias, initial;

  Inputs(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C, const Optional& D,
         const Optional& z, const Optional& bias, const Optional& initial)
      : u(with_rows(u)), delta(with_rows(delta)), A(dense(A)), B(with_rows(B)), C(with_rows(C)), D(dense(D)),
        z(with_rows(z)), bias(dense(bias)), initial(dense(initial)) {}

  ssm::Problem problem(bool softplus, const Tensor& cu_seqlens, const Tensor& order) const {
    const auto rows = [](const Optional& x) { return ssm::Rows{pointer(x), row_stride(x)}; };
    return {u.size(0), u.size(1), A.size(1), cu_seqlens.size(0) - 1, u.scalar_type() == ScalarType::BFloat16,
            rows(u), rows(delta), rows(B), rows(C), rows(z), floats(A), floats(D), floats(bias), softplus,
            static_cast<const int32_t*>(pointer(cu_seqlens)), static_cast<const int32_t*>(pointer(order)),
            floats(initial)};
  }
};

std::tuple<Tensor, Tensor, Tensor> forward(
    const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C, const Optional& D,
    const Optional& z, const Optional& delta_bias, bool softplus, const Tensor& cu_seqlens, const Tensor& order,
    const Optional& initial_state, bool return_final_state) {
  const Launch launch(u);
  const Inputs in(u, delta, A, B, C, D, z, delta_bias, initial_state);
  const ssm::Problem p = in.problem(softplus, cu_seqlens, order);
  const Tensor y = torch::stable::new_empty(in.u, {p.T, p.D});
  const Tensor final_state =
      return_final_state ? torch::stable::new_empty(in.A, {p.sequences, p.D, p.N}) : absent(in.A);
  const Tensor checkpoints =
      torch::stable::new_empty(in.A, {p.T / ssm::kCheckpointTokens + p.sequences, p.D, p.N});
  const ssm::Results results{y.mutable_data_ptr(), return_final_state ? written_floats(final_state) : nullptr,
                             written_floats(checkpoints)};
  launch.check(ssm::forward(p, results, launch.stream));
  return {y, final_state, checkpoints};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// `dz` has rows that may lie apart. `y` is written where it is wanted.
Gradients run_backward(
    const Launch& launch, const Inputs& in, const Tensor& dy_given, const Optional& dfinal_state, bool softplus,
    const Tensor& cu_seqlens, const Tensor& order, const Tensor& checkpoints, const Tensor& dz, int64_t dz_stride,
    const Optional& y) {
  const Tensor dy = with_rows(dy_given);
  const Optional dfinal = dense(dfinal_state);
  const ssm::Problem p = in.problem(softplus, cu_seqlens, order);
  const Tensor du = like(in.u, in.u), ddelta = like(in.delta, in.u), dA = like(in.A, in.u), dB = like(in.B, in.u);
  const Tensor dC = like(in.C, in.u), dD = like(in.D, in.u), dbias = like(in.bias, in.u);
  const Tensor dinitial = like(in.initial, in.u);
  // PyTorch's memory for CUDA starts at multiples of 512 bytes.
  const Tensor workspace = torch::stable::new_empty(in.u, {ssm::backward_workspace(p)}, ScalarType::Byte);
  const auto floats_if = [](bool given, const Tensor& x) { return given ? written_floats(x) : nullptr; };
  const ssm::Gradients gradients{
      {pointer(dy), dy.stride(0)}, floats(dfinal), floats(checkpoints), du.mutable_data_ptr(),
      ddelta.mutable_data_ptr(), dB.mutable_data_ptr(), dC.mutable_data_ptr(),
      in.z ? dz.mutable_data_ptr() : nullptr, written_floats(dA), floats_if(in.D.has_value(), dD),
      floats_if(in.bias.has_value(), dbias), floats_if(in.initial.has_value(), dinitial),
      workspace.mutable_data_ptr(), dz_stride, y ? y->mutable_data_ptr() : nullptr};
  launch.check(ssm::backward(p, gradients, launch.stream));
  return {du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial};
}

Gradients backward(
    const Tensor& dy, const Optional& dfinal_state, const Tensor& u, const Tensor& delta, const Tensor& A,
    const Tensor& B, const Tensor& C, const Optional& D, const Optional& z, const Optional& delta_bias, bool softplus,
    const Tensor& cu_seqlens, const Tensor& order, const Optional& initial_state, const Tensor& checkpoints) {
  const Launch launch(u);
  const Inputs in(u, delta, A, B, C, D, z, delta_bias, initial_state);
  const Tensor dz = like(in.z, u);
  return run_backward(launch, in, dy, dfinal_state, softplus, cu_seqlens, order, checkpoints, dz, u.size(1), {});
}

// For mamba_inner, which keeps neither y nor the gradients of x and z apart: dz is the second half of a fresh dxz
// [T, 2 D], whose first half stays unwritten, and y is given back once more. z is there, initial_state is not.
Gradients backward_inner(
    const Tensor& dy, const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
    const Optional& D, const Tensor& z, const Optional& delta_bias, bool softplus, const Tensor& cu_seqlens,
    const Tensor& order, const Tensor& checkpoints) {
  const Launch launch(u);
  const Inputs in(u, delta, A, B, C, D, z, delta_bias, {});
  const int64_t T = u.size(0), channels = u.size(1);
  Tensor dxz = torch::stable::new_empty(u, {T, 2 * channels});
  const Tensor y = torch::stable::new_empty(u, {T, channels});
  const Tensor dz = torch::stable::narrow(dxz, 1, channels, channels);
  auto found = run_backward(launch, in, dy, {}, softplus, cu_seqlens, order, checkpoints, dz, 2 * channels, y);
  std::get<6>(found) = dxz;
  std::get<8>(found) = y;
  return found;
}

}  // namespace
}  // namespace mamba_lab

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CUDA, m) {
  m.impl("ssm_pack_cuda", TORCH_BOX(&mamba_lab::forward));
  m.impl("ssm_pack_cuda_backward", TORCH_BOX(&mamba_lab::backward));
  m.impl("ssm_pack_cuda_backward_inner", TORCH_BOX(&mamba_lab::backward_inner));
}
