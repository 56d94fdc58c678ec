// Which parts of a piece of memory are in use: first fit, lowest first.
//
// Pure: numbers, no memory. Lowest first, so that a sender that is never far ahead uses the same few pages again and
// again, and they stay in cache. Source: Knuth, The Art of Computer Programming, vol. 1, 2.5, algorithms A and B.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace byteps::transport {

class Slots {
 public:
  static constexpr size_t kAlignBytes = 64;  // a cache line: two slots never share one

  explicit Slots(size_t capacity_bytes);

  // Where `bytes` (at least 1) begin, a multiple of kAlignBytes, or nothing if there is no such room now.
  std::optional<size_t> take(size_t bytes);
  // What take(bytes) returned.
  void put_back(size_t offset, size_t bytes);
  size_t free_bytes() const;

 private:
  struct Range {
    size_t begin;
    size_t end;
  };
  std::vector<Range> free_;  // sorted; no two touch
};

}  // namespace byteps::transport
