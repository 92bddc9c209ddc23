// The causal convolution of every channel, stopped at each sequence's start. The specification is
// mamba_lab/ops/reference.py; schemas and gradients are registered in mamba_lab/ops/_conv1d_ops.py.
//
// The tokens are cut into tiles of fixed size and the channels into blocks of 256 bytes. A tile and a block are one
// task, whatever sequences lie in it. A task copies the rows that its tokens look back on (or the initial state, or
// zeros) into a buffer; after that there are no boundaries left to think of. An output's bits depend on its own window
// only, so a sequence in a pack gives what it gives alone. The weight's gradient is one partial sum per tile, and the
// partial sums are added in the order of the tiles: the same bits with any number of threads.
//
// Nothing here throws and nothing is checked: mamba_lab/ops/conv1d_pack.py has done that.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cpu/conv1d_call.h"
#include "cpu/exp.h"

namespace mamba_lab {
namespace {

template <int W, typename Stored>
void forward_task(const Call<Stored>& call, int64_t tile, int64_t block, Stored* y) {
  using Real = Wide<Stored>;
  constexpr int B = kBlock<Real>;
  const int n = call.channels_in(block), width = W > 0 ? W : call.width;
  alignas(64) Real rows[(kTile<W> + kReach<W>)*B];
  alignas(64) Real taps[(kReach<W> + 2) * B];
  alignas(64) Real out[B];
  std::memcpy(taps, call.taps_of(block), sizeof(Real) * (width + 1) * B);
  const int64_t begin = tile * kTile<W>, end = std::min(call.tokens, begin + kTile<W>);
  each_sequence_in(call, begin, end, [&](int64_t s, int64_t start, int64_t, int64_t from, int64_t to) {
    stage_rows(call, s, block, from - start - (width - 1), to - start, rows);
    for (int64_t t = from; t < to; ++t) {
      convolve<W>(taps, rows + (t - from) * B, width, out);
      if (call.silu) {
        for (int j = 0; j < B; ++j) out[j] *= sigmoid(out[j]).value;
      }
      store_block(out, n, y + t * call.channels + block * B);
    }
  });
}

// What the backward tasks write and read besides the call.
template <typename Stored>
struct Gradients {
  using Real = Wide<Stored>;
  const Stored* dy;
  int64_t dy_stride;
  State<Real> dfinal;
  Stored* dx;
  Real* dinitial;  // [S, D, W - 1], or null
  Real* partial;   // [tiles, blocks, width + 1, kBlock], weight and bias
};

template <int W, typename Stored>
void backward_task(const Call<Stored>& call, const Gradients<Stored>& grad, int64_t tile, int64_t block) {
  using Real = Wide<Stored>;
  constexpr int B = kBlock<Real>;
  const int n = call.channels_in(block), width = W > 0 ? W : call.width, reach = width - 1;
  const int64_t channel = block * B;
  alignas(64) Real rows[(kTile<W> + 2 * kReach<W>)*B];
  alignas(64) Real gs[(kTile<W> + kReach<W>)*B];  // gradients before the activation
  alignas(64) Real taps[(kReach<W> + 2) * B];
  alignas(64) Real sums[(kReach<W> + 2) * B];
  alignas(64) Real out[B];
  std::memcpy(taps, call.taps_of(block), sizeof(Real) * (width + 1) * B);
  std::fill(sums, sums + (width + 1) * B, Real(0));
  const int64_t begin = tile * kTile<W>, end = std::min(call.tokens, begin + kTile<W>);
  each_sequence_in(call, begin, end, [&](int64_t s, int64_t start, int64_t stop, int64_t from, int64_t to) {
    // A token's input acts on the W - 1 tokens after it, so their gradients are needed too; past the end is nothing.
    const int64_t last = std::min(to + reach, stop);
    stage_rows(call, s, block, from - start - reach, last - start, rows);
    for (int64_t t = from; t < last; ++t) {
      Real* g = gs + (t - from) * B;
      load_block(grad.dy + t * grad.dy_stride + channel, n, g);
      if (call.silu) {
        convolve<W>(taps, rows + (t - from) * B, width, out);
        for (int j = 0; j < B; ++j) {
          const Sigmoid<Real> gate = sigmoid(out[j]);
          g[j] *= gate.value * (Real(1) + out[j] * gate.rest);
        }
      }
    }
    std::fill(gs + (last - from) * B, gs + (to + reach - from) * B, Real(0));

    for (int64_t t = from; t < to; ++t) {
      const Real* g = gs + (t - from) * B;
      const Real* row = rows + (t - from) * B;
      for (int k = 0; k < width; ++k) {
        for (int j = 0; j < B; ++j) sums[k * B + j] += g[j] * row[k * B + j];
      }
      for (int j = 0; j < B; ++j) sums[width * B + j] += g[j];
    }

    // The gradient of an input (or of a state's entry, at t < start) that token t + k reads through tap W - 1 - k.
    const auto input_gradient = [&](int64_t t, int first_k) {
      for (int j = 0; j < B; ++j) {
        Real sum = 0;
        if (grad.dfinal.data != nullptr && t >= stop - reach && j < n) {
          sum = grad.dfinal.at(s, channel + j, t - (stop - reach));
        }
        out[j] = sum;
      }
      for (int k = first_k; k < width; ++k) {
        const Real* g = gs + (t - from + k) * B;
        for (int j = 0; j < B; ++j) out[j] += taps[(width - 1 - k) * B + j] * g[j];
      }
    };
    for (int64_t t = from; t < to; ++t) {
      input_gradient(t, 0);
      store_block(out, n, grad.dx + t * call.channels + channel);
    }
    if (grad.dinitial != nullptr && from == start) {
      for (int i = 0; i < reach; ++i) {
        input_gradient(start - reach + i, reach - i);
        for (int j = 0; j < n; ++j) grad.dinitial[(s * call.channels + channel + j) * reach + i] = out[j];
      }
    }
  });
  std::memcpy(grad.partial + (tile * call.blocks + block) * (width + 1) * B, sums, sizeof(Real) * (width + 1) * B);
}

// Calls `run(tile, block)` for every task. Neighbouring tasks share their tokens' rows.
template <int W, typename Stored, typename Run>
void each_task(const Call<Stored>& call, const Run& run) {
  const int64_t tiles = (call.tokens + kTile<W> - 1) / kTile<W>;
  torch::stable::parallel_for(0, tiles * call.blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) run(task / call.blocks, task % call.blocks);
  });
}

