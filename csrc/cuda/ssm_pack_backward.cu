// The backward pass of the packed selective scan on the GPU: its launch, and the sums of what blocks leave.
//
// Ladder, one H200, bfloat16, D 4096, N 16, gate, softplus, D and bias, published lengths; all sums included. ms at
// 4,096 / 16,384 / 65,536 tokens; instructions of a warp for 4 tokens x 16 channels x 16 states (32 states of a
// thread):
//
//   mamba-ssm, the same tokens as one sequence                1.340 / 5.044 / 20.1
//   our Triton kernel                                         1.27  / 4.23  / 16.6
//   1 four lanes a channel, 4 states of 2 channels each;      1.395 / 2.723 / 10.55   1106 instructions
//     4 tokens at a time in registers; dB and dC summed over
//     channels by the tensor cores (7 shuffles for 8 states
//     else). Loads are asked for ahead, but their halves were
//     put together at once: that waited for them
//   2 a pair is loaded as one word; values on the left of the 0.840 / 1.749 / 6.83     886
//     tensor cores' product, 4 of a thread at a time, not 2
//   3 loads asked for once the last ones are used: a wait for 0.677 / 1.618 / 6.18     905
//     one was a wait for all, 19% of the samples; dA, dD and
//     ddelta_bias summed by tile first: dD's error 3e-7 -> 1e-7
//   4 softplus, gate and pairs known when compiling           0.664 / 1.557 / 6.00     891
//   5 stores without a branch, a part is one stretch of code  0.703 / 1.572 / 6.04     862
//     (and exponentials wait for loads: 17% of the samples at
//     4,096; the compiler has six counters to wait with)
//   6 copies that go to shared memory on their own (cp.async) 0.585 / 1.526 / 5.99     875
//     need no counter; few blocks get 255 registers, not 168
//   7 one wait for copies a part, half a part after they were 0.556 / 1.494 / 5.80     865
//     asked for; the gate beside the sweep, not before it; the
//     first sweep's loads ahead of its stores; every second
//     round of blocks the other way round (4,096 tokens)
//   8 a lane copies 16 bytes: two instructions a part, not    0.541 / 1.453 / 5.58     834
//     six; addresses move on from part to part; dt and dy of
//     a token in one load; the order of states in the tensor
//     cores' rows keeps h and C in different banks
//   9 g and B, too; a state's two channels one after the      0.545 / 1.421 / 5.47     831
//     other; addresses of states computed when needed
//  10 few blocks: dy goes from lane to lane, no barrier parts 0.512 / 1.416 / 5.51     831
//     the sweeps, copies are fetched into L2 a part ahead; many
//     blocks: longest first, no round goes backwards (version
//     9 beside it: 0.548 / 1.432 / 5.52)
//
// What lost: sums over states through shared memory (half the instructions, but 4 to 7% slower: its pipe is busy in
// half of all cycles, and they wait for one another); a warp's barrier amid a sweep (2 to 4%: no load is moved across
// it); a part along time and the one after it against time in one stretch, with 255 registers (16%); blocks of 2, 3, 8
// or 12 warps (7 to 35%); two blocks of 255 registers for many tokens (9%); the decays of the part before, computed
// against time where their unit is idle: 6% as the assembler moved them to the end, 0 to 8% with branches, never taken,
// that use them and so hold them in place (then they are 5% of the samples instead of 20%, and nothing is gained). h as
// fma(dt u, B, decay h), which reads fewer registers at a time, and sums over states begun after two of four tokens: no
// gain, as registers run short. Not tried: sums of two blocks in a cluster (all sums are 2% of the time), 16 warps
// (they would have to do with 128 registers).
//
// Cost at 65,536 tokens, 268 million (t, d). Bytes: 14 of rows and 2 of checkpoints each, and partial sums written
// and read, 5.4 GB: 1.3 ms. Exponentials and reciprocals: 2.1 a state, 2.2 ms. Instructions: 831 for 32 states of a
// thread, 3.7 ms if every scheduler issued one a cycle. But it reads one even and one odd register a cycle, with one
// cycle of slack. Measured, in cycles a scheduler: a product of an even and an odd register 1.05, of two even ones
// 2.03; a fused multiply-add of three registers 2.03, of one bank 3.03, of two registers 1.05; a select 2.2; a product
// on the tensor cores (10 registers) 6.3; an exponential 8.0. What the instruction before has read is not read again.
// Either bank is asked for as many registers as there are instructions, but not evenly. A simulation of three warps by
// these rules takes 8,680 cycles for a warp's 32 tokens, 7,600 without them, and tells variants apart to 1 or 2%: the
// differences between the last versions are mostly those of how registers fell. Achieved: 5.47 ms, about 9,800 cycles
// with what lies between tiles, with 3 warps a scheduler (168 registers and 76 KB a block allow no more).
//
// At 4,096 tokens (940, 1,632, 166, 860 and 498) the schedule sets the time: 320 blocks, two to a processor. A warp
// alone on its scheduler takes 0.94 us for 4 tokens (255 registers a thread), two take 1.5 us for both; the longest one
// shares its processors with 498 and 166 tokens: 166 x 1.5 + 242 x 0.94 = 0.48 ms, and the sums. Alone it would take
// 0.38 ms, but a block cannot choose its processor: of 188 later blocks only 73 came to that of the block 132 before,
// and an order made for that lost 3 to 11%.
//
// Errors against float64: bfloat16 gradients 1.00 of rounding alone, dB and dC 1.02 of it (the tensor cores drop
// digits); in float32, where sums take three products instead of one, 5e-7; dA 1.3e-6, dD 0.9e-7, ddelta_bias 4e-7
// (one sequence of 2,048 tokens). dD was 1.7e-7 before what rounding takes off a sum was carried on to the next tile.

