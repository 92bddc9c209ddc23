// The backward pass of the packed selective scan: what one warp computes. The picture is in ssm_pack_backward.h.

#pragma once

#include "ssm_pack_backward_tile.h"

namespace mamba_lab::ssm {

template <class P, bool kUsual>
class BackwardWarp : public BackwardTile<P, kUsual> {
 public:
  using Tile = BackwardTile<P, kUsual>;
  using typename Tile::In, typename Tile::Word, typename Tile::Words;
  static constexpr bool kExact = std::is_same_v<In, float>;

  __device__ BackwardWarp(const BackwardArguments& args, typename P::Shared& shared)
      : Tile(args, shared), sum_at_(lane_ % 4 * (kN / 2) + 2 * (lane_ / 8) + lane_ / 4 % 2) {}

  __device__ void run() {
    load_constants();
    for (int i = group_; i < a_.sequences; i += a_.groups) sequence(a_.order[i]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 x = shared_.totals[c][threadIdx.x];
      dA_[c][0] = x.x, dA_[c][1] = x.y, dA_[c][2] = x.z, dA_[c][3] = x.w;
    }
    store_states(a_.dA_parts + int64_t(group_) * a_.D * kN, dA_);
    float4 sums = shared_.totals[2][threadIdx.x];
    sums = {sum_tokens(sums.x), sum_tokens(sums.y), sum_tokens(sums.z), sum_tokens(sums.w)};
    if (j_ > 0 || channel_ >= a_.D) return;
    const int64_t at = int64_t(group_) * a_.D + channel_;
    const bool both = channel_ + 1 < a_.D;
    if (a_.dskip_parts != nullptr) a_.dskip_parts[at] = sums.x;
    if (a_.dskip_parts != nullptr && both) a_.dskip_parts[at + 1] = sums.y;
    if (a_.dbias_parts != nullptr) a_.dbias_parts[at] = sums.z;
    if (a_.dbias_parts != nullptr && both) a_.dbias_parts[at + 1] = sums.w;
  }

 private:
  using Tile::a_, Tile::shared_, Tile::warp_, Tile::lane_, Tile::j_, Tile::p_, Tile::group_, Tile::channel_,
      Tile::start_, Tile::length_, Tile::limit_, Tile::rest_u_, Tile::rest_dy_, Tile::rest_z_, Tile::gated,
      Tile::ask_for_steps, Tile::ask_for_rest, Tile::ask_and_place, Tile::take_rest, Tile::step_asked_for,
      Tile::place, Tile::states_at, Tile::store_pair, Tile::sum_warps, Tile::load_states, Tile::store_states,
      Tile::fetch_states, Tile::checkpoint;

  __device__ void load_constants() {
    const auto constant = [&](const float* from, int c) {
      return from != nullptr && channel_ + c < a_.D ? from[channel_ + c] : 0.0f;
    };
    if (j_ == 0) {
      shared_.constants[warp_][p_] = {constant(a_.skip, 0), constant(a_.skip, 1), constant(a_.bias, 0),
                                      constant(a_.bias, 1)};
    }
    for (int k = 0; k < 3; ++k) shared_.totals[k][threadIdx.x] = {};
    __syncwarp();
    load_states(a_.A, rate_);
#pragma unroll
    for (int k = 0; k < 2 * kStates; ++k) rate_[k / kStates][k % kStates] = decay_rate(rate_[k / kStates][k % kStates]);
  }

  __device__ void sequence(int s) {
    start_ = a_.cu_seqlens[s];
    length_ = a_.cu_seqlens[s + 1] - static_cast<int>(start_);
    limit_ = channel_ < a_.D ? length_ : 0;
    const int64_t states = int64_t(a_.D) * kN;
    load_states(a_.dfinal_state == nullptr ? nullptr : a_.dfinal_state + s * states, g_);
    const int tiles = (length_ + kTile - 1) / kTile;
    if (tiles > 0) {
      load_states(checkpoint(s, tiles - 1), h_);
      for (int part = 0; part < kParts; ++part) ask_and_place(tiles - 1, part);
      ask_for_rest((length_ - 1) / kPart);
      wait_for_copies();
      take_rest();
      for (int tile = tiles - 1; tile >= 0; --tile) {
        __syncthreads();  // B and C are there, and the sums of the tile before have been taken
        const int parts = min(kParts, (length_ - tile * kTile + kPart - 1) / kPart);
        if (tile > 0) fetch_states(checkpoint(s, tile - 1));
        first_sweep(tile);
        for (int part = parts; part < kParts; ++part) ask_and_place(tile - 1, part);
        for (int part = parts - 1; part >= 0; --part) work_on(tile, part);
        add_up_tile();
        if (tile > 0) load_states(checkpoint(s, tile - 1), h_);
        __syncthreads();
        sum_warps(tile);
      }
    }
    if (a_.dinitial_state != nullptr) store_states(a_.dinitial_state + s * states, g_);
  }

