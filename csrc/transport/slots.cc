#include "transport/slots.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace byteps::transport {
Slots::Slots(size_t capacity_bytes) {
  const size_t usable_bytes = capacity_bytes / kAlignBytes * kAlignBytes;
  if (usable_bytes > 0) free_.push_back({0, usable_bytes});
}

std::optional<size_t> Slots::take(size_t bytes) {
  BPS_CHECK(bytes > 0) << "a slot of no bytes";
  const size_t wanted = round_up(bytes, kAlignBytes);
  const auto fits = [wanted](const Range& range) { return range.end - range.begin >= wanted; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return std::nullopt;
  const size_t offset = found->begin;
  found->begin += wanted;
  if (found->begin == found->end) free_.erase(found);
  return offset;
}

void Slots::put_back(size_t offset, size_t bytes) {
  Range range{offset, offset + round_up(bytes, kAlignBytes)};
  auto next = std::lower_bound(free_.begin(), free_.end(), offset,
                               [](const Range& each, size_t at) { return each.begin < at; });
  BPS_CHECK(next == free_.end() || range.end <= next->begin) << "put back twice: " << offset;
  if (next != free_.end() && next->begin == range.end) {
    range.end = next->end;
    next = free_.erase(next);
  }
  if (next == free_.begin()) {
    free_.insert(next, range);
    return;
  }
  Range& before = *std::prev(next);
  BPS_CHECK(before.end <= range.begin) << "put back twice: " << offset;
  if (before.end == range.begin) {
    before.end = range.end;
  } else {
    free_.insert(next, range);
  }
}

size_t Slots::free_bytes() const {
  size_t bytes = 0;
  for (const Range& range : free_) bytes += range.end - range.begin;
  return bytes;
}

}  // namespace byteps::transport