#include "ssm_pack_backward_generic.h"
#include "ssm_pack_backward_warp.h"

#include <algorithm>
#include <atomic>

namespace mamba_lab::ssm {
namespace {

// Blocks take sequences group, group + groups, ... of the order, so that the partial sums of dA stay small.
constexpr int64_t kMostGroups = 128;

struct Parts {
  int64_t channel_blocks, groups;
  int64_t states, dA, dskip, dbias, floats;  // where each part starts, and the end

  Parts(const Problem& p, int block_channels)
      : channel_blocks((p.D + block_channels - 1) / block_channels), groups(std::min(p.sequences, kMostGroups)) {
    states = 0;
    dA = states + 2 * channel_blocks * p.T * p.N;
    dskip = dA + groups * p.D * p.N;
    dbias = dskip + (p.skip != nullptr ? groups * p.D : 0);
    floats = dbias + (p.delta_bias != nullptr ? groups * p.D : 0);
  }
};

struct Sums {
  const float *states, *dA_parts, *dskip_parts, *dbias_parts;
  void *dB, *dC;
  float *dA, *dskip, *dbias;
  int64_t of_states, of_dA, of_channels;  // numbers in dB, in dA, in dskip
  int channel_blocks, groups;
};

template <int kCount>
__device__ __forceinline__ Packed<float, kCount> sum_of(const float* from, int64_t stride, int parts) {
  Packed<float, kCount> sum = {};
#pragma unroll 8
  for (int i = 0; i < parts; ++i, from += stride) {
    const Packed<float, kCount> x = load_packed<float, kCount>(from);
    for (int k = 0; k < kCount; ++k) sum.value[k] = __fadd_rn(sum.value[k], x.value[k]);
  }
  return sum;
}

__device__ float careful_sum_of(const float* from, int64_t stride, int parts) {
  float sum = 0.0f, more = 0.0f;
#pragma unroll 8
  for (int i = 0; i < parts; ++i, from += stride) {
    more = __fadd_rn(more, *from);
    sum = add_carefully(sum, more);
  }
  return sum;
}

// A thread adds up kCount numbers of dB, dC or dA, or one of dskip and of dbias: always from the first part to the
// last.
template <class In, int kCount>
__global__ void __launch_bounds__(256) sum_parts(const __grid_constant__ Sums a) {
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kCount;
  if (i < 2 * a.of_states) {
    const bool second = i >= a.of_states;
    if (second) i -= a.of_states;
    const float* from = a.states + (second ? a.channel_blocks * a.of_states : 0) + i;
    const Packed<float, kCount> sum = sum_of<kCount>(from, a.of_states, a.channel_blocks);
    Packed<In, kCount> rounded;
    for (int k = 0; k < kCount; ++k) rounded.value[k] = narrow<In>(sum.value[k]);
    store_packed<In, kCount>(static_cast<In*>(second ? a.dC : a.dB) + i, rounded);
    return;
  }
  i -= 2 * a.of_states;
  if (i < a.of_dA) {
    store_packed<float, kCount>(a.dA + i, sum_of<kCount>(a.dA_parts + i, a.of_dA, a.groups));
    return;
  }
  i = (i - a.of_dA) / kCount;
  if (i >= a.of_channels) return;
  if (a.dskip != nullptr) a.dskip[i] = careful_sum_of(a.dskip_parts + i, a.of_channels, a.groups);
  if (a.dbias != nullptr) a.dbias[i] = careful_sum_of(a.dbias_parts + i, a.of_channels, a.groups);
}

// `ready` has a bit for each device on which this kernel may use as much shared memory as it does: asking for that
// takes a lock of the driver's, so it is done once.
template <class Shared>
cudaError_t launch(void (*kernel)(BackwardArguments), std::atomic<uint64_t>& ready, int device, int threads,
                   const BackwardArguments& args, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared);
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((ready.load(std::memory_order_relaxed) & bit) == 0) {
    if (cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return e;
    ready.fetch_or(bit, std::memory_order_relaxed);
  }
  const int64_t blocks = int64_t(args.channel_blocks) * args.groups;
  if (blocks > 0) kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream>>>(args);
  return cudaGetLastError();
}

template <class In>
InputRows input(const Rows& rows) {
  return {rows.data, static_cast<uint32_t>(rows.stride * sizeof(In))};
}

bool aligned(const void* data, uint32_t bytes, uint32_t to) {
  return bytes % to == 0 && reinterpret_cast<uintptr_t>(data) % to == 0;
}

template <class In>
cudaError_t launch_sums(const Sums& sums, bool by_four, cudaStream_t stream) {
  const int64_t threads = (2 * sums.of_states + sums.of_dA) / (by_four ? 4 : 1) + sums.of_channels;
  if (threads == 0) return cudaSuccess;
  const unsigned blocks = static_cast<unsigned>((threads + 255) / 256);
  if (by_four) {
    sum_parts<In, 4><<<blocks, 256, 0, stream>>>(sums);
  } else {
    sum_parts<In, 1><<<blocks, 256, 0, stream>>>(sums);
  }
  return cudaGetLastError();
}

// Three blocks on a processor with 168 registers a thread, or two with 255 of them: for pairs of float32, for the rarer
// cases, and where so few blocks are under way that none waits for room. All of them give the same bits.
template <class In>
using Three = BackwardPlan<In, 4, std::is_same_v<In, float> ? 2 : 3>;
template <class In>
using Two = BackwardPlan<In, 4, 2>;

template <class P, bool kUsual>
cudaError_t launch_scan(int device, const BackwardArguments& args, cudaStream_t stream) {
  static std::atomic<uint64_t> ready{0};
  return launch<typename P::Shared>(scan_backward<P, kUsual>, ready, device, P::kThreads, args, stream);
}

template <class In>
cudaError_t launch_generic(int device, const BackwardArguments& args, cudaStream_t stream) {
  static std::atomic<uint64_t> ready{0};
  return launch<GenericShared>(generic_backward<In>, ready, device, kGenericThreads, args, stream);
}

template <class In, class Many, class Few>
cudaError_t backward_of(const Problem& p, const Gradients& out, cudaStream_t stream) {
  static_assert(Many::kBlockChannels == Few::kBlockChannels);
  const bool fast = p.N == kN;
  const Parts parts(p, fast ? Few::kBlockChannels : kGenericThreads);
  float* const work = static_cast<float*>(out.workspace);
  const uint32_t size = sizeof(In), row = static_cast<uint32_t>(p.D) * size;
  const uint32_t dz_row = out.dz_stride == 0 ? row : static_cast<uint32_t>(out.dz_stride) * size;
  int device = 0, processors = 0;
  if (cudaError_t e = cudaGetDevice(&device)) return e;
  if (cudaError_t e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
  const BackwardArguments args{
      input<In>(p.u), input<In>(p.delta), input<In>(p.B), input<In>(p.C), input<In>(p.z), input<In>(out.dy),
      out.du, out.ddelta, out.y, out.dz, row, dz_row, out.y != nullptr,
      p.A, p.skip, p.delta_bias, out.dfinal_state, out.checkpoints, out.dinitial_state,
      work + parts.states, work + parts.dA, p.skip != nullptr ? work + parts.dskip : nullptr,
      p.delta_bias != nullptr ? work + parts.dbias : nullptr, p.cu_seqlens, p.order, p.T, processors,
      static_cast<int>(p.D), static_cast<int>(p.N), static_cast<int>(p.sequences),
      static_cast<int>(parts.channel_blocks), static_cast<int>(parts.groups), p.softplus};

  bool usual = p.D % kChannels == 0 && p.softplus && p.z.data != nullptr;
  for (const InputRows& x : {args.u, args.delta, args.z, args.dy}) usual = usual && aligned(x.data, x.bytes, 16);
  for (const InputRows& x : {args.B, args.C}) usual = usual && aligned(x.data, x.bytes, 4 * size);
  for (void* x : {out.du, out.ddelta, out.y}) usual = usual && aligned(x, row, 2 * size);
  usual = usual && aligned(out.dz, dz_row, 2 * size);
  const bool few = parts.channel_blocks * parts.groups <= 3 * processors;
  const cudaError_t error = !fast    ? launch_generic<In>(device, args, stream)
                            : !usual ? launch_scan<Few, false>(device, args, stream)
                            : few    ? launch_scan<Few, true>(device, args, stream)
                                     : launch_scan<Many, true>(device, args, stream);
  if (error != cudaSuccess) return error;
  const Sums sums{args.states_parts, args.dA_parts, args.dskip_parts, args.dbias_parts, out.dB, out.dC, out.dA, out.dD,
                  out.ddelta_bias, p.T * p.N, p.D * p.N, p.D, args.channel_blocks, args.groups};
  return launch_sums<In>(sums, p.N % 4 == 0, stream);
}

}  // namespace

int64_t backward_workspace(const Problem& problem) {
  const int block_channels = problem.N == kN ? Two<float>::kBlockChannels : kGenericThreads;
  return Parts(problem, block_channels).floats * static_cast<int64_t>(sizeof(float));
}

cudaError_t backward(const Problem& problem, const Gradients& gradients, cudaStream_t stream) {
  return problem.bf16 ? backward_of<BFloat16, Three<BFloat16>, Two<BFloat16>>(problem, gradients, stream)
                      : backward_of<float, Three<float>, Two<float>>(problem, gradients, stream);
}

}  // namespace mamba_lab::ssm
