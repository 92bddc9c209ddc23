// The packed selective scan of Mamba-1 on the host. What the arguments mean: mamba_lab/ops/ssm_pack.py; the
// specification: mamba_lab/ops/reference.py. Nothing is checked here: Python does that before the call.

#include "huge_pages.h"
#include "ssm_pack_backward.h"
#include "ssm_pack_forward.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <optional>
#include <tuple>

namespace {

using namespace mamba_lab::ssm;
using mamba_lab::BFloat16;
using mamba_lab::on_large_pages;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

Tensor dense(const Tensor& x) { return torch::stable::contiguous(x); }

std::optional<Tensor> dense(const Optional& x) { return x ? Optional(dense(*x)) : x; }

// A copy only where the columns of a row do not lie side by side.
Tensor with_rows(const Tensor& x) { return x.size(1) <= 1 || x.stride(1) == 1 ? x : dense(x); }

Optional with_rows(const Optional& x) { return x ? Optional(with_rows(*x)) : x; }

template <class T>
const T* pointer(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

template <class T>
const T* pointer(const Optional& x) {
  return x ? pointer<T>(*x) : nullptr;
}

template <class In>
Rows<const In> rows(const Optional& x) {
  return x ? Rows<const In>{pointer<In>(*x), x->stride(0)} : Rows<const In>{};
}

template <class In>
Rows<In> new_rows(const Tensor& x) {
  return {static_cast<In*>(x.mutable_data_ptr()), x.size(1)};
}

template <class S>
S* written(const Tensor& x) {
  return x.numel() == 0 ? nullptr : static_cast<S*>(x.mutable_data_ptr());
}

Tensor like(const Optional& x, const Tensor& u) {
  return x ? on_large_pages(torch::stable::new_empty(*x, x->sizes())) : torch::stable::new_empty(u, {0});
}

// The inputs, held so that copies made of them live as long as the pointers to them.
struct Inputs {
  Tensor u, delta, A, B, C;
  Optional D, z, bias, initial;

  template <class In>
  Problem<In> problem(bool softplus, const Tensor& cu, const Tensor& order) const {
    using S = State<In>;
    return {u.size(0), u.size(1), A.size(1), cu.size(0) - 1, rows<In>(u), rows<In>(delta), rows<In>(B), rows<In>(C),
            rows<In>(z), pointer<S>(A), pointer<S>(D), pointer<S>(bias), softplus, pointer<int32_t>(cu),
            pointer<int32_t>(order), pointer<S>(initial)};
  }
};

Inputs hold(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C, const Optional& D,
            const Optional& z, const Optional& bias, const Optional& initial) {
  return {with_rows(u), with_rows(delta), dense(A), with_rows(B), with_rows(C), dense(D), with_rows(z), dense(bias),
          dense(initial)};
}

// Memory that can hold `count` bytes from the start of a cache line on.
Tensor bytes(const Tensor& u, int64_t count) { return torch::stable::new_empty(u, {count + 64}, ScalarType::Byte); }

char* aligned(const Tensor& memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
  return reinterpret_cast<char*>((address + 63) / 64 * 64);
}

// Every task (a group of sequences, a block of channels) once, by whichever worker is free. Each result is written by one
// task, so it does not matter which.
template <class Pass, class In>
void run_tasks(const Pass& pass, const Problem<In>& p, const std::vector<int64_t>& ends, const Tensor& u) {
  const int64_t groups = static_cast<int64_t>(ends.size()) - 1, blocks = p.blocks(), tasks = groups * blocks;
  const int64_t workers = std::min<int64_t>(torch::stable::get_num_threads(), tasks);
  if (tasks == 0) return;
  Scratch measure(nullptr);
  [[maybe_unused]] const typename Pass::Work nothing(p, measure);
  const int64_t each = measure.used(nullptr);
  const Tensor memory = bytes(u, workers * each);
  char* const start = aligned(memory);
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      Scratch scratch(start + worker * each);
      typename Pass::Work work(p, scratch);
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        const int64_t group = task / blocks;
        pass.run(work, group, ends[group], ends[group + 1], task % blocks);
      }
    }
  });
}

template <class In>
std::tuple<Tensor, Tensor, Tensor> forward(const Inputs& in, bool softplus, const Tensor& cu, const Tensor& order,
                                           bool return_final_state) {
  using S = State<In>;
  const Problem<In> p = in.problem<In>(softplus, cu, order);
  const Tensor y = on_large_pages(torch::stable::new_empty(in.u, {p.T, p.D}));
  const Tensor final_state = return_final_state ? torch::stable::new_empty(in.A, {p.sequences, p.D, p.N})
                                                : torch::stable::new_empty(in.A, {0});
  const Tensor checkpoints =
      on_large_pages(torch::stable::new_empty(in.A, {p.T / kTile + p.sequences, p.D, p.N}));
  const Forward<In> pass(p, new_rows<In>(y), written<S>(final_state), written<S>(checkpoints));
  run_tasks(pass, p, group_sequences(p), in.u);
  return {y, final_state, checkpoints};
}

