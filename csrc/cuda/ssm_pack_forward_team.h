// The forward pass of the packed selective scan with a team of warps: where the longest sequence sets the time. (With
// many sequences, one warp that does everything takes fewer instructions: ssm_pack_forward.h.)
//
// A team is a block. It walks along one sequence with 32 channels (or 64) in tiles of 32 tokens (or 16). Four warps,
// the scanners, do the recurrence and nothing else. Four more, the stagers, do the rest: they ask for inputs, make dt
// and dt u, and finish y. All meet once a tile: while tile k is scanned, tile k - 1 is finished and tile k + 1 is
// staged. So no token waits for memory, for softplus or for the gate, and a long sequence is spread over many
// schedulers.

#pragma once

#include "ssm_pack_forward_scanner.h"
#include "ssm_pack_forward_stager.h"

namespace mamba_lab::ssm {

// Block b takes the sequence order[b / channel_blocks], the longest first: short ones fill the gaps at the end.
template <class In, class P>
__global__ void __launch_bounds__(P::kThreads, P::kBlocks)
    scan_forward_by_team(const __grid_constant__ ForwardArguments<In> args) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int channel = blockIdx.x % args.channel_blocks * P::kChannels;
  const int s = args.order[blockIdx.x / args.channel_blocks];
  auto* const tiles = reinterpret_cast<TeamTile<P>*>(memory);
  // Read from lane 0: so the compiler knows that all lanes of a warp go the same way.
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
  if (warp < P::kScanners) {
    Scanner<In, P>(args, tiles, warp, s, channel).run();
  } else {
    Stager<In, P>(args, tiles, s, channel).run();
  }
}

}  // namespace mamba_lab::ssm