// Calls `f` with the width as a constant, or with what stands for it.
template <typename F>
void with_width(int width, const F& f) {
  switch (width) {
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    default: break;
  }
  if (width <= 8) return f(std::integral_constant<int, kUpTo8>{});
  f(std::integral_constant<int, kUpToWidest>{});
}

// Calls `f` with a value of the type that rows are stored in.
template <typename F>
void with_stored(ScalarType dtype, const F& f) {
  switch (dtype) {
    case ScalarType::Double: f(double{}); break;
    case ScalarType::Float: f(float{}); break;
    default: f(BFloat16{});
  }
}

// The last W - 1 inputs of each sequence, reaching into its initial state where it is shorter.
template <typename Stored, typename Real>
void write_final_state(const Call<Stored>& call, Real* final_state) {
  const int64_t reach = call.width - 1;
  torch::stable::parallel_for(0, call.sequences, 8, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t start = call.cu_seqlens[s], length = call.cu_seqlens[s + 1] - start;
      for (int64_t i = 0; i < reach; ++i) {
        const int64_t t = length - reach + i;
        Real* to = final_state + s * call.channels * reach + i;
        for (int64_t d = 0; d < call.channels; ++d, to += reach) {
          *to = t >= 0 ? static_cast<Real>(widen(call.x[(start + t) * call.x_stride + d]))
                       : call.initial.at(s, d, t + reach);
        }
      }
    }
  });
}

std::tuple<Tensor, Tensor> conv1d_pack(
    const Tensor& x_given,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    bool silu,
    const Tensor& cu_seqlens,
    const Tensor& /*order*/,
    const std::optional<Tensor>& initial_state,
    bool return_final_state) {
  const Tensor x = with_dense_rows(x_given);
  const ScalarType dtype = x.scalar_type();
  const ScalarType wide = dtype == ScalarType::Double ? dtype : ScalarType::Float;
  Tensor y = new_tensor(x, {x.size(0), x.size(1)}, dtype);
  Tensor final_state = return_final_state
      ? new_tensor(x, {cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1}, wide)
      : new_tensor(x, {0}, wide);
  with_stored(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    const auto call = make_call<Stored>(x, weight, bias, silu, cu_seqlens, initial_state);
    Stored* out = static_cast<Stored*>(y.mutable_data_ptr());
    with_width(call.width, [&](auto width) {
      each_task<width.value>(
          call, [&](int64_t tile, int64_t block) { forward_task<width.value>(call, tile, block, out); });
    });
    if (return_final_state) write_final_state(call, static_cast<Wide<Stored>*>(final_state.mutable_data_ptr()));
  });
  return {y, final_state};
}