// Adds up what the tasks left, in the order of groups and blocks.
template <class In>
void add_up_over_time(const Problem<In>& p, const Vec<State<In>>* sums, int64_t groups, State<In>* dA, State<In>* dD,
                      State<In>* dbias) {
  using V = Vec<State<In>>;
  const int64_t blocks = p.blocks(), N = p.N, each = Backward<In>::sums_of_a_block(N);
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const Block block(b, p.D, p.width);
      const auto sum = [&](int64_t k) {
        V total{};
        for (int64_t g = 0; g < groups; ++g) total += sums[(g * blocks + b) * each + k];
        return total;
      };
      for (int c = 0; c < block.vecs; ++c) {
        const int64_t channel = block.channel(c);
        for (int64_t n = 0; n < N; ++n) {
          const V of_state = sum(c * N + n);
          for (int i = 0; i < block.lanes(c); ++i) dA[(channel + i) * N + n] = of_state[i];
        }
        if (dD != nullptr) store_row(dD + channel, sum(kVecs * N + c), block.lanes(c));
        if (dbias != nullptr) store_row(dbias + channel, sum(kVecs * (N + 1) + c), block.lanes(c));
      }
    }
  });
}

template <class In>
void add_up_over_blocks(const Problem<In>& p, const State<In>* parts, In* to) {
  using S = State<In>;
  const int64_t count = p.T * p.N, blocks = p.blocks();
  constexpr int64_t chunk = 256;
  torch::stable::parallel_for(0, (count + chunk - 1) / chunk, 16, [&](int64_t first, int64_t last) {
    S sum[chunk];
    for (int64_t k = first * chunk; k < std::min(last * chunk, count); k += chunk) {
      const int64_t length = std::min(chunk, count - k);
      if (blocks > 0) {
        std::copy_n(parts + k, length, sum);
      } else {
        std::fill_n(sum, length, S(0));
      }
      for (int64_t b = 1; b < blocks; ++b) {
        for (int64_t i = 0; i < length; ++i) sum[i] += parts[b * count + k + i];
      }
      for (int64_t i = 0; i < length; ++i) mamba_lab::narrow(sum[i], to + k + i);
    }
  });
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class In>
Gradients backward(const Inputs& in, const Tensor& dy, const Optional& dfinal, bool softplus, const Tensor& cu,
                   const Tensor& order, const Tensor& checkpoints) {
  using S = State<In>;
  using V = Vec<S>;
  const Problem<In> p = in.problem<In>(softplus, cu, order);
  const std::vector<int64_t> ends = group_sequences(p);
  const int64_t groups = static_cast<int64_t>(ends.size()) - 1, blocks = p.blocks(), tokens = p.T * p.N;
  const Tensor du = like(in.u, in.u), ddelta = like(in.delta, in.u), dA = like(in.A, in.u), dB = like(in.B, in.u);
  const Tensor dC = like(in.C, in.u), dD = like(in.D, in.u), dz = like(in.z, in.u), dbias = like(in.bias, in.u);
  const Tensor dinitial = like(in.initial, in.u);
  const Tensor parts = on_large_pages(torch::stable::new_empty(in.A, {2, blocks, tokens}));
  const Tensor sums = bytes(in.u, groups * blocks * Backward<In>::sums_of_a_block(p.N) * sizeof(V));
  S* const dB_parts = written<S>(parts);
  typename Backward<In>::Outputs out{
      new_rows<In>(du), new_rows<In>(ddelta), in.z ? new_rows<In>(dz) : Rows<In>{}, written<S>(dinitial), dB_parts,
      dB_parts + blocks * tokens, reinterpret_cast<V*>(aligned(sums))};
  run_tasks(Backward<In>(p, rows<In>(dy), pointer<S>(dfinal), pointer<S>(checkpoints), out), p, ends, in.u);
  add_up_over_time(p, out.sums, groups, written<S>(dA), written<S>(dD), written<S>(dbias));
  add_up_over_blocks<In>(p, out.dB, written<In>(dB));
  add_up_over_blocks<In>(p, out.dC, written<In>(dC));
  return {du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial};
}

std::tuple<Tensor, Tensor, Tensor> ssm_pack_cpu(
    const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C, const Optional& D,
    const Optional& z, const Optional& delta_bias, bool softplus, const Tensor& cu_seqlens, const Tensor& order,
    const Optional& initial_state, bool return_final_state) {
  const Inputs in = hold(u, delta, A, B, C, D, z, delta_bias, initial_state);
  const ScalarType type = u.scalar_type();
  if (type == ScalarType::Double) return forward<double>(in, softplus, cu_seqlens, order, return_final_state);
  if (type == ScalarType::BFloat16) return forward<BFloat16>(in, softplus, cu_seqlens, order, return_final_state);
  return forward<float>(in, softplus, cu_seqlens, order, return_final_state);
}

Gradients ssm_pack_cpu_backward(
    const Tensor& dy, const Optional& dfinal_state, const Tensor& u, const Tensor& delta, const Tensor& A,
    const Tensor& B, const Tensor& C, const Optional& D, const Optional& z, const Optional& delta_bias, bool softplus,
    const Tensor& cu_seqlens, const Tensor& order, const Optional& initial_state, const Tensor& checkpoints) {
  const Inputs in = hold(u, delta, A, B, C, D, z, delta_bias, initial_state);
  const Tensor dy_rows = with_rows(dy);
  const Optional dfinal = dense(dfinal_state);
  const ScalarType type = u.scalar_type();
  if (type == ScalarType::Double) return backward<double>(in, dy_rows, dfinal, softplus, cu_seqlens, order, checkpoints);
  if (type == ScalarType::BFloat16) return backward<BFloat16>(in, dy_rows, dfinal, softplus, cu_seqlens, order, checkpoints);
  return backward<float>(in, dy_rows, dfinal, softplus, cu_seqlens, order, checkpoints);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CPU, m) {
  m.impl("ssm_pack_cpu", TORCH_BOX(&ssm_pack_cpu));
  m.impl("ssm_pack_cpu_backward", TORCH_BOX(&ssm_pack_cpu_backward));
}
