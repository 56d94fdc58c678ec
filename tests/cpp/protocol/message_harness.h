// Shared by the tests of messages.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "protocol/message.h"

namespace byteps::protocol {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  uint32_t u32() { return static_cast<uint32_t>(engine_()); }
  uint64_t u64() { return engine_(); }
  std::string text(size_t max_bytes) {
    const size_t size = below(8) == 0 ? max_bytes : below(std::min<size_t>(max_bytes, 40) + 1);
    return std::string(size, static_cast<char>('a' + below(26)));
  }
  DType dtype() { return static_cast<DType>(1 + below(8)); }
  StatusCode failure() { return static_cast<StatusCode>(1 + below(9)); }

 private:
  std::mt19937_64 engine_;
};

inline std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

}  // namespace byteps::protocol
