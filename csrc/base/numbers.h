// Integers as little-endian bytes, as in all of byteps's formats; rounding of sizes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace byteps {

inline constexpr size_t kPageBytes = 4096;

// Reads or writes sizeof(T) bytes at any address.
template <std::integral T>
void store_number(std::byte* to, T value) {
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(uint64_t{bits} >> (8 * i));
}

template <std::integral T>
T load_number(const std::byte* from) {
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) bits |= uint64_t{static_cast<uint8_t>(from[i])} << (8 * i);
  return static_cast<T>(bits);
}

// Rounds up to a multiple of `unit`.
constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace byteps
