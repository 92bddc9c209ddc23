// The stagers of a team: everything but the recurrence. A lane owns 8 neighbouring channels of one token of each tile,
// and four (or eight) lanes next to each other read 64 (or 128) bytes of a row.

#pragma once

#include "ssm_pack_forward_tile.h"

namespace mamba_lab::ssm {

template <class In, class P>
class Stager {
 public:
  using Owned = Channels<In, P::kOwned>;  // of u, delta, z or y; also half a row of B or C

  __device__ Stager(const ForwardArguments<In>& args, TeamTile<P>* tiles, int s, int channel)
      : a_(args),
        tiles_(tiles),
        row_(lane() / (P::kChannels / P::kOwned)),
        column_(lane() % (P::kChannels / P::kOwned) * P::kOwned),
        matrix_(lane() / (2 * P::kTile)),
        length_(args.cu_seqlens[s + 1] - args.cu_seqlens[s]),
        to_load_(length_) {
    const int64_t start = args.cu_seqlens[s];
    u_from_ = args.u.at(start + row_, channel + column_);
    delta_from_ = args.delta.at(start + row_, channel + column_);
    z_from_ = args.z.at(start + row_, channel + column_);
    y_to_ = args.y.at(start + row_, channel + column_);
    states_from_ = states().at(start + states_row(), lane() % 2 * P::kOwned);
#pragma unroll
    for (int c = 0; c < P::kOwned; ++c) {
      bias_[c] = args.bias == nullptr ? 0.0f : args.bias[channel + column_ + c];
      skip_[c] = args.skip == nullptr ? 0.0f : args.skip[channel + column_ + c];
    }
  }

  // All loads stand at a tile's end, and all are waited for in the next tile. A warp has six counters to wait for, and
  // the compiler gives these loads the same one: with a load between two waits, the second would wait for it too.
  __device__ void run() {
    load_to_stage();
    stage(tiles_[0]);
    load_to_stage();
    if (length_ > 0) {
      meet();  // tile 0 is staged
      stage(tiles_[1]);
      load_to_finish(length_);
      load_to_stage();
    }
    int k = 1, left = length_ - P::kTile;  // tokens left when tile k starts
    for (; left > 0; ++k, left -= P::kTile) {
      meet();  // tile k is staged, tile k - 1 is scanned
      finish(tiles_[(k - 1) % 2], true);
      stage(tiles_[(k + 1) % 2]);
      load_to_finish(left);
      load_to_stage();
    }
    meet();
    if (length_ > 0) finish(tiles_[(k - 1) % 2], row_ < left + P::kTile);
  }

 private:
  static __device__ int lane() { return threadIdx.x - P::kScanners * kWarp; }

  // B and C take two lanes a token: the first 2 kTile lanes have B, the next ones C.
  static __device__ int states_row() { return lane() % (2 * P::kTile) / 2; }
  __device__ bool has_states() const { return 4 * P::kTile >= P::kStagers * kWarp || matrix_ < 2; }
  __device__ const RowsOf<const In>& states() const { return matrix_ == 0 ? a_.B : a_.C; }

  // --- load -----------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void load_to_stage() {
    if (to_load_ < P::kTile) u_.fill(0.0f), delta_.fill(0.0f), states_.fill(0.0f);
    if (row_ < to_load_) {
      u_ = *reinterpret_cast<const Owned*>(u_from_);
      delta_ = *reinterpret_cast<const Owned*>(delta_from_);
    }
    if (has_states() && states_row() < to_load_) states_ = *reinterpret_cast<const Owned*>(states_from_);
    u_from_ += P::kTile * a_.u.stride;
    delta_from_ += P::kTile * a_.delta.stride;
    states_from_ += P::kTile * states().stride;
    to_load_ -= P::kTile;
    if (row_ < to_load_) fetch(u_from_), fetch(delta_from_);
  }

  // u once more: by now it is in a cache, and no register has to keep it for two tiles.
  __device__ __forceinline__ void load_to_finish(int left) {
    if (row_ < left) {
      u_again_ = *reinterpret_cast<const Owned*>(u_from_ - 2 * P::kTile * a_.u.stride);
      if (a_.z) z_ = *reinterpret_cast<const Owned*>(z_from_);
    }
    z_from_ += P::kTile * a_.z.stride;
    if (a_.z && row_ < left - P::kTile) fetch(z_from_);
  }

