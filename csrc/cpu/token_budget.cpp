// Cuts a stream of samples into batches whose padded size stays within a token budget.
// Its twin in Python, and what the arguments mean: mamba_lab/batching/_cut.py. Both give equal results.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace {

using torch::stable::Tensor;

enum class Verdict { take, wait, close };

// The batch that is being filled: samples, longest, and tokens without padding.
struct Open {
  int64_t count = 0;
  int64_t longest = 0;
  int64_t tokens = 0;

  Verdict judge(int64_t length, int64_t max_tokens, double max_padding) const {
    const int64_t padded = (count + 1) * std::max(longest, length);
    if (count == 0) return Verdict::take;
    if (padded > max_tokens) return Verdict::close;
    const int64_t padding = padded - tokens - length;
    // A single multiplication and no sum: the compiler has nothing to fuse, so Python rounds the same way.
    return static_cast<double>(padding) > max_padding * static_cast<double>(padded) ? Verdict::wait : Verdict::take;
  }

  void take(int64_t length) {
    ++count;
    longest = std::max(longest, length);
    tokens += length;
  }
};

std::tuple<Tensor, Tensor> cut_token_budget(
    const Tensor& lengths, int64_t max_tokens, double max_padding, int64_t room) {
  // No check here: STD_TORCH_CHECK ends the process on torch 2.11.
  // cut_in_cpp in _cut.py lets only contiguous int64 tensors of one dimension on the host through.
  const int64_t n = lengths.numel();
  const int64_t* length = lengths.const_data_ptr<int64_t>();
  Tensor order = torch::stable::new_empty(lengths, {n});
  int64_t* placed = order.mutable_data_ptr<int64_t>();
  std::vector<int64_t> ends{0};
  std::vector<int64_t> waiting, still_waiting;
  int64_t next = 0, done = 0;

  while (next < n || !waiting.empty()) {
    Open batch;
    bool closed = false;
    const auto take = [&](int64_t sample) {
      batch.take(length[sample]);
      placed[done++] = sample;
    };
    // Those who waited come first, in the order they came.
    still_waiting.clear();
    for (const int64_t sample : waiting) {
      const Verdict verdict = closed ? Verdict::close : batch.judge(length[sample], max_tokens, max_padding);
      if (verdict == Verdict::take) {
        take(sample);
      } else {
        still_waiting.push_back(sample);
        closed = verdict == Verdict::close;
      }
    }
    waiting.swap(still_waiting);
    while (!closed && next < n) {
      const Verdict verdict = batch.judge(length[next], max_tokens, max_padding);
      if (verdict == Verdict::close) break;
      if (verdict == Verdict::take) {
        take(next++);
      } else {
        waiting.push_back(next++);
        closed = static_cast<int64_t>(waiting.size()) >= room;
      }
    }
    ends.push_back(done);
  }

  Tensor offsets = torch::stable::new_empty(lengths, {static_cast<int64_t>(ends.size())});
  std::copy(ends.begin(), ends.end(), offsets.mutable_data_ptr<int64_t>());
  return {order, offsets};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mamba_lab, m) {
  m.def("cut_token_budget(Tensor lengths, int max_tokens, float max_padding, int room) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CPU, m) {
  m.impl("cut_token_budget", TORCH_BOX(&cut_token_budget));
}
