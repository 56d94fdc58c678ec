// Shared by the tests of sums: random inputs, and all reductions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "kernels/sum.h"

namespace byteps::kernels {

inline constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                    ReduceOp::kProduct};
inline constexpr std::array<size_t, 5> kInputs = {1, 2, 3, 5, 8};

using Buffer = std::vector<std::byte>;

template <typename T>
T element(const std::byte* array, size_t i) {
  T value;
  std::memcpy(&value, array + i * sizeof(T), sizeof(T));
  return value;
}

inline std::vector<const void*> pointers_to(const std::vector<Buffer>& buffers, size_t offset_bytes = 0) {
  std::vector<const void*> pointers;
  for (const Buffer& buffer : buffers) pointers.push_back(buffer.data() + offset_bytes);
  return pointers;
}

// Floats of moderate size: sums and products stay finite and every rounding matters.
inline Buffer random_numbers(DType dtype, size_t count, std::mt19937_64& random) {
  Buffer bytes(count * size_of(dtype));
  std::uniform_real_distribution<double> number(-2, 2);
  for (size_t i = 0; i < count; ++i) {
    std::byte* to = bytes.data() + i * size_of(dtype);
    const double value = number(random);
    const auto narrow = static_cast<float>(value);
    const uint16_t half = dtype == DType::kFloat16 ? float_to_half(narrow) : float_to_bfloat16(narrow);
    const uint64_t integer = random();
    switch (dtype) {
      case DType::kFloat16:
      case DType::kBFloat16: std::memcpy(to, &half, sizeof(half)); break;
      case DType::kFloat32: std::memcpy(to, &narrow, sizeof(narrow)); break;
      case DType::kFloat64: std::memcpy(to, &value, sizeof(value)); break;
      default: std::memcpy(to, &integer, size_of(dtype));
    }
  }
  return bytes;
}

// Random bit patterns. For floats infinities, NaN and subnormals are more frequent than by chance.
inline Buffer random_patterns(DType dtype, size_t count, std::mt19937_64& random) {
  Buffer bytes = random_numbers(dtype, count, random);
  const size_t size = size_of(dtype);
  for (size_t i = 0; i < count; ++i) {
    uint64_t pattern = random();
    const int mantissa_bits = size == 2 ? 7 : size == 4 ? 23 : 52;
    const uint64_t exponent_ones = (uint64_t{0x7fff} << 49) >> (64 - 8 * size) >> mantissa_bits
                                                                                      << mantissa_bits;
    switch (random() % 8) {
      case 0: break;
      case 1: pattern |= exponent_ones; break;
      case 2: pattern &= ~exponent_ones; break;
      default: continue;  // leave it a random number
    }
    std::memcpy(bytes.data() + i * size, &pattern, size);
  }
  return bytes;
}

// Sums, averages and products may give any NaN.
inline void make_all_nan_equal(DType dtype, Buffer& bytes) {
  const auto replace = [&]<typename T>(T nan, auto is_nan) {
    for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
      if (is_nan(element<T>(bytes.data(), i))) std::memcpy(bytes.data() + i * sizeof(T), &nan, sizeof(T));
    }
  };
  switch (dtype) {
    case DType::kFloat16:
      replace(uint16_t{0x7e00}, [](uint16_t v) { return std::isnan(half_to_float(v)); });
      break;
    case DType::kBFloat16:
      replace(uint16_t{0x7fc0}, [](uint16_t v) { return std::isnan(bfloat16_to_float(v)); });
      break;
    case DType::kFloat32:
      replace(std::numeric_limits<float>::quiet_NaN(), [](float v) { return std::isnan(v); });
      break;
    case DType::kFloat64:
      replace(std::numeric_limits<double>::quiet_NaN(), [](double v) { return std::isnan(v); });
      break;
    default: break;
  }
}

inline std::string describe(const Reduction& reduction, size_t n) {
  return std::string(to_string(reduction.dtype)) + " " + std::string(to_string(reduction.op)) + " of " +
         std::to_string(n) + (reduction.weights.empty() ? "" : " with weights");
}

inline constexpr std::array<uint32_t, 8> kWeights = {3, 1, 1, 4, 7, 2, 1, 5};

// All reductions of n sources. `divisor`: of averages without weights.
inline std::vector<Reduction> all_reductions(DType dtype, size_t n, int divisor) {
  std::vector<Reduction> all;
  for (ReduceOp op : kOps) all.push_back({.dtype = dtype, .op = op, .divisor = divisor});
  if (!is_float(dtype)) return all;
  const std::span<const uint32_t> weights = std::span(kWeights).first(n);
  const uint32_t total = std::accumulate(weights.begin(), weights.end(), 0u);
  all.push_back({dtype, ReduceOp::kAverage, static_cast<int>(total), weights});
  return all;
}

}  // namespace byteps::kernels