  // Moves it into the L2 cache: the load in the next tile then takes a third of the time.
  static __device__ __forceinline__ void fetch(const In* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }

  // --- stage ----------------------------------------------------------------------------------------------------------

  // dt and dt u, B and C as float32. A token after the sequence's last gets a step of 0, which leaves a state as it is:
  // by its bias, because softplus(-inf) is 0.
  __device__ __forceinline__ void stage(TeamTile<P>& tile) {
    if (row_ >= to_load_ + P::kTile) {
#pragma unroll
      for (int c = 0; c < P::kOwned; ++c) bias_[c] = a_.softplus ? -INFINITY : 0.0f;
    }
    float2* const to = reinterpret_cast<float2*>(&tile.step[row_ / 2][TeamTile<P>::step_at(column_)]) + row_ % 2;
    if (a_.softplus) {
      stage_steps<true>(to);
    } else {
      stage_steps<false>(to);
    }
    if (has_states()) stage_states(&(matrix_ == 0 ? tile.B : tile.C)[states_row()][lane() % 2 * P::kOwned]);
  }

  template <bool kSoftplus>
  __device__ __forceinline__ void stage_steps(float2* to) const {
#pragma unroll
    for (int c = 0; c < P::kOwned; ++c) {
      const float dt = step_size<kSoftplus>(delta_.get(c), bias_[c]);
      to[2 * c] = {dt, __fmul_rn(dt, u_.get(c))};
    }
  }

  __device__ __forceinline__ void stage_states(float* to) const {
#pragma unroll
    for (int n = 0; n < P::kOwned; n += 4) {
      store_packed<float, 4>(to + n, {{states_.get(n), states_.get(n + 1), states_.get(n + 2), states_.get(n + 3)}});
    }
  }

  // --- finish ---------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void finish(const TeamTile<P>& tile, bool exists) {
    if (exists) *reinterpret_cast<Owned*>(y_to_) = a_.z ? finished<true>(tile) : finished<false>(tile);
    y_to_ += P::kTile * a_.y.stride;
  }

  // y = (C h + D u) silu(z)
  template <bool kGate>
  __device__ __forceinline__ Owned finished(const TeamTile<P>& tile) const {
    float of_lane[P::kLanes][P::kOwned];
#pragma unroll
    for (int j = 0; j < P::kLanes; ++j) {
#pragma unroll
      for (int c = 0; c < P::kOwned; c += 4) {
        const auto four = load_packed<float, 4>(&tile.sums[row_][TeamTile<P>::sum_at(j, column_ + c)]);
#pragma unroll
        for (int i = 0; i < 4; ++i) of_lane[j][c + i] = four.value[i];
      }
    }
    Owned y;
#pragma unroll
    for (int c = 0; c < P::kOwned; c += 2) {
      float v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[i] = __fadd_rn(of_lane[0][c + i], of_lane[1][c + i]);
        if (P::kLanes == 4) {
          v[i] = __fadd_rn(v[i], __fadd_rn(of_lane[P::kLanes - 2][c + i], of_lane[P::kLanes - 1][c + i]));
        }
        v[i] = __fmaf_rn(skip_[c + i], u_again_.get(c + i), v[i]);
        if (kGate) v[i] = __fmul_rn(v[i], __fmul_rn(z_.get(c + i), sigmoid(z_.get(c + i))));
      }
      y.set_two(c, v[0], v[1]);
    }
    return y;
  }

  const ForwardArguments<In>& a_;
  TeamTile<P>* const tiles_;
  const int row_, column_;  // token of a tile, and the first of 8 channels of the team
  const int matrix_;        // 0: this lane stages B; 1: C; otherwise neither
  const int length_;
  int to_load_;  // tokens that load_to_stage has still to load
  const In *u_from_, *delta_from_, *z_from_, *states_from_;  // where the next loads start
  In* y_to_;
  float bias_[P::kOwned], skip_[P::kOwned];
  Owned u_, delta_, states_, u_again_, z_;
};

}  // namespace mamba_lab::ssm
