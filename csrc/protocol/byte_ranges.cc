#include "protocol/byte_ranges.h"

#include <algorithm>

namespace byteps::protocol {

bool is_ordered(const ByteRanges& ranges) {
  const auto follows_without_gap = [](const ByteRange& a, const ByteRange& b) { return b.offset <= a.end(); };
  return std::ranges::none_of(ranges, [](const ByteRange& each) { return each.bytes == 0; }) &&
         std::ranges::adjacent_find(ranges, follows_without_gap) == ranges.end();
}

void add(ByteRanges& ranges, const ByteRange& added) {
  if (added.bytes == 0) return;
  // Those that overlap the new one, or touch it, become one with it.
  const auto first = std::ranges::lower_bound(ranges, added.offset, {}, &ByteRange::end);
  const auto last = std::ranges::upper_bound(first, ranges.end(), added.end(), {}, &ByteRange::offset);
  if (first == last) {
    ranges.insert(first, added);
    return;
  }
  const uint64_t offset = std::min(first->offset, added.offset);
  const uint64_t end = std::max(std::prev(last)->end(), added.end());
  *first = {offset, end - offset};
  ranges.erase(std::next(first), last);
}

ByteRanges gaps(const ByteRanges& ranges, uint64_t bytes) {
  ByteRanges found;
  uint64_t from = 0;
  for (const ByteRange& each : ranges) {
    if (each.offset > from) found.push_back({from, each.offset - from});
    from = each.end();
  }
  if (from < bytes) found.push_back({from, bytes - from});
  return found;
}

bool contains(const ByteRanges& ranges, const ByteRange& range) {
  const auto found = std::ranges::lower_bound(ranges, range.end(), {}, &ByteRange::end);
  return found != ranges.end() && found->offset <= range.offset;
}

}  // namespace byteps::protocol
