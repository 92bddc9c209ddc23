// The forward pass of the packed selective scan: y, the final states, and a state every 32 tokens for the backward
// pass. What a warp does is in ssm_pack_forward.h, what a team of warps does in ssm_pack_forward_team.h.
//
// The ladder. Milliseconds on one H200 for packs of 4,096 / 16,384 / 65,536 tokens in 7 / 24 / 98 sequences of up to
// 2,048 (D 4096, N 16, bfloat16, softplus, bias, skip, gate, checkpoints). mamba-ssm's scan of as many tokens in one
// sequence: 0.305 / 1.486 / 5.816.
//
//   1  2.57  / 2.80  / 3.36   a thread a channel, 16 states in registers, everything read where it is needed. The
//                             longest sequence alone takes 2.5 ms: each token waits for memory.
//   2  0.251 / 0.488 / 1.896  a warp walks a sequence with 16 channels, four lanes a channel. Tiles of 16 tokens in
//                             shared memory, asked for a tile ahead; softplus and gate once for each token and
//                             channel. No barrier for a block. 94% of what shared memory and L1 can do: neighbouring
//                             lanes read different rows, so that one load touched 32 cache lines.
//   3  0.237 / 0.444 / 1.548  neighbours read the same row (8 lines); 32 channels a warp for the largest pack, 16 for
//                             the others; sums over the lanes that share a channel by sending what the other needs.
//   4  0.161 / 0.435 / 1.554  y stays in registers for a round. A store to shared memory between two tokens had held
//                             back the loads of the second one: 192 cycles a token for a warp alone, now 151. In the
//                             smallest pack one block a multiprocessor: the longest sequence has its schedulers alone.
//   5  0.119 / 0.400 / 1.541  a team of warps, but for the largest pack: scanners with 8 channels (or 16), stagers for
//                             the rest. The longest sequence is spread over twice as many schedulers, at 62 cycles a
//                             token. One sequence of 65,536 tokens takes 2.07 instead of 8.9.
//
// On the way to 5, in the smallest pack: a stager for each scanner of 16 channels, each pair by itself, 0.143. Teams
// that share B and C, 0.137: lanes next to each other read different states, at 4 cycles of shared memory for a load
// that takes 2 where they read the same, 0.125. A stager that waited for its newest loads whenever it needed an older
// one, 0.119.
//
// What lost in the teams, in the smallest pack: three blocks a multiprocessor (fewer registers: more instructions, and
// more that read two registers of the same bank) 0.145; no prefetch into the L2 cache 0.123; scanners with four states
// of 32 channels, not all states of 8, 0.120; blocks that start to and fro instead of in order, the same; u kept in
// registers from stage to finish, the same. In the second one, more shared memory than two teams need (it is the L1
// cache's) 0.407.
//
// What lost in the one-warp plan, on the largest pack: 8 channels a warp (more shared memory traffic for each state)
// 2.82; 16 tokens unrolled with 32 channels (registers, instruction cache) 1.72; 5 blocks of 96 registers 1.86; staging
// the next tile between the rounds of this one 1.76; lanes dealt as in a team (one more select a token) 1.56; decay * h
// rounded before dt u B is added (an instruction that reads a register less) 1.58.
//
// Cost for 65,536 tokens, in milliseconds if it were all: memory 0.63 (u, delta, z, y once, a float32 state every 32
// tokens), exponentials 1.22 (16 for the decays, 1 for softplus, 1 and a reciprocal for the gate; 16 a clock and
// multiprocessor), instructions 1.06 (for each token, channel and state 5.8 in the scan, 2.4 around it), shared memory
// 0.88. Achieved: 1.54, 79% of the exponential unit, 67% of the issue slots. But most instructions of the scan read
// three registers, and a scheduler reads one with an even number and one with an odd number a cycle: counted so, they
// take 1.49. A polynomial instead of an exponential costs ten instructions: there is no room for them.
//
// Cost for one long sequence, in cycles a token of a scanner: exponentials 38, registers read 46. Achieved: 62.

#include "ssm_pack_forward.h"
#include "ssm_pack_forward_generic.h"
#include "ssm_pack_forward_team.h"

#include <algorithm>
#include <atomic>

namespace mamba_lab::ssm {
namespace {

struct Processors {
  int device = 0, count = 1, shared_bytes = 0, shared_bytes_of_block = 0;

