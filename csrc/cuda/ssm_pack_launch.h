// The packed selective scan on the GPU: what the host code (ssm_pack.cu) asks of the passes (ssm_pack_forward.cu,
// ssm_pack_backward.cu). Plain pointers, so that a pass compiles without PyTorch's headers and runs without PyTorch.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mamba_lab::ssm {

// The state is kept every so many tokens, counted from a sequence's start (CHECKPOINT_TOKENS in _schemas.py).
inline constexpr int kCheckpointTokens = 32;

// A matrix with one row a token: `stride` elements from row to row, the columns of a row side by side. Rows start at
// addresses of any alignment that their elements have.
struct Rows {
  const void* data = nullptr;  // bfloat16 or float32, as Problem::bf16 says
  int64_t stride = 0;
};

// The arguments of both passes. What was not given is nullptr.
struct Problem {
  int64_t T, D, N, sequences;  // each may be 0
  bool bf16;                   // u, delta, B, C, z, y, dy and their gradients; everything else is float32
  Rows u, delta, B, C, z;      // [T, D], [T, D], [T, N], [T, N], [T, D] or none
  const float* A;              // [D, N]
  const float* skip;           // D of the scan, [D] or none
  const float* delta_bias;     // [D] or none
  bool softplus;
  const int32_t* cu_seqlens;   // [sequences + 1]
  const int32_t* order;        // [sequences], the longest first
  const float* initial_state;  // [sequences, D, N] or none: zeros
};

// Results lie dense, and every entry is written. checkpoints has room for T / kCheckpointTokens + sequences slots of
// D * N floats; sequence s owns those from cu_seqlens[s] / kCheckpointTokens + s on. Slot k of a sequence is its state
// before token k * kCheckpointTokens; how D * N numbers lie inside a slot is between the two passes.
struct Results {
  void* y;             // [T, D]
  float* final_state;  // [sequences, D, N] or nullptr
  float* checkpoints;
};

struct Gradients {
  Rows dy;
  const float* dfinal_state;  // [sequences, D, N] or none: zeros
  const float* checkpoints;
  void *du, *ddelta, *dB, *dC;       // dense [T, D], [T, D], [T, N], [T, N]
  void* dz;                          // dense [T, D], nullptr where z is
  float* dA;                         // [D, N]
  float *dD, *ddelta_bias;           // [D], nullptr where the input is
  float* dinitial_state;             // [sequences, D, N], nullptr where initial_state is
  void* workspace;                   // backward_workspace(problem) bytes from a 256-byte edge on, never initialised
  int64_t dz_stride = 0;             // elements from row to row of dz where its rows lie apart; 0: dense
  void* y = nullptr;                 // dense [T, D] or none: y once more, for a caller that did not keep it; only with z
};

// Queue the pass on a stream of the current device. The first error of a launch, or cudaSuccess.
cudaError_t forward(const Problem& problem, const Results& results, cudaStream_t stream);
cudaError_t backward(const Problem& problem, const Gradients& gradients, cudaStream_t stream);

// Bytes that `backward` needs beside its results: partial sums. From sizes alone: cu_seqlens is not readable here.
int64_t backward_workspace(const Problem& problem);

}  // namespace mamba_lab::ssm
