// How a team deals out its work, and a tile as its warps see it in shared memory. What a team is: ssm_pack_forward_team.h.

#pragma once

#include "ssm_pack_forward.h"

namespace mamba_lab::ssm {

// kStatesOfLane: 4, and a scanner has 8 channels; or 8, and it has 16: less shared memory traffic for each state, but a
// sequence is spread over half as many scanners. No plan changes a bit of the results.
template <int kStatesOfLane, int kTokensUnrolled, int kBlocksOfProcessor>
struct TeamPlan {
  static constexpr int kN = 16;                         // states of a channel
  static constexpr int kScanners = 4, kStagers = 4;     // warps: one of each on every scheduler
  static constexpr int kThreads = (kScanners + kStagers) * kWarp;
  static constexpr int kBlocks = kBlocksOfProcessor;    // that must fit on a multiprocessor: bounds the registers
  static constexpr int kUnroll = kTokensUnrolled;       // tokens in one round of a scanner's loop
  static constexpr int kStates = kStatesOfLane;         // states of a scanner's lane: 4 or 8
  static constexpr int kLanes = kN / kStates;           // lanes of a scanner that share a channel: 4 or 2
  static constexpr int kOfScanner = kWarp / kLanes;     // channels: 8 or 16
  static constexpr int kChannels = kScanners * kOfScanner;
  static constexpr int kOwned = 8;                      // a stager's lane owns 8 neighbouring channels of a token
  static constexpr int kTile = kStagers * kWarp * kOwned / kChannels;  // tokens: so that each is owned once
};

// A tile in shared memory, there twice. Who reads or writes at the same time meets different banks: that is what the
// gaps are for, and the order in which sums lie.
template <class P>
struct TeamTile {
  static constexpr int kStepRow = P::kChannels + P::kChannels / 8;
  static constexpr int kSumRow = P::kLanes * P::kChannels + 4;

  float4 step[P::kTile / 2][kStepRow];  // dt and dt u of an even token, then of the odd one after it
  alignas(16) float B[P::kTile][P::kN];
  alignas(16) float C[P::kTile][P::kN];
  alignas(16) float sums[P::kTile][kSumRow];  // C h, summed over the states of one lane

  static __device__ int step_at(int channel) { return channel + channel / 8; }
  static __device__ int sum_at(int lane_of_channel, int channel) {
    return lane_of_channel * P::kChannels + (channel ^ lane_of_channel * P::kOfScanner ^ channel / 32 * 4);
  }
};

// All warps of a team wait for each other. In PTX, because they do so at different places of the code.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 0;" ::: "memory"); }

}  // namespace mamba_lab::ssm
