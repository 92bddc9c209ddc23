// Chooses a bin for every piece of every sequence: next fit, and best fit decreasing in buffers.
// The rule, and its twin in NumPy and Python: mamba_lab/batching/_pack.py. Both give equal results.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Csr = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // offsets, sequence, start, stop

// Up to this room, bins are found in a table of one line for each room; above it, in a map of the rooms that occur.
constexpr int64_t kTableRooms = int64_t{1} << 20;

// The pieces of all sequences, made where they are asked for and never stored.
struct Pieces {
  const int64_t* length;
  int64_t capacity;
  bool split;

  template <class F>
  void each(int64_t first, int64_t last, F f) const {
    for (int64_t i = first; i < last; ++i) {
      const int64_t end = split ? length[i] : std::min(length[i], capacity);
      for (int64_t start = 0; start < end; start += capacity) f(i, start, std::min(start + capacity, end));
    }
  }
};

// Uninitialised memory: pages that nobody touches cost nothing, so a table for a large capacity is cheap.
template <class T>
std::unique_ptr<T[]> scratch(int64_t n) {
  return std::unique_ptr<T[]>(new T[std::max<int64_t>(n, 1)]);
}

struct Line {
  int32_t head, tail;
};

// Bins of equal room wait in line, linked through `next`. A line's content means something while its bit is set.
class Table {
 public:
  Table(int64_t largest, int32_t* next) : next_(next), lines_(scratch<Line>(largest + 1)) {
    int64_t n = largest + 1;
    do {
      n = (n + 63) / 64;
      levels_.emplace_back(n, 0);
    } while (n > 1);
  }

  // The least room that is at least `room`, 0 where there is none. Each level says which words below it hold a bit.
  int64_t least_from(int64_t room) const {
    int64_t at = room;
    for (size_t level = 0; level < levels_.size(); ++level) {
      const int64_t word = at >> 6;
      if (word >= static_cast<int64_t>(levels_[level].size())) return 0;
      const uint64_t bits = levels_[level][word] >> (at & 63);
      if (bits) {
        at += std::countr_zero(bits);
        while (level > 0) at = (at << 6) + std::countr_zero(levels_[--level][at]);
        return at;
      }
      at = word + 1;
    }
    return 0;
  }

  int32_t take(int64_t room) {
    Line& line = lines_[room];
    const int32_t bin = line.head;
    if (bin == line.tail) {
      clear(room);
    } else {
      line.head = next_[bin];
    }
    return bin;
  }

  void put(int64_t room, int32_t bin) {
    Line& line = lines_[room];
    if (levels_[0][room >> 6] >> (room & 63) & 1) {
      next_[line.tail] = bin;
    } else {
      line.head = bin;
      for (auto& words : levels_) {
        const uint64_t before = words[room >> 6];
        words[room >> 6] |= uint64_t{1} << (room & 63);
        if (before) break;
        room >>= 6;
      }
    }
    line.tail = bin;
  }

  // Close all bins: only what was touched is reset.
  void close() {
    for (int64_t room = least_from(1); room; room = least_from(room)) clear(room);
  }

 private:
  void clear(int64_t room) {
    for (auto& words : levels_) {
      words[room >> 6] &= ~(uint64_t{1} << (room & 63));
      if (words[room >> 6]) break;
      room >>= 6;
    }
  }

  int32_t* next_;
  std::unique_ptr<Line[]> lines_;
  std::vector<std::vector<uint64_t>> levels_;
};

// The same for rooms too large for a table.
class Map {
 public:
  Map(int64_t, int32_t* next) : next_(next) {}

  int64_t least_from(int64_t room) {
    found_ = lines_.lower_bound(room);
    return found_ == lines_.end() ? 0 : found_->first;
  }

  // `room` is what least_from returned last.
  int32_t take(int64_t) {
    Line& line = found_->second;
    const int32_t bin = line.head;
    if (bin == line.tail) {
      lines_.erase(found_);
    } else {
      line.head = next_[bin];
    }
    return bin;
  }

  void put(int64_t room, int32_t bin) {
    const auto [place, fresh] = lines_.try_emplace(room, Line{bin, bin});
    if (fresh) return;
    next_[place->second.tail] = bin;
    place->second.tail = bin;
  }

  void close() { lines_.clear(); }

 private:
  int32_t* next_;
  std::map<int64_t, Line> lines_;
  std::map<int64_t, Line>::iterator found_;
};

