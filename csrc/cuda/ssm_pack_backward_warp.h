// The backward pass of the packed selective scan: what one warp computes. The picture is in ssm_pack_backward.h.

#pragma once

#include "ssm_pack_backward_tile.h"

namespace mamba_lab::ssm {

template <class P, bool kUsual>
class BackwardWarp : public BackwardTile<P, kUsual> {
 public:
  using Tile = BackwardTile<P, kUsual>;
  using typename Tile::In, typename Tile::Word, typename Tile::Words, typename Tile::Cursor;
  static constexpr bool kExact = std::is_same_v<In, float>;

  using Tile::Tile;

  __device__ void run() {
    load_constants();
    for (int i = group_; i < a_.sequences; i += a_.groups) sequence(a_.order[i]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 x = shared_.dA[c][threadIdx.x];
      dA_[c][0] = x.x, dA_[c][1] = x.y, dA_[c][2] = x.z, dA_[c][3] = x.w;
    }
    store_states(a_.dA_parts + int64_t(group_) * a_.D * kN, dA_);
    const int lane = lane_again(), j = lane / kPairs, channel = channel_ + j % 2;
    float* const to = j < 2 ? a_.dskip_parts : a_.dbias_parts;
    if (to != nullptr && channel < a_.D) to[int64_t(group_) * a_.D + channel] = shared_.dD_dbias[warp_ * kWarp + lane];
  }

 private:
  using Tile::a_, Tile::shared_, Tile::warp_, Tile::lane_, Tile::j_, Tile::p_, Tile::group_, Tile::channel_,
      Tile::at_channel_, Tile::token_, Tile::start_, Tile::length_, Tile::rest_u_, Tile::rest_dy_, Tile::rest_z_,
      Tile::gated, Tile::exists, Tile::row, Tile::start_copies, Tile::ask, Tile::wait, Tile::ask_and_place,
      Tile::take_rest, Tile::step_asked_for, Tile::place, Tile::cursor, Tile::two, Tile::four, Tile::states_at,
      Tile::kStep, Tile::kSlope, Tile::store_pair, Tile::sum_warps, Tile::checkpoint, Tile::load_states,
      Tile::fetch_states, Tile::store_states;
  static constexpr uint32_t kPartBytes = sizeof(typename P::Part), kSums = kPart * kN * 4;  // of dB; dC's follow

  __device__ void load_constants() {
    const auto constant = [&](const float* from, int c) {
      return from != nullptr && channel_ + c < a_.D ? from[channel_ + c] : 0.0f;
    };
    if (j_ == 0) {
      shared_.constants[warp_][p_] = {constant(a_.skip, 0), constant(a_.skip, 1), constant(a_.bias, 0),
                                      constant(a_.bias, 1)};
    }
    for (int k = 0; k < 2; ++k) shared_.dA[k][threadIdx.x] = {};
    shared_.dD_dbias[threadIdx.x] = 0.0f;
    __syncwarp();
    load_states(a_.A, rate_);
#pragma unroll
    for (int k = 0; k < 2 * kStates; ++k) rate_[k / kStates][k % kStates] = decay_rate(rate_[k / kStates][k % kStates]);
  }

  __device__ void sequence(int s) {
    start_ = a_.cu_seqlens[s];
    length_ = a_.cu_seqlens[s + 1] - static_cast<int>(start_);
    const int64_t states = int64_t(a_.D) * kN;
    load_states(a_.dfinal_state == nullptr ? nullptr : a_.dfinal_state + s * states, g_);
    const int tiles = (length_ + kTile - 1) / kTile;
    if (tiles > 0) {
      load_states(checkpoint(s, tiles - 1), h_);
      start_copies(tiles * kTile + (kParts - 1) * kPart);
      Cursor at = cursor(tiles);
#pragma unroll 1
      for (int part = kParts - 1; part >= 0; --part, at.step_back()) ask_and_place(tiles, part, at);
      for (int tile = tiles - 1; tile >= 0; --tile) {
        at.turn(tile + 1);
        __syncthreads();  // B and C are there, and the sums of the tile before have been taken
        const int parts = min(kParts, (length_ - tile * kTile + kPart - 1) / kPart);
        if (tile > 0) fetch_states(checkpoint(s, tile - 1));
        first_sweep(at);
#pragma unroll 1
        for (int part = kParts - 1; part >= parts; --part, at.step_back()) ask_and_place(tile, part, at);
#pragma unroll 1
        for (int part = parts - 1; part >= 0; --part, at.step_back()) work_on(tile, part, at);
        add_up_tile();
        if (tile > 0) load_states(checkpoint(s, tile - 1), h_);
        __syncthreads();
        sum_warps(tile);
      }
    }
    if (a_.dinitial_state != nullptr) store_states(a_.dinitial_state + s * states, g_);
  }