  // --- The sweeps ---

  // The states before each part of the tile. Tokens that do not exist have steps of 0, so that all parts can be swept;
  // loads stand before the stores of the part they follow, or they would wait for these.
  __device__ __forceinline__ void first_sweep(int tile) {
    float4 step[kPart];
    Packed<float, kStates> B[kPart];
    const auto load = [&](int part) {
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        step[i] = shared_.part[warp_][part].step[i * kPairs + p_];
        B[i] = states_at(tile, part, i, 0);
      }
    };
    load(0);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        shared_.part[warp_][part].state[c][lane_] = {h_[c][0], h_[c][1], h_[c][2], h_[c][3]};
      }
      if (part + 1 == kParts) break;
      float decay[kPart][2][kStates], added[kPart][2][kStates];
#pragma unroll
      for (int k = 0; k < kPart * 2 * kStates; ++k) {
        const int i = k / (2 * kStates), c = k / kStates % 2, n = k % kStates;
        decay[i][c][n] = exp2_fast(__fmul_rn(c == 0 ? step[i].x : step[i].y, rate_[c][n]));
        added[i][c][n] = __fmul_rn(c == 0 ? step[i].z : step[i].w, B[i].value[n]);
      }
      load(part + 1);
#pragma unroll
      for (int k = 0; k < kPart * 2 * kStates; ++k) {
        const int i = k / (2 * kStates), c = k / kStates % 2, n = k % kStates;
        h_[c][n] = __fmaf_rn(decay[i][c][n], h_[c][n], added[i][c][n]);
      }
    }
  }

  using OfPart = float[kPart][2][kStates];

  // One part, and what the next ones need is asked for.
  __device__ __forceinline__ void work_on(int tile, int part) {
    OfPart decay, before;
    const float u[2] = {Words::first(rest_u_), Words::second(rest_u_)};
    ask_for_steps(tile - 1, part);
    ask_for_rest(tile * kParts + part - 1);
    along(tile, part, u, decay, before);
    against(tile, part, u, decay, before);
  }

  // Along time: the states once more, and with them y, so dz, and dC.
  __device__ __forceinline__ void along(int tile, int part, const float (&u)[2], OfPart& decay, OfPart& before) {
    const float z[2] = {Words::first(rest_z_), Words::second(rest_z_)};
    float dy[2] = {Words::first(rest_dy_), Words::second(rest_dy_)}, gate[2], dz[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float open = sigmoid(z[c]);
      gate[c] = gated() ? __fmul_rn(z[c], open) : 1.0f;
      dz[c] = __fmul_rn(dy[c], __fmaf_rn(gate[c], __fsub_rn(1.0f, open), open));
      dy[c] = __fmul_rn(dy[c], gate[c]);
    }
    dskip_[0] = __fmaf_rn(dy[0], u[0], dskip_[0]), dskip_[1] = __fmaf_rn(dy[1], u[1], dskip_[1]);

    auto& here = shared_.part[warp_][part];
    float h[2][kStates], share[2][kPart];
    SumOverChannels<kExact> dC(dy[0], dy[1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 from = here.state[c][lane_];
      h[c][0] = from.x, h[c][1] = from.y, h[c][2] = from.z, h[c][3] = from.w;
    }
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const float4 step = here.step[i * kPairs + p_];
      const auto B = states_at(tile, part, i, 0), C = states_at(tile, part, i, 1);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        before[i][c][n] = h[c][n];
        decay[i][c][n] = exp2_fast(__fmul_rn(c == 0 ? step.x : step.y, rate_[c][n]));
        h[c][n] = __fmaf_rn(decay[i][c][n], h[c][n], __fmul_rn(c == 0 ? step.z : step.w, B.value[n]));
        share[c][i] = n == 0 ? __fmul_rn(h[c][n], C.value[n]) : __fmaf_rn(h[c][n], C.value[n], share[c][i]);
      }
      dC.add(j_ == i, h);
    }
    __syncwarp();
    shared_.dy[threadIdx.x] = {dy[0], dy[1]};
    sums_of(here)[kPart * kN / 2] = dC.total(lane_);
    __syncwarp();

    const float4 constants = shared_.constants[warp_][p_];
    const float y[2] = {__fmaf_rn(constants.x, u[0], sum_over_states(share[0], lane_)),
                        __fmaf_rn(constants.y, u[1], sum_over_states(share[1], lane_))};
    const int t = tile * kTile + part * kPart + j_;
    store_pair(a_.dz, t, __fmul_rn(dz[0], y[0]), __fmul_rn(dz[1], y[1]), gated());
    store_pair(a_.y, t, __fmul_rn(y[0], gate[0]), __fmul_rn(y[1], gate[1]), a_.y.data != nullptr);
  }

  // Against time: g, and with it dB, dA, and gB and gA, which du and ddelta are made of.
  __device__ __forceinline__ void against(int tile, int part, const float (&u)[2], const OfPart& decay,
                                          const OfPart& before) {
    auto& here = shared_.part[warp_][part];
    const float4 own_step = here.step[lane_];
    float share_B[2][kPart], share_A[2][kPart];
    SumOverChannels<kExact> dB(own_step.z, own_step.w);
#pragma unroll
    for (int i = kPart - 1; i >= 0; --i) {
      const float2 dt = *reinterpret_cast<const float2*>(&here.step[i * kPairs + p_]);
      const float2 dy = shared_.dy[warp_ * kWarp + i * kPairs + p_];
      const auto B = states_at(tile, part, i, 0), C = states_at(tile, part, i, 1);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        g_[c][n] = __fmaf_rn(c == 0 ? dy.x : dy.y, C.value[n], g_[c][n]);
      }
      dB.add(j_ == i, g_);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        share_B[c][i] = n == 0 ? __fmul_rn(g_[c][n], B.value[n]) : __fmaf_rn(g_[c][n], B.value[n], share_B[c][i]);
        g_[c][n] = __fmul_rn(g_[c][n], decay[i][c][n]);
        const float through = __fmul_rn(g_[c][n], before[i][c][n]);  // the gradient of dt A
        share_A[c][i] = n == 0 ? __fmul_rn(through, rate_[c][n]) : __fmaf_rn(through, rate_[c][n], share_A[c][i]);
        dA_[c][n] = __fmaf_rn(through, c == 0 ? dt.x : dt.y, dA_[c][n]);
      }
    }
    wait_for_copies();  // asked for at the part's start
    const typename Tile::Step next = step_asked_for(tile - 1, part);
    take_rest();
    sums_of(here)[0] = dB.total(lane_);

    const float2 slope = here.slope[lane_], dy = shared_.dy[threadIdx.x];
    const float4 constants = shared_.constants[warp_][p_];
    float du[2], ddelta[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float gB = sum_over_states(share_B[c], lane_), gA = sum_over_states(share_A[c], lane_);
      du[c] = __fmaf_rn(c == 0 ? own_step.x : own_step.y, gB,
                        __fmul_rn(c == 0 ? constants.x : constants.y, c == 0 ? dy.x : dy.y));
      ddelta[c] = __fmul_rn(__fmaf_rn(u[c], gB, __fmul_rn(gA, kLn2)), c == 0 ? slope.x : slope.y);
      dbias_[c] = __fadd_rn(dbias_[c], ddelta[c]);
    }
    const int t = tile * kTile + part * kPart + j_;
    store_pair(a_.du, t, du[0], du[1]);
    store_pair(a_.ddelta, t, ddelta[0], ddelta[1]);
    place(tile - 1, part, next);
  }

  __device__ __forceinline__ float2* sums_of(typename P::Part& part) const {
    return reinterpret_cast<float2*>(part.state) + sum_at_;
  }

  __device__ void add_up_tile() {
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      float4& total = shared_.totals[k][threadIdx.x];
      const float4 more = k == 2 ? float4{dskip_[0], dskip_[1], dbias_[0], dbias_[1]}
                                 : float4{dA_[k % 2][0], dA_[k % 2][1], dA_[k % 2][2], dA_[k % 2][3]};
      const float4 x = total;
      total = {__fadd_rn(x.x, more.x), __fadd_rn(x.y, more.y), __fadd_rn(x.z, more.z), __fadd_rn(x.w, more.w)};
    }
#pragma unroll
    for (int k = 0; k < 2 * kStates; ++k) dA_[k / kStates][k % kStates] = 0.0f;
    dskip_[0] = dskip_[1] = dbias_[0] = dbias_[1] = 0.0f;
  }

  // The four lanes with the same channels have summed up different tokens.
  __device__ float sum_tokens(float x) const {
    x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, 8));
    return __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, 16));
  }

  const int sum_at_;  // where this lane's two sums over channels belong among those of the warp
  float rate_[2][kStates], h_[2][kStates], g_[2][kStates], dA_[2][kStates] = {};
  float dskip_[2] = {}, dbias_[2] = {};
};

// Processors before Hopper have shared memory for two blocks only, so that their threads may have more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr int kMostBlocks = 2;
#else
inline constexpr int kMostBlocks = 3;
#endif

template <class P, bool kUsual>
__global__ void __launch_bounds__(P::kThreads, P::kBlocks < kMostBlocks ? P::kBlocks : kMostBlocks)
    scan_backward(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  BackwardWarp<P, kUsual>(args, *reinterpret_cast<typename P::Shared*>(memory)).run();
}

}  // namespace mamba_lab::ssm
