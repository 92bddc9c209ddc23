// What the convolution's forward and backward pass share: a call's arguments, the staging of rows, one token's sum.
// Part of conv1d_pack.cpp, in a file of its own: everything has internal linkage.

#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "cpu/dtypes.h"

namespace mamba_lab {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kWidest = 256;  // WIDEST in mamba_lab/ops/conv1d_pack.py

// The code is compiled for the usual widths, 2 to 4, and for any width up to 8 and up to 256 that is known at run time.
constexpr int kUpTo8 = 0, kUpToWidest = -1;

template <int W>
constexpr int kTile = W == kUpToWidest ? 256 : 64;  // tokens
template <int W>
constexpr int kReach = (W > 0 ? W : W == kUpTo8 ? 8 : kWidest) - 1;

Tensor with_dense_rows(const Tensor& t) {
  return t.size(1) <= 1 || t.stride(1) == 1 ? t : torch::stable::contiguous(t);
}

Tensor new_tensor(const Tensor& like, std::vector<int64_t> sizes, ScalarType dtype) {
  return torch::stable::new_empty(like, sizes, dtype);
}

// A state [S, D, W - 1] with any strides, or none: then it reads as zeros.
template <typename Real>
struct State {
  const Real* data = nullptr;
  int64_t by_sequence = 0, by_channel = 0, by_age = 0;

  explicit State(const std::optional<Tensor>& t) {
    if (!t.has_value() || t->numel() == 0) return;
    data = static_cast<const Real*>(t->const_data_ptr());
    by_sequence = t->stride(0), by_channel = t->stride(1), by_age = t->stride(2);
  }
  Real at(int64_t s, int64_t channel, int64_t age) const {
    return data == nullptr ? Real(0) : data[s * by_sequence + channel * by_channel + age * by_age];
  }
};

// What all tasks of a call share.
template <typename Stored>
struct Call {
  using Real = Wide<Stored>;
  const Stored* x;
  int64_t x_stride;
  const int32_t* cu_seqlens;
  int64_t tokens, channels, sequences, blocks;
  int width;
  bool silu;
  State<Real> initial;
  Tensor taps;  // [blocks, width + 1, kBlock]: the weight, tap by tap, then the bias; zero beyond the last channel

  int channels_in(int64_t block) const {
    return static_cast<int>(std::min<int64_t>(kBlock<Real>, channels - block * kBlock<Real>));
  }
  const Real* taps_of(int64_t block) const {
    return static_cast<const Real*>(taps.const_data_ptr()) + block * (width + 1) * kBlock<Real>;
  }
  // The sequence that holds a token; the last one where empty sequences start there too.
  int64_t sequence_at(int64_t token) const {
    return std::upper_bound(cu_seqlens, cu_seqlens + sequences + 1, token) - cu_seqlens - 1;
  }
};

// An entry of a weight or bias, whose dtype need not be the rows'.
double read_parameter(const void* data, ScalarType dtype, int64_t place) {
  switch (dtype) {
    case ScalarType::Double: return static_cast<const double*>(data)[place];
    case ScalarType::Float: return static_cast<const float*>(data)[place];
    default: return widen(static_cast<const BFloat16*>(data)[place]);
  }
}

void write_parameter(double value, void* data, ScalarType dtype, int64_t place) {
  switch (dtype) {
    case ScalarType::Double: static_cast<double*>(data)[place] = value; break;
    case ScalarType::Float: static_cast<float*>(data)[place] = static_cast<float>(value); break;
    default: narrow(static_cast<float>(value), static_cast<BFloat16*>(data) + place);
  }
}

template <typename Stored>
Call<Stored> make_call(
    const Tensor& x,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    bool silu,
    const Tensor& cu_seqlens,
    const std::optional<Tensor>& initial_state) {
  using Real = Wide<Stored>;
  constexpr int B = kBlock<Real>;
  const int width = static_cast<int>(weight.size(1));
  const int64_t channels = x.size(1), blocks = (channels + B - 1) / B;
  const ScalarType wide = sizeof(Real) == 8 ? ScalarType::Double : ScalarType::Float;
  Tensor taps = new_tensor(x, {blocks, width + 1, B}, wide);
  Real* tap = static_cast<Real*>(taps.mutable_data_ptr());
  std::fill(tap, tap + blocks * (width + 1) * B, Real(0));
  const auto fill = [&](const Tensor& from, int first, int count, int64_t by_channel, int64_t by_tap) {
    const void* data = from.const_data_ptr();
    const ScalarType dtype = from.scalar_type();
    for (int64_t d = 0; d < channels; ++d) {
      Real* at = tap + (d / B * (width + 1) + first) * B + d % B;
      for (int k = 0; k < count; ++k) {
        at[k * B] = static_cast<Real>(read_parameter(data, dtype, d * by_channel + k * by_tap));
      }
    }
  };
  fill(weight, 0, width, weight.stride(0), weight.stride(1));
  if (bias.has_value()) fill(*bias, width, 1, bias->stride(0), 0);
  return {
      static_cast<const Stored*>(x.const_data_ptr()),
      x.stride(0),
      cu_seqlens.const_data_ptr<int32_t>(),
      x.size(0),
      channels,
      cu_seqlens.size(0) - 1,
      blocks,
      width,
      silu,
      State<Real>(initial_state),
      taps};
}

// Rows first .. last - 1 of a sequence, as far as one block of channels goes; negative rows are the initial state's.
template <typename Stored, typename Real>
void stage_rows(const Call<Stored>& call, int64_t s, int64_t block, int64_t first, int64_t last, Real* rows) {
  constexpr int B = kBlock<Real>;
  const int64_t start = call.cu_seqlens[s], channel = block * B;
  const int n = call.channels_in(block);
  for (int64_t t = first; t < last; ++t, rows += B) {
    if (t >= 0) {
      load_block(call.x + (start + t) * call.x_stride + channel, n, rows);
    } else if (call.initial.data == nullptr) {
      std::fill(rows, rows + B, Real(0));
    } else {
      for (int j = 0; j < B; ++j) rows[j] = j < n ? call.initial.at(s, channel + j, call.width - 1 + t) : Real(0);
    }
  }
}

// One token before the activation: `rows` are the W rows that it looks at, oldest first.
template <int W, typename Real>
inline void convolve(const Real* __restrict taps, const Real* __restrict rows, int width, Real* __restrict out) {
  constexpr int B = kBlock<Real>;
  if constexpr (W > 0) {
    for (int j = 0; j < B; ++j) {
      Real sum = taps[W * B + j];
      for (int k = 0; k < W; ++k) sum += taps[k * B + j] * rows[k * B + j];
      out[j] = sum;
    }
  } else {
    std::memcpy(out, taps + width * B, sizeof(Real) * B);
    for (int k = 0; k < width; ++k) {
      for (int j = 0; j < B; ++j) out[j] += taps[k * B + j] * rows[k * B + j];
    }
  }
}

// Calls `body(s, start, stop, from, to)` for what each sequence has in a tile: its tokens from .. to - 1 of the pack.
template <typename Stored, typename Body>
void each_sequence_in(const Call<Stored>& call, int64_t begin, int64_t end, const Body& body) {
  for (int64_t s = call.sequence_at(begin); s < call.sequences && call.cu_seqlens[s] < end; ++s) {
    const int64_t start = call.cu_seqlens[s], stop = call.cu_seqlens[s + 1];
    if (start < stop) body(s, start, stop, std::max(start, begin), std::min(stop, end));
  }
}

}  // namespace
}  // namespace mamba_lab