  // --- The sweeps ---

  // The states before each part of the tile, at whose last part the cursor is. Tokens that do not exist have steps of
  // 0, so that all parts can be swept; loads stand before the stores of the part they follow, or they would wait for
  // these.
  __device__ __forceinline__ void first_sweep(const Cursor& at) {
    float4 step[kPart];
    Packed<float, kStates> B[kPart];
    const auto load = [&](int part) {
      const uint32_t back = kParts - 1 - part;
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        step[i] = four(at.pair - back * kPartBytes + kStep + i * kPairs * 16);
        B[i] = states_at(at.states - back * Tile::kStatesBytes, i, 0);
      }
    };
    load(0);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        four(at.lane - (kParts - 1 - part) * kPartBytes + c * kWarp * 16) = {h_[c][0], h_[c][1], h_[c][2], h_[c][3]};
      }
      if (part + 1 == kParts) break;
      float decay[kPart][2][kStates], added[kPart][2][kStates];
#pragma unroll
      for (int k = 0; k < kPart * 2 * kStates; ++k) {
        const int i = k / (2 * kStates), c = k % 2, n = k / 2 % kStates;
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
  __device__ __forceinline__ void work_on(int tile, int part, const Cursor& at) {
    OfPart decay, before;
    const float u[2] = {Words::first(rest_u_), Words::second(rest_u_)};
    ask(tile * kTile + part * kPart);
    const Own own = along(tile, part, at, u, decay, before);
    against(tile, part, at, u, own, decay, before);
  }

  // Of this lane's token.
  struct Own {
    float2 dtu, dy, dC;
  };

  // Along time: the states once more, and with them y, so dz, and dC.
  __device__ __forceinline__ Own along(int tile, int part, const Cursor& at, const float (&u)[2], OfPart& decay,
                                       OfPart& before) {
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

    float h[2][kStates], share[2][kPart];
    SumOverChannels<kExact> dC(dy[0], dy[1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 from = four(at.lane + c * kWarp * 16);
      h[c][0] = from.x, h[c][1] = from.y, h[c][2] = from.z, h[c][3] = from.w;
    }
    const float4 step = four(at.lane + kStep);
    if constexpr (!P::kFew) shared_.now[threadIdx.x] = {step.x, step.y, dy[0], dy[1]};
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const float4 step = four(at.pair + kStep + i * kPairs * 16);
      const auto B = states_at(at.states, i, 0), C = states_at(at.states, i, 1);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k % 2, n = k / 2;
        before[i][c][n] = h[c][n];
        decay[i][c][n] = exp2_fast(__fmul_rn(c == 0 ? step.x : step.y, rate_[c][n]));
        h[c][n] = __fmaf_rn(decay[i][c][n], h[c][n], __fmul_rn(c == 0 ? step.z : step.w, B.value[n]));
        share[c][i] = n == 0 ? __fmul_rn(h[c][n], C.value[n]) : __fmaf_rn(h[c][n], C.value[n], share[c][i]);
      }
      dC.add(token_ == i, h);
    }
    const Own own{{step.z, step.w}, {dy[0], dy[1]}, dC.total(lane_)};
    if constexpr (!P::kFew) {
      __syncwarp();  // what lies in `now` is there, and all have taken the part's states
      two(at.sum + kSums) = own.dC;
    }

    const float4 constants = shared_.constants[warp_][p_];
    const float y[2] = {__fmaf_rn(constants.x, u[0], sum_over_states(share[0], lane_)),
                        __fmaf_rn(constants.y, u[1], sum_over_states(share[1], lane_))};
    const uint32_t t = tile * kTile + part * kPart + token_;
    const bool wanted = exists(t);
    store_pair(a_.dz, row(t) * a_.dz_bytes + at_channel_, wanted && gated(), __fmul_rn(dz[0], y[0]),
               __fmul_rn(dz[1], y[1]));
    store_pair(a_.y, row(t) * a_.row_bytes + at_channel_, wanted && a_.wants_y, __fmul_rn(y[0], gate[0]),
               __fmul_rn(y[1], gate[1]));
    return own;
  }

  // dt and dy of token i of the part and this lane's channels. Where few warps are under way they come from the lanes
  // themselves: no barrier then parts the two sweeps, which takes registers.
  __device__ __forceinline__ float4 step_and_dy(const Cursor& at, int i, const Own& own) const {
    if constexpr (!P::kFew) return shared_.now[warp_ * kWarp + i * kPairs + p_];
    const float2 dt = two(at.pair + kStep + i * kPairs * 16);
    return {dt.x, dt.y, of_token(i, own.dy.x), of_token(i, own.dy.y)};
  }

