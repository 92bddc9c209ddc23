// The packed convolution on the GPU: what the host code (conv1d_pack.cu) asks of the passes (conv1d_pack_forward.cu,
// conv1d_pack_backward.cu). Plain pointers, so that a pass compiles without PyTorch's headers and runs without PyTorch.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mamba_lab::conv {

inline constexpr int kWidest = 8;  // LIMITS in mamba_lab/ops/_resolve.py

// A weight or bias: float32 or bfloat16, with any strides.
struct Parameter {
  const void* data = nullptr;
  bool bf16 = false;
  int64_t by_channel = 0, by_tap = 0;
};

// The arguments of both passes. What was not given is nullptr.
struct Problem {
  int64_t T, D, sequences;  // each may be 0
  int width;                // 1 to kWidest
  bool bf16;                // x, y, dy, dx; states are float32
  const void* x;            // [T, D], the columns of a row side by side
  int64_t x_stride;         // elements from row to row
  Parameter weight, bias;   // [D, width], [D] or none
  bool silu;
  const int32_t* cu_seqlens;   // [sequences + 1]
  const float* initial_state;  // [sequences, D, width - 1] or none: zeros
};

// Every entry of the results is written. They lie dense.
struct Results {
  void* y;             // [T, D]
  float* final_state;  // [sequences, D, width - 1] or nullptr
};

struct Gradients {
  const void* dy;
  int64_t dy_stride;
  const float* dfinal_state;  // [sequences, D, width - 1] or none: zeros
  void* dx;                   // [T, D], `dx_stride` elements from row to row
  int64_t dx_stride;
  void *dweight, *dbias;      // in the dtypes of weight and bias; dbias is nullptr where bias is
  float* dinitial_state;      // nullptr where initial_state is
  float* workspace;           // backward_workspace(problem) floats
};

// Queue the pass on a stream of the current device. The first error of a launch, or cudaSuccess.
cudaError_t forward(const Problem& problem, const Results& results, cudaStream_t stream);
cudaError_t backward(const Problem& problem, const Gradients& gradients, cudaStream_t stream);

// Floats that `backward` needs beside its results: partial sums.
int64_t backward_workspace(const Problem& problem);

}  // namespace mamba_lab::conv
