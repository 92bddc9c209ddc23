// The backward pass of the packed selective scan. It walks a sequence's tiles from the last to the first: the states of a
// tile are made again from its checkpoint, then the gradient g of the state runs through them against time,
//
//   g_t = dy_t C_t + a_{t+1} g_{t+1}      a_t = exp(dt_t A)
//
// and every other gradient is a product of g with something at hand.

#pragma once

#include "ssm_pack.h"

namespace mamba_lab::ssm {

template <class In>
class Backward {
 public:
  using S = State<In>;
  using V = Vec<S>;

  struct Outputs {
    Rows<In> du, ddelta, dz;
    S* dinitial;  // [sequences, D, N] or null
    // Sums of one task each: over a block's channels [blocks, T, N], over a group's tokens [groups, blocks, (N + 2) vectors].
    S *dB, *dC;
    V* sums;
  };

  Backward(const Problem<In>& problem, Rows<const In> dy, const S* dfinal, const S* checkpoints, const Outputs& out)
      : p_(problem), dy_(dy), dfinal_(dfinal), checkpoints_(checkpoints), out_(out) {}

  static int64_t sums_of_a_block(int64_t N) { return (N + 2) * kVecs; }

  struct Work {
    V *A, *g, *h, *a, *dB, *dC, *start;
    // Of each token of the tile: the step and its slope, step times u, dy before and behind the gate, y, and two sums
    // over states: g B, and g a h A.
    V *dt, *slope, *dtu, *dy, *dz, *y, *dsum, *asum;
    S *B, *C;
    V *dA, *dskip, *dbias;
    Work(const Problem<In>& p, Scratch& scratch)
        : A(scratch.take<V>(kVecs * p.N)),
          g(scratch.take<V>(kVecs * p.N)),
          h(scratch.take<V>(kTile * kPiece)),
          a(scratch.take<V>(kTile * kPiece)),
          dB(scratch.take<V>(kTile * kPiece)),
          dC(scratch.take<V>(kTile * kPiece)),
          start(scratch.take<V>(kVecs * p.N)),
          dt(scratch.take<V>(kVecs * kTile)),
          slope(scratch.take<V>(kVecs * kTile)),
          dtu(scratch.take<V>(kVecs * kTile)),
          dy(scratch.take<V>(kVecs * kTile)),
          dz(scratch.take<V>(kVecs * kTile)),
          y(scratch.take<V>(kVecs * kTile)),
          dsum(scratch.take<V>(kVecs * kTile)),
          asum(scratch.take<V>(kVecs * kTile)),
          B(scratch.take<S>(kTile * p.N)),
          C(scratch.take<S>(kTile * p.N)) {}
  };

  void run(Work& w, int64_t group, int64_t first, int64_t last, int64_t block_index) const {
    const int64_t N = p_.N;
    const Block block(block_index, p_.D, p_.width);
    w.dA = out_.sums + (group * p_.blocks() + block_index) * sums_of_a_block(N);
    w.dskip = w.dA + kVecs * N;
    w.dbias = w.dskip + kVecs;
    std::fill_n(w.dA, sums_of_a_block(N), V{});
    // sum_channels adds up whole vectors, also where a short tile left some untouched.
    std::fill_n(w.dB, kTile * kPiece, V{});
    std::fill_n(w.dC, kTile * kPiece, V{});
    for (int c = 0; c < block.vecs; ++c) {
      load_decays(p_.A + block.channel(c) * N, block.lanes(c), N, w.A + c * N);
    }
    for (int64_t i = first; i < last; ++i) sequence(w, p_.order[i], block, block_index);
  }

 private:
  static constexpr int kPiece = 8;

  void sequence(Work& w, int64_t s, const Block& block, int64_t block_index) const {
    const int64_t start = p_.cu[s], stop = p_.cu[s + 1], N = p_.N, states = p_.D * N;
    for (int c = 0; c < block.vecs; ++c) {
      V* g = w.g + c * N;
      const int64_t at = s * states + block.channel(c) * N;
      if (dfinal_ != nullptr) {
        load_states(dfinal_ + at, block.lanes(c), N, g);
      } else {
        std::fill_n(g, N, V{});
      }
    }
    const int64_t tiles = (stop - start + kTile - 1) / kTile;
    for (int64_t i = tiles - 1; i >= 0; --i) {
      const int64_t t = start + i * kTile;
      tile(w, t, static_cast<int>(std::min<int64_t>(kTile, stop - t)), block, block_index,
           checkpoints_ + (p_.slot(s) + i) * states, i > 0);
    }
    if (out_.dinitial == nullptr) return;
    for (int c = 0; c < block.vecs; ++c) {
      const int64_t at = s * states + block.channel(c) * N;
      store_states(w.g + c * N, block.lanes(c), N, out_.dinitial + at);
    }
  }

