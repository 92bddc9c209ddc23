// The packed selective scan on the host: what its forward and its backward pass share.
//
//   h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t      y_t = C_t h_t + D u_t      (arXiv 2312.00752, equation 2a)
//
// A block of channels walks along one sequence; the lanes of a vector are channels, so nothing is shared between lanes
// but B and C. A sequence's first token takes its state from `initial_state` or zero: the one before is never touched.

#pragma once

#include "dtypes.h"
#include "simd.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace mamba_lab::ssm {

using simd::all;
using simd::fma;
using simd::load;
using simd::Vec;

// The state is kept every so many tokens, counted from a sequence's start (CHECKPOINT_TOKENS in _schemas.py).
inline constexpr int kTile = 16;
// Vectors of channels in a block. dB and dC are summed over a block before they leave it.
inline constexpr int kVecs = 4;
// Short sequences share a task until it holds so many tokens.
inline constexpr int64_t kTaskTokens = 256;
inline constexpr int64_t kSequenceCost = 4;

template <class In>
using State = Wide<In>;

// A matrix with one row a token. Rows may lie apart; the columns of a row lie side by side.
template <class In>
struct Rows {
  In* data = nullptr;
  int64_t stride = 0;
  In* at(int64_t t, int64_t column = 0) const { return data + t * stride + column; }
  explicit operator bool() const { return data != nullptr; }
};

// One vector of channels of a row; beyond its first `lanes` channels it reads zeros and writes nothing.
template <class In>
MAMBA_LAB_INLINE Vec<State<In>> load_row(const In* p, int lanes) {
  using S = State<In>;
  constexpr int width = simd::Lanes<S>::width;
  if (lanes == width) {
    if constexpr (std::is_same_v<In, BFloat16>) {
      typedef uint16_t Half __attribute__((vector_size(simd::kBytes / 2)));
      typedef uint32_t Whole __attribute__((vector_size(simd::kBytes)));
      Half half;
      std::memcpy(&half, p, sizeof half);
      return std::bit_cast<Vec<S>>(__builtin_convertvector(half, Whole) << 16);
    } else {
      return load<S>(p);
    }
  }
  Vec<S> v{};
  for (int i = 0; i < lanes; ++i) v[i] = widen(p[i]);
  return v;
}

template <class In>
MAMBA_LAB_INLINE void store_row(In* p, Vec<State<In>> v, int lanes) {
  using S = State<In>;
  constexpr int width = simd::Lanes<S>::width;
  if (lanes == width) {
    if constexpr (std::is_same_v<In, BFloat16>) {
      typedef uint16_t Half __attribute__((vector_size(simd::kBytes / 2)));
      typedef uint32_t Whole __attribute__((vector_size(simd::kBytes)));
      const Whole bits = std::bit_cast<Whole>(v);
      const Whole rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      const Half half = __builtin_convertvector(v != v ? Whole{} + 0x7fc0 : rounded, Half);
      std::memcpy(p, &half, sizeof half);
    } else {
      std::memcpy(p, &v, sizeof v);
    }
    return;
  }
  for (int i = 0; i < lanes; ++i) narrow(v[i], p + i);
}

// A [channels, N] matrix of one vector of channels, transposed: vector n holds state n of every channel.
template <class S>
void load_states(const S* p, int lanes, int64_t N, Vec<S>* to) {
  S column[simd::Lanes<S>::width] = {};
  for (int64_t n = 0; n < N; ++n) {
    for (int i = 0; i < lanes; ++i) column[i] = p[i * N + n];
    to[n] = load<S>(column);
  }
}

template <class S>
void store_states(const Vec<S>* from, int lanes, int64_t N, S* p) {
  for (int i = 0; i < lanes; ++i) {
    for (int64_t n = 0; n < N; ++n) p[i * N + n] = from[n][i];
  }
}

// A in units of log2(e), so that exp(dt A) is a power of two. It stays finite: a step of zero times infinity is no decay.
template <class S>
void load_decays(const S* A, int lanes, int64_t N, Vec<S>* to) {
  constexpr S most = std::numeric_limits<S>::max();
  load_states(A, lanes, N, to);
  for (int64_t n = 0; n < N; ++n) {
    const Vec<S> a = to[n] * simd::Lanes<S>::log2e;
    to[n] = a < -most ? all<S>(-most) : a > most ? all<S>(most) : a;
  }
}