  // Against time: g, and with it dB, dA, and gB and gA, which du and ddelta are made of.
  __device__ __forceinline__ void against(int tile, int part, const Cursor& at, const float (&u)[2], const Own& own,
                                          const OfPart& decay, const OfPart& before) {
    float share_B[2][kPart], share_A[2][kPart];
    SumOverChannels<kExact> dB(own.dtu.x, own.dtu.y);
#pragma unroll
    for (int i = kPart - 1; i >= 0; --i) {
      const float4 step = step_and_dy(at, i, own);
      const auto B = states_at(at.states, i, 0), C = states_at(at.states, i, 1);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k / kStates, n = k % kStates;
        g_[c][n] = __fmaf_rn(c == 0 ? step.z : step.w, C.value[n], g_[c][n]);
      }
      dB.add(token_ == i, g_);
#pragma unroll
      for (int k = 0; k < 2 * kStates; ++k) {
        const int c = k % 2, n = k / 2;
        share_B[c][i] = n == 0 ? __fmul_rn(g_[c][n], B.value[n]) : __fmaf_rn(g_[c][n], B.value[n], share_B[c][i]);
        g_[c][n] = __fmul_rn(g_[c][n], decay[i][c][n]);
        const float through = __fmul_rn(g_[c][n], before[i][c][n]);  // the gradient of dt A
        share_A[c][i] = n == 0 ? __fmul_rn(through, rate_[c][n]) : __fmaf_rn(through, rate_[c][n], share_A[c][i]);
        dA_[c][n] = __fmaf_rn(through, c == 0 ? step.x : step.y, dA_[c][n]);
      }
    }
    wait();  // for what was asked for at the part's start
    const typename Tile::Step next = step_asked_for(tile - 1, part);
    take_rest();
    two(at.sum) = dB.total(lane_);
    const float2 slope = two(at.sum + kSlope);
    float4 mine;  // dt and dy
    if constexpr (P::kFew) {
      const float2 dt = two(at.lane + kStep);
      mine = {dt.x, dt.y, own.dy.x, own.dy.y};
      two(at.sum + kSums) = own.dC;
    } else {
      mine = shared_.now[threadIdx.x];
    }

    const float4 constants = shared_.constants[warp_][p_];
    float du[2], ddelta[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float gB = sum_over_states(share_B[c], lane_), gA = sum_over_states(share_A[c], lane_);
      du[c] = __fmaf_rn(c == 0 ? mine.x : mine.y, gB,
                        __fmul_rn(c == 0 ? constants.x : constants.y, c == 0 ? mine.z : mine.w));
      ddelta[c] = __fmul_rn(__fmaf_rn(u[c], gB, __fmul_rn(gA, kLn2)), c == 0 ? slope.x : slope.y);
      dbias_[c] = __fadd_rn(dbias_[c], ddelta[c]);
    }
    const uint32_t t = tile * kTile + part * kPart + token_;
    const bool wanted = exists(t);
    store_pair(a_.du, row(t) * a_.row_bytes + at_channel_, wanted, du[0], du[1]);
    store_pair(a_.ddelta, row(t) * a_.row_bytes + at_channel_, wanted, ddelta[0], ddelta[1]);
    place(at, next);
    __syncwarp();  // before the next part asks and writes
  }

  __device__ void add_up_tile() {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float4& total = shared_.dA[k][threadIdx.x];
      const float4 more{dA_[k][0], dA_[k][1], dA_[k][2], dA_[k][3]};
      const float4 x = total;
      total = {__fadd_rn(x.x, more.x), __fadd_rn(x.y, more.y), __fadd_rn(x.z, more.z), __fadd_rn(x.w, more.w)};
    }
#pragma unroll
    for (int k = 0; k < 2 * kStates; ++k) dA_[k / kStates][k % kStates] = 0.0f;
    // Of four sums each lane adds up one, over the four lanes with the same channels and over the tiles so far.
    float& total = shared_.dD_dbias[threadIdx.x];
    const float shares[] = {dskip_[0], dskip_[1], dbias_[0], dbias_[1]};
    float more = sum_over_states(shares, lane_);
    total = add_carefully(total, more);
    dskip_[0] = token_ == 0 ? more : 0.0f, dskip_[1] = token_ == 1 ? more : 0.0f;
    dbias_[0] = token_ == 2 ? more : 0.0f, dbias_[1] = token_ == 3 ? more : 0.0f;
  }

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
