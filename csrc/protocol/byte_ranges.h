// A set of bytes of a tensor, as ranges. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace byteps::protocol {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t end() const { return offset + bytes; }
  bool operator==(const ByteRange&) const = default;
};

// Ascending; no range is empty, and between two of them there is a gap.
using ByteRanges = std::vector<ByteRange>;

bool is_ordered(const ByteRanges& ranges);
// Adds a range, which may overlap others.
void add(ByteRanges& ranges, const ByteRange& added);
// What of [0, bytes) is not in `ranges`.
ByteRanges gaps(const ByteRanges& ranges, uint64_t bytes);
// Whether all bytes of `range`, which is not empty, are in `ranges`.
bool contains(const ByteRanges& ranges, const ByteRange& range);

}  // namespace byteps::protocol