// The state of one vector of channels inside a checkpoint: state after state, its lanes side by side. A slot has room for
// D times N numbers; only this backend reads them.
template <class S>
MAMBA_LAB_INLINE void save(const Vec<S>* from, int lanes, int64_t N, S* slot) {
  for (int64_t n = 0; n < N; ++n) store_row<S>(slot + n * lanes, from[n], lanes);
}

template <class S>
MAMBA_LAB_INLINE void restore(const S* slot, int lanes, int64_t N, Vec<S>* to) {
  for (int64_t n = 0; n < N; ++n) to[n] = load_row<S>(slot + n * lanes, lanes);
}

// The arguments of both passes.
template <class In>
struct Problem {
  using S = State<In>;
  int64_t T, D, N, sequences;
  Rows<const In> u, delta, B, C, z;
  const S *A, *skip, *bias;  // [D, N], [D], [D]
  bool softplus;
  const int32_t *cu, *order;
  const S* initial;  // [sequences, D, N]

  static constexpr int width = simd::Lanes<S>::width, block = kVecs * width;
  int64_t blocks() const { return (D + block - 1) / block; }
  int64_t slot(int64_t s) const { return cu[s] / kTile + s; }  // the first checkpoint of a sequence
};

// Channels of a block: where they start, how many vectors they fill, how many lanes the last one uses.
struct Block {
  int64_t first;
  int vecs, last_lanes, width;

  Block(int64_t index, int64_t D, int width_) : first(index * kVecs * width_), width(width_) {
    const int64_t channels = std::min<int64_t>(D - first, kVecs * width);
    vecs = static_cast<int>((channels + width - 1) / width);
    last_lanes = static_cast<int>(channels - (vecs - 1) * width);
  }
  int64_t channel(int c) const { return first + c * width; }
  int64_t channels() const { return (vecs - 1) * width + last_lanes; }
  int lanes(int c) const { return c + 1 < vecs ? width : last_lanes; }
};

// Sequences in groups, in the order of the schedule: a long one alone, short ones together. It depends on the lengths
// only, so that the sums over groups do not depend on the number of threads.
template <class In>
std::vector<int64_t> group_sequences(const Problem<In>& p) {
  std::vector<int64_t> ends{0};
  int64_t cost = 0;
  for (int64_t i = 0; i < p.sequences; ++i) {
    cost += p.cu[p.order[i] + 1] - p.cu[p.order[i]] + kSequenceCost;
    if (cost >= kTaskTokens || i + 1 == p.sequences) {
      ends.push_back(i + 1);
      cost = 0;
    }
  }
  return ends;
}

// Hands out a worker's scratch memory in pieces that start where a cache line does.
class Scratch {
 public:
  explicit Scratch(char* memory) : next_(memory) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  int64_t used(const char* memory) const { return next_ - memory; }

 private:
  char* next_;
};

// Rows t, t + 1, ... of B or C as the state's type, side by side.
template <class In>
MAMBA_LAB_INLINE void widen_rows(const Rows<const In>& rows, int64_t t, int length, int64_t N, State<In>* to) {
  for (int i = 0; i < length; ++i) {
    const In* row = rows.at(t + i);
    for (int64_t n = 0; n < N; ++n) to[i * N + n] = widen(row[n]);
  }
}

// Asks for what a later tile reads: tiles lie far apart, so the processor does not guess them.
template <class T>
MAMBA_LAB_INLINE void prefetch(const T* p, int64_t count) {
  const char* line = reinterpret_cast<const char*>(p);
  for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(line + i, 0, 2);
}

template <class In>
MAMBA_LAB_INLINE void prefetch_rows(const Rows<const In>& rows, int64_t t, int length, int64_t column, int64_t count) {
  if (!rows) return;
  for (int i = 0; i < length; ++i) prefetch(rows.at(t + i, column), count);
}

// Calls f<16>, f<8>, f<4>, f<2>, f<1> (none above Most) on consecutive states until all N are done: f's states live in
// registers.
template <int Most, class F>
MAMBA_LAB_INLINE void each_piece(int64_t N, const F& f) {
  int64_t n = 0;
  if constexpr (Most >= 16) {
    for (; n + 16 <= N; n += 16) f(std::integral_constant<int, 16>(), n);
  }
  if constexpr (Most >= 8) {
    for (; n + 8 <= N; n += 8) f(std::integral_constant<int, 8>(), n);
  }
  for (; n + 4 <= N; n += 4) f(std::integral_constant<int, 4>(), n);
  if (N - n >= 2) f(std::integral_constant<int, 2>(), n), n += 2;
  if (N - n >= 1) f(std::integral_constant<int, 1>(), n);
}

}  // namespace mamba_lab::ssm
