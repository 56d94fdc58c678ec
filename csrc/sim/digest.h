// A number that identifies the contents of some memory. Pure.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace byteps::sim {

// Differs if any byte differs, but for a negligible probability.
inline uint64_t digest(Bytes bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;
  uint64_t sum = bytes.size();
  for (; bytes.size() >= sizeof sum; bytes = bytes.subspan(sizeof sum)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    sum = (std::rotl(sum, 23) ^ word) * kOdd;
  }
  for (const std::byte byte : bytes) sum = (std::rotl(sum, 23) ^ std::to_integer<uint64_t>(byte)) * kOdd;
  return sum;
}

}  // namespace byteps::sim
