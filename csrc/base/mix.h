// A hash of one number.
#pragma once

#include <cstdint>

namespace byteps {

// Every bit of the result depends on every bit of the value. Source: Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014 (the finalizer of SplitMix64).
constexpr uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

}  // namespace byteps
