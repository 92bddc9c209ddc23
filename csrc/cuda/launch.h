// What the host code of csrc/cuda shares: rows as kernels take them, the stream and the device of a call, and how a
// failed launch reaches Python. Nothing is checked here: Python does that before the call.

#pragma once

#include <cuda_runtime.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace mamba_lab {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

// Makes a tensor's GPU the current one for as long as it lives; `stream` is PyTorch's current one there. A launch that
// fails is the one thing that throws: PyTorch turns it into a RuntimeError with CUDA's message.
class Launch {
 public:
  explicit Launch(const Tensor& on) : guard_(on.get_device_index()) {
    void* found = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(on.get_device_index(), &found));
    stream = static_cast<cudaStream_t>(found);
  }
  void check(cudaError_t status) const { STD_CUDA_CHECK(status); }

  cudaStream_t stream = nullptr;

 private:
  torch::stable::accelerator::DeviceGuard guard_;
};

inline Tensor dense(const Tensor& x) { return torch::stable::contiguous(x); }

// A copy only where the columns of a row do not lie side by side.
inline Tensor with_rows(const Tensor& x) { return x.size(1) <= 1 || x.stride(1) == 1 ? x : dense(x); }

inline Optional dense(const Optional& x) { return x ? Optional(dense(*x)) : x; }

inline Optional with_rows(const Optional& x) { return x ? Optional(with_rows(*x)) : x; }

inline const void* pointer(const Tensor& x) { return x.const_data_ptr(); }

inline const void* pointer(const Optional& x) { return x ? x->const_data_ptr() : nullptr; }

inline const float* floats(const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); }

inline const float* floats(const Optional& x) { return x ? floats(*x) : nullptr; }

inline float* written_floats(const Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }

inline int64_t row_stride(const Optional& x) { return x ? x->stride(0) : 0; }

// An absent result is a tensor of size 0.
inline Tensor absent(const Tensor& like) { return torch::stable::new_empty(like, {0}); }

inline Tensor like(const Optional& x, const Tensor& u) {
  return x ? torch::stable::new_empty(*x, x->sizes()) : absent(u);
}

}  // namespace mamba_lab