// How much there is to pack: pieces in all, and in the largest buffer; tokens in the largest buffer.
struct Extent {
  int64_t pieces = 0, most_pieces = 0, most_tokens = 0;

  Extent(const Pieces& all, int64_t n, int64_t buffer) {
    for (int64_t first = 0; first < n; first += buffer) {
      const int64_t before = pieces;
      int64_t tokens = 0;
      all.each(first, std::min(first + buffer, n), [&](int64_t, int64_t start, int64_t stop) {
        ++pieces;
        tokens += stop - start;
      });
      most_pieces = std::max(most_pieces, pieces - before);
      most_tokens = std::max(most_tokens, tokens);
    }
  }
};

// Writes each piece's bin, in data order, to bin_of. Returns how many bins were opened.
template <class Rooms>
int64_t assign(const Pieces& all, int64_t n, int64_t buffer, const Extent& extent, int64_t capacity, int32_t* bin_of) {
  const auto next = scratch<int32_t>(extent.pieces);
  const auto order = scratch<int32_t>(extent.most_pieces);
  std::vector<int32_t> place;  // of each length, in `order`
  std::vector<uint64_t> keys;
  Rooms rooms(capacity, next.get());
  int32_t opened = 0, before = 0;

  // `count` pieces of one length. A bin takes as many as fit: after each, its room is still the least that holds one.
  const auto put_group = [&](int64_t size, const int32_t* piece, int64_t count) {
    while (count > 0) {
      int64_t room = rooms.least_from(size);
      const int32_t bin = room ? rooms.take(room) : opened++;
      if (!room) room = capacity;
      const int64_t taken = std::min<int64_t>(count, static_cast<uint32_t>(room) / static_cast<uint32_t>(size));
      for (int64_t i = 0; i < taken; ++i) bin_of[piece[i]] = bin;
      piece += taken;
      count -= taken;
      room -= taken * size;
      if (room) rooms.put(room, bin);
    }
  };

  for (int64_t first = 0; first < n; first += buffer) {
    const int64_t last = std::min(first + buffer, n);
    int64_t count = 0, longest = 0;
    all.each(first, last, [&](int64_t, int64_t start, int64_t stop) {
      ++count;
      longest = std::max(longest, stop - start);
    });
    if (longest <= 16 * count) {
      // Counting sort, longest first; equal lengths keep data order.
      place.assign(longest + 1, 0);
      all.each(first, last, [&](int64_t, int64_t start, int64_t stop) { ++place[stop - start]; });
      int32_t at = 0;
      for (int64_t size = longest; size > 0; --size) at += std::exchange(place[size], at);
      int32_t piece = before;
      all.each(first, last, [&](int64_t, int64_t start, int64_t stop) { order[place[stop - start]++] = piece++; });
      int32_t begin = 0;
      for (int64_t size = longest; size > 0; --size) {
        put_group(size, &order[begin], place[size] - begin);
        begin = place[size];
      }
    } else {
      keys.clear();
      uint32_t piece = before;
      all.each(first, last, [&](int64_t, int64_t start, int64_t stop) {
        keys.push_back(~static_cast<uint64_t>(stop - start) << 32 | piece++);
      });
      std::sort(keys.begin(), keys.end());
      for (int64_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(keys[i]);
      for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && keys[end] >> 32 == keys[begin] >> 32;) ++end;
        put_group(static_cast<uint32_t>(~(keys[begin] >> 32)), &order[begin], end - begin);
      }
    }
    before += static_cast<int32_t>(count);
    rooms.close();
  }
  return opened;
}

Csr allocate(const Tensor& like, int64_t bins, int64_t pieces) {
  return {
      torch::stable::new_empty(like, {bins + 1}),
      torch::stable::new_empty(like, {pieces}),
      torch::stable::new_empty(like, {pieces}, ScalarType::Int),
      torch::stable::new_empty(like, {pieces}, ScalarType::Int)};
}