// Adds the tiles' partial sums, first to last.
template <typename Stored>
void reduce_parameters(
    const Call<Stored>& call,
    const Wide<Stored>* partial,
    int64_t tiles,
    const Tensor& dweight,
    const std::optional<Tensor>& dbias) {
  using Real = Wide<Stored>;
  constexpr int B = kBlock<Real>;
  const int width = call.width;
  void* const to_weight = dweight.mutable_data_ptr();
  void* const to_bias = dbias.has_value() ? dbias->mutable_data_ptr() : nullptr;
  const ScalarType weight_dtype = dweight.scalar_type();
  const ScalarType bias_dtype = dbias.has_value() ? dbias->scalar_type() : weight_dtype;
  torch::stable::parallel_for(0, call.blocks * (width + 1), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task / (width + 1), k = task % (width + 1);
      double sums[B] = {};
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const Real* from = partial + ((tile * call.blocks + block) * (width + 1) + k) * B;
        for (int j = 0; j < B; ++j) sums[j] += from[j];
      }
      for (int j = 0; j < call.channels_in(block); ++j) {
        const int64_t d = block * B + j;
        if (k < width) {
          write_parameter(sums[j], to_weight, weight_dtype, d * width + k);
        } else if (to_bias != nullptr) {
          write_parameter(sums[j], to_bias, bias_dtype, d);
        }
      }
    }
  });
}

// An empty sequence hands its state through, and so its gradient.
template <typename Stored>
void pass_empty_sequences(const Call<Stored>& call, const Gradients<Stored>& grad) {
  const int64_t reach = call.width - 1;
  for (int64_t s = 0; s < call.sequences; ++s) {
    if (call.cu_seqlens[s] != call.cu_seqlens[s + 1]) continue;
    for (int64_t d = 0; d < call.channels; ++d) {
      for (int64_t i = 0; i < reach; ++i) grad.dinitial[(s * call.channels + d) * reach + i] = grad.dfinal.at(s, d, i);
    }
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> conv1d_pack_backward(
    const Tensor& dy_given,
    const std::optional<Tensor>& dfinal_state,
    const Tensor& x_given,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    bool silu,
    const Tensor& cu_seqlens,
    const Tensor& /*order*/,
    const std::optional<Tensor>& initial_state) {
  const Tensor x = with_dense_rows(x_given), dy = with_dense_rows(dy_given);
  const ScalarType dtype = x.scalar_type();
  const ScalarType wide = dtype == ScalarType::Double ? dtype : ScalarType::Float;
  const int64_t channels = x.size(1), reach = weight.size(1) - 1;
  Tensor dx = new_tensor(x, {x.size(0), channels}, dtype);
  Tensor dweight = new_tensor(weight, {channels, weight.size(1)}, weight.scalar_type());
  Tensor dbias = bias.has_value() ? new_tensor(*bias, {channels}, bias->scalar_type()) : new_tensor(x, {0}, dtype);
  Tensor dinitial = initial_state.has_value() ? new_tensor(x, {cu_seqlens.size(0) - 1, channels, reach}, wide)
                                              : new_tensor(x, {0}, dtype);
  with_stored(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    using Real = Wide<Stored>;
    const auto call = make_call<Stored>(x, weight, bias, silu, cu_seqlens, initial_state);
    with_width(call.width, [&](auto width) {
      constexpr int W = width.value;
      const int64_t tiles = (call.tokens + kTile<W> - 1) / kTile<W>;
      Tensor partial = new_tensor(x, {tiles, call.blocks, call.width + 1, kBlock<Real>}, wide);
      const Gradients<Stored> grad{
          static_cast<const Stored*>(dy.const_data_ptr()),
          dy.stride(0),
          State<Real>(dfinal_state),
          static_cast<Stored*>(dx.mutable_data_ptr()),
          initial_state.has_value() ? static_cast<Real*>(dinitial.mutable_data_ptr()) : nullptr,
          static_cast<Real*>(partial.mutable_data_ptr())};
      each_task<W>(call, [&](int64_t tile, int64_t block) { backward_task<W>(call, grad, tile, block); });
      reduce_parameters(call, grad.partial, tiles, dweight, bias.has_value() ? std::optional(dbias) : std::nullopt);
      if (grad.dinitial != nullptr) pass_empty_sequences(call, grad);
    });
  });
  return {dx, dweight, dbias, dinitial};
}

}  // namespace
}  // namespace mamba_lab

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CPU, m) {
  m.impl("conv1d_pack_cpu", TORCH_BOX(&mamba_lab::conv1d_pack));
  m.impl("conv1d_pack_cpu_backward", TORCH_BOX(&mamba_lab::conv1d_pack_backward));
}
