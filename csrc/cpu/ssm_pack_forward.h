// The forward pass of the packed selective scan: y, the final states, and a state every kTile tokens for the backward.

#pragma once

#include "ssm_pack.h"

namespace mamba_lab::ssm {

template <class In>
class Forward {
 public:
  using S = State<In>;
  using V = Vec<S>;

  Forward(const Problem<In>& problem, Rows<In> y, S* final_state, S* checkpoints)
      : p_(problem), y_(y), final_(final_state), checkpoints_(checkpoints) {}

  // What one worker needs: decays and states of a block, a tile of everything else.
  struct Work {
    V *A, *h, *dt, *dtu, *y;
    S *B, *C;
    Work(const Problem<In>& p, Scratch& scratch)
        : A(scratch.take<V>(kVecs * p.N)),
          h(scratch.take<V>(kVecs * p.N)),
          dt(scratch.take<V>(kVecs * kTile)),
          dtu(scratch.take<V>(kVecs * kTile)),
          y(scratch.take<V>(kVecs * kTile)),
          B(scratch.take<S>(kTile * p.N)),
          C(scratch.take<S>(kTile * p.N)) {}
  };

  // The sequences order[first:last] over one block of channels.
  void run(Work& w, int64_t, int64_t first, int64_t last, int64_t block_index) const {
    const Block block(block_index, p_.D, p_.width);
    for (int c = 0; c < block.vecs; ++c) {
      load_decays(p_.A + block.channel(c) * p_.N, block.lanes(c), p_.N, w.A + c * p_.N);
    }
    for (int64_t i = first; i < last; ++i) sequence(w, p_.order[i], block);
  }

 private:
  void sequence(Work& w, int64_t s, const Block& block) const {
    const int64_t start = p_.cu[s], stop = p_.cu[s + 1], states = p_.D * p_.N;
    for (int c = 0; c < block.vecs; ++c) {
      V* h = w.h + c * p_.N;
      const int64_t at = s * states + block.channel(c) * p_.N;
      if (p_.initial != nullptr) {
        load_states(p_.initial + at, block.lanes(c), p_.N, h);
      } else {
        std::fill_n(h, p_.N, V{});
      }
    }
    S* slot = checkpoints_ + p_.slot(s) * states;
    for (int64_t t = start; t < stop; t += kTile, slot += states) {
      tile(w, t, static_cast<int>(std::min<int64_t>(kTile, stop - t)), block, slot,
           static_cast<int>(std::clamp<int64_t>(stop - t - kTile, 0, kTile)));
    }
    // A sequence may have a slot too many. It is no use to anybody, but equal inputs give equal outputs.
    for (S* const end = checkpoints_ + p_.slot(s + 1) * states; slot < end; slot += states) {
      std::fill_n(slot + block.first * p_.N, block.channels() * p_.N, S{});
    }
    if (final_ == nullptr) return;
    for (int c = 0; c < block.vecs; ++c) {
      const int64_t at = s * states + block.channel(c) * p_.N;
      store_states(w.h + c * p_.N, block.lanes(c), p_.N, final_ + at);
    }
  }

  void tile(Work& w, int64_t t, int length, const Block& block, S* slot, int length_after) const {
    const int64_t N = p_.N;
    widen_rows(p_.B, t, length, N, w.B);
    widen_rows(p_.C, t, length, N, w.C);
    for (const auto& rows : {p_.u, p_.delta, p_.z}) {
      prefetch_rows(rows, t + kTile, length_after, block.first, block.channels());
    }
    for (int c = 0; c < block.vecs; ++c) save(w.h + c * N, block.lanes(c), N, slot + block.channel(c) * N);
    stage(w, t, length, block);
    for (int c = 0; c < block.vecs; ++c) {
      const V *A = w.A + c * N, *dt = w.dt + c * kTile, *dtu = w.dtu + c * kTile;
      V *h = w.h + c * N, *y = w.y + c * kTile;
      each_piece<16>(N, [&](auto piece, int64_t n) {
        scan<piece()>(length, dt, dtu, y, w.B + n, w.C + n, N, A + n, h + n);
      });
    }
    finish(w, t, length, block);
  }

  MAMBA_LAB_INLINE void stage(Work& w, int64_t t, int length, const Block& block) const {
    const auto u = p_.u, delta = p_.delta;
    const S* const bias = p_.bias;
    const bool softplus = p_.softplus;
    for (int i = 0; i < length; ++i) {
      for (int c = 0; c < block.vecs; ++c) {
        const int at = c * kTile + i, lanes = block.lanes(c);
        const int64_t channel = block.channel(c);
        V step = load_row(delta.at(t + i, channel), lanes);
        if (bias != nullptr) step += load_row<S>(bias + channel, lanes);
        const V dt = softplus ? simd::softplus<S>(step).value : step;
        w.dt[at] = dt;
        w.dtu[at] = dt * load_row(u.at(t + i, channel), lanes);
        w.y[at] = V{};
      }
    }
  }

  MAMBA_LAB_INLINE void finish(const Work& w, int64_t t, int length, const Block& block) const {
    const auto u = p_.u, z = p_.z;
    const S* const skip = p_.skip;
    for (int i = 0; i < length; ++i) {
      for (int c = 0; c < block.vecs; ++c) {
        const int lanes = block.lanes(c);
        const int64_t channel = block.channel(c);
        V y = w.y[c * kTile + i];
        if (skip != nullptr) y = fma<S>(load_row<S>(skip + channel, lanes), load_row(u.at(t + i, channel), lanes), y);
        if (z) {
          const V gate = load_row(z.at(t + i, channel), lanes);
          y *= gate * simd::sigmoid<S>(gate).value;
        }
        store_row(y_.at(t + i, channel), y, lanes);
      }
    }
  }

  // A few states of one vector of channels through one tile.
  template <int Piece>
  MAMBA_LAB_INLINE static void scan(
      int length, const V* dt, const V* dtu, V* y, const S* B, const S* C, int64_t N, const V* A, V* state) {
    V h[Piece];
#pragma GCC unroll 16
    for (int n = 0; n < Piece; ++n) h[n] = state[n];
    for (int i = 0; i < length; ++i, B += N, C += N) {
      V even = y[i], odd{};  // two sums: half as long a chain of additions
#pragma GCC unroll 16
      for (int n = 0; n < Piece; ++n) {
        h[n] = fma<S>(simd::exp2<S>(dt[i] * A[n]), h[n], dtu[i] * B[n]);
        V& sum = n % 2 == 0 ? even : odd;
        sum = fma<S>(h[n], all<S>(C[n]), sum);
      }
      y[i] = even + odd;
    }
#pragma GCC unroll 16
    for (int n = 0; n < Piece; ++n) state[n] = h[n];
  }

  const Problem<In> p_;
  const Rows<In> y_;
  S* const final_;  // [sequences, D, N] or null
  S* const checkpoints_;
};

}  // namespace mamba_lab::ssm