// Bins in the order of their earliest pieces, pieces in data order. Changes bin_of.
Csr in_data_order(const Tensor& lengths, const Pieces& all, int64_t pieces, int64_t bins, int32_t* bin_of) {
  Csr made = allocate(lengths, bins, pieces);
  auto& [offsets, sequence, start, stop] = made;
  int64_t* end = offsets.mutable_data_ptr<int64_t>();
  int64_t* to_sequence = sequence.mutable_data_ptr<int64_t>();
  int32_t* to_start = start.mutable_data_ptr<int32_t>();
  int32_t* to_stop = stop.mutable_data_ptr<int32_t>();
  std::fill_n(end, bins + 1, 0);
  {
    std::vector<int32_t> rank(bins, -1);
    int32_t ranked = 0;
    for (int64_t i = 0; i < pieces; ++i) {
      int32_t& of_bin = rank[bin_of[i]];
      if (of_bin < 0) of_bin = ranked++;
      bin_of[i] = of_bin;
      ++end[of_bin + 1];
    }
  }
  // From counts to where each bin begins; the pieces then move each beginning to its bin's end.
  int64_t at = 0;
  for (int64_t bin = 1; bin <= bins; ++bin) at += std::exchange(end[bin], at);
  int64_t piece = 0;
  all.each(0, lengths.numel(), [&](int64_t i, int64_t from, int64_t to) {
    const int64_t slot = end[bin_of[piece++] + 1]++;
    to_sequence[slot] = i;
    to_start[slot] = static_cast<int32_t>(from);
    to_stop[slot] = static_cast<int32_t>(to);
  });
  return made;
}

Csr best_fit(const Tensor& lengths, int64_t capacity, int64_t buffer, bool split) {
  const int64_t n = lengths.numel();
  const Pieces all{lengths.const_data_ptr<int64_t>(), capacity, split};
  const Extent extent(all, n, buffer);
  // A bin larger than all there is to pack behaves like one that just holds it, and needs no larger table.
  const int64_t room = std::min(capacity, std::max<int64_t>(extent.most_tokens, 1));
  const auto bin_of = scratch<int32_t>(extent.pieces);
  const auto choose = room <= kTableRooms ? assign<Table> : assign<Map>;
  const int64_t bins = choose(all, n, buffer, extent, room, bin_of.get());
  return in_data_order(lengths, all, extent.pieces, bins, bin_of.get());
}

Csr next_fit(const Tensor& lengths, int64_t capacity, bool split) {
  const int64_t n = lengths.numel();
  const Pieces all{lengths.const_data_ptr<int64_t>(), capacity, split};
  int64_t pieces = 0, bins = 0, room = 0;
  const auto opens = [&](int64_t size) {
    const bool open = size > room;
    room = (open ? capacity : room) - size;
    return open;
  };
  all.each(0, n, [&](int64_t, int64_t from, int64_t to) {
    ++pieces;
    bins += opens(to - from);
  });
  Csr made = allocate(lengths, bins, pieces);
  auto& [offsets, sequence, start, stop] = made;
  int64_t* to_offset = offsets.mutable_data_ptr<int64_t>();
  int64_t* to_sequence = sequence.mutable_data_ptr<int64_t>();
  int32_t* to_start = start.mutable_data_ptr<int32_t>();
  int32_t* to_stop = stop.mutable_data_ptr<int32_t>();
  int64_t piece = 0;
  room = 0;
  all.each(0, n, [&](int64_t i, int64_t from, int64_t to) {
    if (opens(to - from)) *to_offset++ = piece;
    to_sequence[piece] = i;
    to_start[piece] = static_cast<int32_t>(from);
    to_stop[piece++] = static_cast<int32_t>(to);
  });
  *to_offset = piece;
  return made;
}

// No check here: STD_TORCH_CHECK ends the process on torch 2.11. _pack.py lets only contiguous int64 tensors on the host
// through, and an answer without offsets says that memory ran out.
template <auto pack, class... Arguments>
Csr guarded(const Tensor& lengths, Arguments... arguments) {
  try {
    return pack(lengths, arguments...);
  } catch (const std::exception&) {
    const Tensor none = torch::stable::new_empty(lengths, {0});
    return {none, none, none, none};
  }
}

Csr pack_best_fit(const Tensor& lengths, int64_t capacity, int64_t buffer, bool split) {
  return guarded<best_fit>(lengths, capacity, buffer, split);
}

Csr pack_next_fit(const Tensor& lengths, int64_t capacity, bool split) {
  return guarded<next_fit>(lengths, capacity, split);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mamba_lab, m) {
  m.def("pack_best_fit(Tensor lengths, int capacity, int buffer, bool split) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("pack_next_fit(Tensor lengths, int capacity, bool split) -> (Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(mamba_lab, CPU, m) {
  m.impl("pack_best_fit", TORCH_BOX(&pack_best_fit));
  m.impl("pack_next_fit", TORCH_BOX(&pack_next_fit));
}