  Processors() {
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    cudaDeviceGetAttribute(&shared_bytes_of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
};

// What a kernel may have of shared memory: more than 48 KB a block, and as much of a processor's memory as `blocks` of
// them take. (The driver takes care of the latter, but not where a processor gets less than two blocks: then the second
// one waits.) Asked for once on each GPU, because it takes a lock in the driver.
class SharedMemory {
 public:
  template <class Kernel>
  cudaError_t allow(Kernel kernel, size_t bytes, int blocks, const Processors& on) {
    const uint64_t bit = on.device < 64 ? uint64_t{1} << on.device : 0;
    if ((devices_.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
    const size_t percent = 100 * blocks * (bytes + 1024) / on.shared_bytes + 1;  // 1 KB a block is the system's
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status == cudaSuccess) {
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    static_cast<int>(std::min<size_t>(percent, 100)));
    }
    if (status == cudaSuccess) devices_.fetch_or(bit, std::memory_order_relaxed);
    return status;
  }

 private:
  std::atomic<uint64_t> devices_{0};
};

template <class In>
ForwardArguments<In> arguments(const Problem& p, const Results& results, int channels_of_block) {
  return {rows_of<In>(p.u), rows_of<In>(p.delta), rows_of<In>(p.B), rows_of<In>(p.C), rows_of<In>(p.z),
          {static_cast<In*>(results.y), p.D}, p.A, p.skip, p.delta_bias, p.initial_state, results.final_state,
          results.checkpoints, p.cu_seqlens, p.order, static_cast<int>(p.D), static_cast<int>(p.N),
          static_cast<int>((p.D + channels_of_block - 1) / channels_of_block), p.softplus};
}

template <class In, class P>
bool fits(const Problem& p) {
  const auto aligned = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * sizeof(In) % 16 == 0;
  };
  bool fit = p.N == P::kN && p.D % P::kChannels == 0;
  for (const Rows& rows : {p.u, p.delta, p.z, p.B, p.C}) fit = fit && aligned(rows.data, rows.stride);
  return fit;
}

template <class In, class P>
cudaError_t launch(const Problem& p, const Results& results, cudaStream_t stream, const Processors& on) {
  const ForwardArguments<In> args = arguments<In>(p, results, P::kWarps * P::kChannels);
  const auto kernel = scan_forward<In, P>;
  const size_t bytes = P::kWarps * sizeof(typename P::Shared);
  static SharedMemory memory;
  const cudaError_t status = memory.allow(kernel, bytes, P::kBlocks, on);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(p.sequences * args.channel_blocks), P::kWarps * kWarp, bytes, stream>>>(args);
  return cudaGetLastError();
}

// A team that is to have a processor for itself asks for more than half of its shared memory.
template <class In, class P>
cudaError_t launch_team(const Problem& p, const Results& results, cudaStream_t stream, const Processors& on) {
  const ForwardArguments<In> args = arguments<In>(p, results, P::kChannels);
  const auto kernel = scan_forward_by_team<In, P>;
  const size_t half = on.shared_bytes_of_block / 2 + 1024, needed = 2 * sizeof(TeamTile<P>);
  const size_t bytes = P::kBlocks == 1 ? std::max(half, needed) : needed;
  static SharedMemory memory;
  const cudaError_t status = memory.allow(kernel, bytes, P::kBlocks, on);
  if (status != cudaSuccess) return status;
  const auto blocks = static_cast<unsigned>(p.sequences * args.channel_blocks);
  kernel<<<blocks, P::kThreads, bytes, stream>>>(args);
  return cudaGetLastError();
}

template <class In>
cudaError_t launch_generic(const Problem& p, const Results& results, cudaStream_t stream) {
  const ForwardArguments<In> args = arguments<In>(p, results, kWarp);
  generic_scan_forward<In><<<static_cast<unsigned>(p.sequences * args.channel_blocks), kWarp,
                             Generic::shared_bytes(p.N), stream>>>(args);
  return cudaGetLastError();
}

// Lengths are not known here. With few sequences for the processors the longest sets the time, and a plan that spreads
// it over many schedulers wins; with many, the plan that takes the least of a scheduler's time for all of them. For 31,
// 81, 217, 403, 745 and 3,041 channels a processor (in milliseconds, one sequence of 65,536 tokens first; then D 1536
// and 4,096 tokens; then D 4096 and 4,096 to 65,536):
//
//   Lone  2.07  0.069  0.142  0.285  0.555  2.21
//   Few   2.16  0.081  0.119  0.231  0.449  1.76
//   Some  3.81  0.126  0.145  0.210  0.400  1.57
//   Many  8.92  0.284  0.304  0.353  0.439  1.54
//
// Where lengths are equal, Few would win earlier (two sequences of 2,048: 0.115 instead of 0.135).
template <class In>
cudaError_t forward_of(const Problem& p, const Results& results, cudaStream_t stream) {
  if (p.sequences * p.D == 0) return cudaSuccess;
  using Lone = TeamPlan<4, 32, 1>;
  using Few = TeamPlan<4, sizeof(In) == 2 ? 32 : 16, 2>;
  using Some = TeamPlan<8, 16, 2>;
  using Many = Plan<2, 4, sizeof(In) == 2 ? 3 : 2>;
  using Narrow = Plan<4, 16, 3>;  // 16 channels at a time: for numbers of channels that the others do not take
  const Processors on;
  const int64_t channels = p.sequences * p.D / on.count;  // of all sequences, for a processor
  if (channels > 960 && fits<In, Many>(p)) return launch<In, Many>(p, results, stream, on);
  if (channels > 256 && fits<In, Some>(p)) return launch_team<In, Some>(p, results, stream, on);
  if (channels > 112 && fits<In, Few>(p)) return launch_team<In, Few>(p, results, stream, on);
  if (fits<In, Lone>(p)) return launch_team<In, Lone>(p, results, stream, on);
  if (fits<In, Narrow>(p)) return launch<In, Narrow>(p, results, stream, on);
  return launch_generic<In>(p, results, stream);
}

}  // namespace

cudaError_t forward(const Problem& problem, const Results& results, cudaStream_t stream) {
  return problem.bf16 ? forward_of<BFloat16>(problem, results, stream) : forward_of<float>(problem, results, stream);
}

}  // namespace mamba_lab::ssm
