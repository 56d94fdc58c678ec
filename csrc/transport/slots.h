// Allocator of ranges in a piece of memory: first fit, lowest address first.
//
// Pure: handles offsets, not memory. A sender with little data in flight reuses the same few low
// pages, which stay in cache. Source: Knuth, The Art of Computer Programming, vol. 1, section 2.5,
// algorithms A and B.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace byteps::transport {

class Slots {
 public:
  static constexpr size_t kAlignBytes = 64;  // a cache line, so that two slots never share one

  explicit Slots(size_t capacity_bytes);

  // Allocates `bytes` (at least 1). Returns the offset, a multiple of kAlignBytes, or nullopt if
  // there is no room.
  std::optional<size_t> take(size_t bytes);
  // Frees a slot that take(bytes) returned.
  void put_back(size_t offset, size_t bytes);
  size_t free_bytes() const;

 private:
  struct Range {
    size_t begin;
    size_t end;
  };
  std::vector<Range> free_;  // sorted; no two are adjacent
};

}  // namespace byteps::transport