  void tile(Work& w, int64_t t, int length, const Block& block, int64_t block_index, const S* slot,
            bool before) const {
    const int64_t N = p_.N;
    widen_rows(p_.B, t, length, N, w.B);
    widen_rows(p_.C, t, length, N, w.C);
    for (int c = 0; c < block.vecs; ++c) restore(slot + block.channel(c) * N, block.lanes(c), N, w.start + c * N);
    stage(w, t, length, block);
    if (before) {
      for (const auto& rows : {p_.u, p_.delta, p_.z, dy_}) {
        prefetch_rows(rows, t - kTile, kTile, block.first, block.channels());
      }
      prefetch(slot - p_.D * N + block.first * N, block.channels() * N);
    }
    each_piece<kPiece>(N, [&](auto piece, int64_t n) {
      constexpr int Piece = piece();
      for (int c = 0; c < block.vecs; ++c) {
        const int64_t at = c * N + n;
        if (c == 0) {
          again<Piece, true>(w, length, c, n, w.start + at);
          against_time<Piece, true>(w, length, c, n, w.g + at, w.dA + at);
        } else {
          again<Piece, false>(w, length, c, n, w.start + at);
          against_time<Piece, false>(w, length, c, n, w.g + at, w.dA + at);
        }
      }
      const int64_t at = (block_index * p_.T + t) * N + n;
      sum_channels<Piece>(w.dB, length, out_.dB + at);
      sum_channels<Piece>(w.dC, length, out_.dC + at);
    });
    finish(w, t, length, block);
  }

  MAMBA_LAB_INLINE void stage(Work& w, int64_t t, int length, const Block& block) const {
    const auto u = p_.u, delta = p_.delta, z = p_.z, dy = dy_;
    const S* const bias = p_.bias;
    const bool softplus = p_.softplus;
    for (int i = 0; i < length; ++i) {
      for (int c = 0; c < block.vecs; ++c) {
        const int at = c * kTile + i, lanes = block.lanes(c);
        const int64_t channel = block.channel(c);
        V step = load_row(delta.at(t + i, channel), lanes);
        if (bias != nullptr) step += load_row<S>(bias + channel, lanes);
        const auto [dt, slope] = softplus ? simd::softplus<S>(step) : simd::Softplus<S>{step, all<S>(1)};
        w.dt[at] = dt;
        w.slope[at] = slope;
        w.dtu[at] = dt * load_row(u.at(t + i, channel), lanes);
        const V gradient = load_row(dy.at(t + i, channel), lanes);
        if (z) {
          const V x = load_row(z.at(t + i, channel), lanes);
          const auto [gate, rest] = simd::sigmoid<S>(x);
          w.dz[at] = gradient * (gate * fma<S>(x, rest, all<S>(1)));
          w.dy[at] = gradient * (x * gate);
        } else {
          w.dy[at] = gradient;
        }
        w.y[at] = w.dsum[at] = w.asum[at] = V{};
      }
    }
  }

  // The tile's states and decays once more, y without its gate, and this vector's part of dC.
  template <int Piece, bool First>
  MAMBA_LAB_INLINE void again(Work& w, int length, int c, int64_t n0, const V* start) const {
    const int64_t N = p_.N;
    const V *dt = w.dt + c * kTile, *dtu = w.dtu + c * kTile, *dy = w.dy + c * kTile, *A = w.A + c * N + n0;
    V* y = w.y + c * kTile;
    const S *B = w.B + n0, *C = w.C + n0;
    V h[Piece];
#pragma GCC unroll 8
    for (int n = 0; n < Piece; ++n) h[n] = start[n];
    for (int i = 0; i < length; ++i, B += N, C += N) {
      V sum = y[i];
      V *a_to = w.a + i * Piece, *h_to = w.h + i * Piece, *dC = w.dC + i * Piece;
#pragma GCC unroll 8
      for (int n = 0; n < Piece; ++n) {
        const V a = simd::exp2<S>(dt[i] * A[n]);
        a_to[n] = a;
        h_to[n] = h[n];
        h[n] = fma<S>(a, h[n], dtu[i] * B[n]);
        dC[n] = First ? dy[i] * h[n] : fma<S>(dy[i], h[n], dC[n]);
        sum = fma<S>(h[n], all<S>(C[n]), sum);
      }
      y[i] = sum;
    }
  }

