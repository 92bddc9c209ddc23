// Large pages for large results. The system zeroes each new page at its first touch, and at 4 KB a page that takes
// longer than the scan itself: a token of 131,072 cost three times a token of 1,024.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mamba_lab {

// The tensor itself, whose memory the system may back with pages of 2 MB. It is advice: where it is not taken, nothing
// changes.
inline torch::stable::Tensor on_large_pages(torch::stable::Tensor fresh) {
#ifdef __linux__
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(fresh.const_data_ptr());
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(fresh.numel()) * fresh.element_size();
  const std::uintptr_t first = (begin + page - 1) & ~(page - 1), last = end & ~(page - 1);
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  return fresh;
}

}  // namespace mamba_lab
