// Random numbers from a seed, equal on every machine (the standard's distributions are not). Pure.
//
// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014
// (SplitMix64).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mix.h"

namespace byteps::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed + kStep)) {}

  uint64_t next() { return mix(state_ += kStep); }
  // In [0, limit); limit > 0. The bias of the remainder does not matter here.
  uint64_t below(uint64_t limit) { return next() % limit; }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

  template <typename T>
  const T& pick(const std::vector<T>& values) {
    return values[below(values.size())];
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
  uint64_t state_;
};

}  // namespace byteps::sim