  template <int Piece, bool First>
  MAMBA_LAB_INLINE void against_time(Work& w, int length, int c, int64_t n0, V* carried, V* dA_to) const {
    const int64_t N = p_.N;
    const V *dt = w.dt + c * kTile, *dtu = w.dtu + c * kTile, *dy = w.dy + c * kTile, *A = w.A + c * N + n0;
    V *dsum = w.dsum + c * kTile, *asum = w.asum + c * kTile;
    V g[Piece], dA[Piece];
#pragma GCC unroll 8
    for (int n = 0; n < Piece; ++n) g[n] = carried[n], dA[n] = dA_to[n];
    for (int i = length - 1; i >= 0; --i) {
      const S *B = w.B + i * N + n0, *C = w.C + i * N + n0;
      const V *a = w.a + i * Piece, *h = w.h + i * Piece;
      V* dB = w.dB + i * Piece;
      V ds = dsum[i], as = asum[i];
#pragma GCC unroll 8
      for (int n = 0; n < Piece; ++n) {
        g[n] = fma<S>(dy[i], all<S>(C[n]), g[n]);
        dB[n] = First ? g[n] * dtu[i] : fma<S>(g[n], dtu[i], dB[n]);
        ds = fma<S>(g[n], all<S>(B[n]), ds);
        g[n] *= a[n];
        const V decayed = g[n] * h[n];  // the gradient of dt A
        as = fma<S>(decayed, A[n], as);
        dA[n] = fma<S>(decayed, dt[i], dA[n]);
      }
      dsum[i] = ds;
      asum[i] = as;
    }
#pragma GCC unroll 8
    for (int n = 0; n < Piece; ++n) carried[n] = g[n], dA_to[n] = dA[n];
  }

  // Sums over the lanes, `lanes` of them at a time, into rows of N numbers.
  template <int Piece>
  MAMBA_LAB_INLINE void sum_channels(const V* vectors, int length, S* to) const {
    constexpr int width = simd::Lanes<S>::width;
    static_assert(kTile * Piece % width == 0);
    for (int k = 0; k < length * Piece; k += width) {
      const V sums = simd::sum_lanes<S>(vectors + k);
      if constexpr (Piece < width) {
        for (int j = 0; j < width && k + j < length * Piece; j += Piece) {
          std::memcpy(to + (k + j) / Piece * p_.N, reinterpret_cast<const char*>(&sums) + j * sizeof(S),
                      Piece * sizeof(S));
        }
      } else {
        std::memcpy(to + k / Piece * p_.N + k % Piece, &sums, sizeof sums);
      }
    }
  }

  // What is left once all states are done: du, ddelta and dz.
  MAMBA_LAB_INLINE void finish(Work& w, int64_t t, int length, const Block& block) const {
    const auto u_rows = p_.u;
    const auto du_rows = out_.du, ddelta_rows = out_.ddelta, dz_rows = out_.dz;
    const S* const skip = p_.skip;
    for (int i = length - 1; i >= 0; --i) {
      for (int c = 0; c < block.vecs; ++c) {
        const int at = c * kTile + i, lanes = block.lanes(c);
        const int64_t channel = block.channel(c);
        const V u = load_row(u_rows.at(t + i, channel), lanes), dy = w.dy[at], dsum = w.dsum[at];
        V du = w.dt[at] * dsum, y = w.y[at];
        if (skip != nullptr) {
          const V D = load_row<S>(skip + channel, lanes);
          du = fma<S>(D, dy, du);
          y = fma<S>(D, u, y);
        }
        const V ddelta = fma<S>(u, dsum, w.asum[at] * kLn2) * w.slope[at];
        w.dskip[c] = fma<S>(dy, u, w.dskip[c]);
        w.dbias[c] += ddelta;
        store_row(du_rows.at(t + i, channel), du, lanes);
        store_row(ddelta_rows.at(t + i, channel), ddelta, lanes);
        if (dz_rows) store_row(dz_rows.at(t + i, channel), w.dz[at] * y, lanes);
      }
    }
  }

  static constexpr S kLn2 = static_cast<S>(0.6931471805599453);
  const Problem<In> p_;
  const Rows<const In> dy_;
  const S* const dfinal_;
  const S* const checkpoints_;
  const Outputs out_;
};

}  // namespace mamba_lab::ssm
