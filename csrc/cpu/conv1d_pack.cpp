// The causal convolution of every channel, stopped at each sequence's start. The specification is
// mamba_lab/ops/reference.py; schemas and gradients are registered in mamba_lab/ops/_conv1d_ops.py.
//
// The tokens are cut into tiles of fixed size and the channels into blocks of 256 bytes. A tile and a block are one task,
// whatever sequences lie in it. A task copies the rows that its tokens look back on (or the initial state, or zeros) into
// a buffer; after that there are no boundaries left to think of. An output's bits depend on its own window only,
// so a sequence in a pack gives what it gives alone. The weight's gradient is one partial sum per tile, and the partial
// sums are added in the order of the tiles: the same bits with any number of threads.
//
// Nothing here throws and nothing is checked: mamba_lab/ops/conv1d_pack.py has done that.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/dtypes.h"
#include "cpu/exp.h"

namespace {

using mamba_lab::BFloat16;
using mamba_lab::kBlock;
using mamba_lab::Wide;
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
    default: return mamba_lab::widen(static_cast<const BFloat16*>(data)[place]);
  }
}

void write_parameter(double value, void* data, ScalarType dtype, int64_t place) {
  switch (dtype) {
    case ScalarType::Double: static_cast<double*>(data)[place] = value; break;
    case ScalarType::Float: static_cast<float*>(data)[place] = static_cast<float>(value); break;
    default: mamba_lab::narrow(static_cast<float>(value), static_cast<BFloat16*>(data) + place);
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
      mamba_lab::load_block(call.x + (start + t) * call.x_stride + channel, n, rows);
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
        for (int j = 0; j < B; ++j) out[j] *= mamba_lab::sigmoid(out[j]);
      }
      mamba_lab::store_block(out, n, y + t * call.channels + block * B);
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
    // A token's input acts on the W - 1 tokens after it, so their gradients are needed too; past the end there are none.
    const int64_t last = std::min(to + reach, stop);
    stage_rows(call, s, block, from - start - reach, last - start, rows);
    for (int64_t t = from; t < last; ++t) {
      Real* g = gs + (t - from) * B;
      mamba_lab::load_block(grad.dy + t * grad.dy_stride + channel, n, g);
      if (call.silu) {
        convolve<W>(taps, rows + (t - from) * B, width, out);
        for (int j = 0; j < B; ++j) {
          const Real gate = mamba_lab::sigmoid(out[j]);
          g[j] *= gate * (Real(1) + out[j] * (Real(1) - gate));
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
      mamba_lab::store_block(out, n, grad.dx + t * call.channels + channel);
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
    default: return width <= 8 ? f(std::integral_constant<int, kUpTo8>{}) : f(std::integral_constant<int, kUpToWidest>{});
  }
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
          *to = t >= 0 ? static_cast<Real>(mamba_lab::widen(call.x[(start + t) * call.x_stride + d]))
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

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CPU, m) {
  m.impl("conv1d_pack_cpu", TORCH_BOX(&conv1d_pack));
  m.impl("conv1d_pack_cpu_backward", TORCH_BOX(&conv1d_pack_backward));
}
