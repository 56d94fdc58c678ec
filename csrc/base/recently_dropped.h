// Recognizes keys that come back soon after they were dropped. A cache that makes room for each of
// them holds all that is really used again and again, and does not grow with what is used once.
// Pure.
//
// Source: the ghost lists of ARC: Megiddo and Modha, FAST 2003; here a table with one place for
// each hash, so a newer key may displace an older one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace byteps {

class RecentlyDropped {
 public:
  // Remembers at most `capacity` keys; has no memory before the first one.
  explicit RecentlyDropped(size_t capacity) : capacity_(capacity) {}

  // A key with this hash was dropped.
  void add(uint64_t hash) {
    if (hashes_.empty()) hashes_.resize(capacity_);
    hashes_[hash % capacity_] = hash;
  }
  // A key comes: whether it was dropped lately. Forgets it.
  bool take(uint64_t hash) {
    if (hashes_.empty() || hash == 0 || hashes_[hash % capacity_] != hash) return false;
    hashes_[hash % capacity_] = 0;
    return true;
  }

 private:
  size_t capacity_;
  std::vector<uint64_t> hashes_;  // 0: none
};

}  // namespace byteps
