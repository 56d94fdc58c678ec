// The scalar kernels against independent arithmetic.
#include "kernels/sum_harness.h"

namespace byteps::kernels {
namespace {

// `value` rounded to a binary format with that many mantissa bits, to nearest even, from the
// definition.
double round_to(double value, int mantissa_bits, int smallest_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int unit = std::max(std::ilogb(value), smallest_exponent) - mantissa_bits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

// Element i, computed in double, whose 53 bits suffice to round each float32 step correctly.
double expected_float(const Reduction& reduction, const std::vector<Buffer>& srcs, size_t i) {
  const auto value = [&](const Buffer& src) -> double {
    switch (reduction.dtype) {
      case DType::kFloat16: return half_to_float(element<uint16_t>(src.data(), i));
      case DType::kBFloat16: return bfloat16_to_float(element<uint16_t>(src.data(), i));
      case DType::kFloat32: return element<float>(src.data(), i);
      default: return element<double>(src.data(), i);
    }
  };
  const auto to_step = [&](double x) {
    return reduction.dtype == DType::kFloat64 ? x : round_to(x, 23, -126);
  };
  const auto weighted = [&](size_t s) {
    return reduction.weights.empty() ? value(srcs[s]) : to_step(value(srcs[s]) * reduction.weights[s]);
  };
  double result = weighted(0);
  for (size_t s = 1; s < srcs.size(); ++s) {
    const double next = weighted(s);
    switch (reduction.op) {
      case ReduceOp::kMin: result = std::min(result, next); break;
      case ReduceOp::kMax: result = std::max(result, next); break;
      case ReduceOp::kProduct: result = to_step(result * next); break;
      default: result = to_step(result + next);
    }
  }
  if (reduction.op == ReduceOp::kAverage) result = to_step(result * to_step(1.0 / reduction.divisor));
  if (reduction.dtype == DType::kFloat16) return round_to(result, 10, -14);
  if (reduction.dtype == DType::kBFloat16) return round_to(result, 7, -126);
  return result;
}

double actual_float(DType dtype, const Buffer& dst, size_t i) {
  return expected_float({.dtype = dtype, .op = ReduceOp::kMin}, {dst}, i);
}

using Int128 = __int128;

// Element i of an array of an integer dtype.
Int128 integer(DType dtype, const Buffer& array, size_t i) {
  switch (dtype) {
    case DType::kInt8: return element<int8_t>(array.data(), i);
    case DType::kUInt8: return element<uint8_t>(array.data(), i);
    case DType::kInt32: return element<int32_t>(array.data(), i);
    default: return element<int64_t>(array.data(), i);
  }
}

// `value` modulo 2^bits, in the range of the dtype.
Int128 wrap(DType dtype, Int128 value) {
  const Int128 modulus = Int128{1} << (8 * size_of(dtype));
  const Int128 remainder = (value % modulus + modulus) % modulus;
  return dtype != DType::kUInt8 && remainder >= modulus / 2 ? remainder - modulus : remainder;
}

Int128 expected_integer(const Reduction& reduction, const std::vector<Buffer>& srcs, size_t i) {
  Int128 result = integer(reduction.dtype, srcs[0], i);
  for (size_t s = 1; s < srcs.size(); ++s) {
    const Int128 next = integer(reduction.dtype, srcs[s], i);
    switch (reduction.op) {
      case ReduceOp::kMin: result = std::min(result, next); break;
      case ReduceOp::kMax: result = std::max(result, next); break;
      case ReduceOp::kProduct: result = wrap(reduction.dtype, result * next); break;
      default: result = wrap(reduction.dtype, result + next);
    }
  }
  if (reduction.op != ReduceOp::kAverage) return result;
  while (result % reduction.divisor != 0) --result;
  return result / reduction.divisor;
}

TEST(ScalarKernels, agree_with_wide_arithmetic) {
  std::mt19937_64 random(1);
  constexpr size_t kCount = 300;
  for (const DTypeRow& row : kDTypes) {
    const DType dtype = row.code;
    for (size_t n : kInputs) {
      std::vector<Buffer> srcs;
      for (size_t s = 0; s < n; ++s) srcs.push_back(random_numbers(dtype, kCount, random));
      for (const Reduction& reduction : all_reductions(dtype, n, static_cast<int>(n))) {
        Buffer dst(srcs[0].size());
        reduce_n_with(Isa::kScalar, StoreMode::kCached, reduction, dst.data(), pointers_to(srcs), kCount);
        for (size_t i = 0; i < kCount; ++i) {
          if (is_float(dtype)) {
            ASSERT_EQ(actual_float(dtype, dst, i), expected_float(reduction, srcs, i))
                << describe(reduction, n);
          } else {
            ASSERT_TRUE(integer(dtype, dst, i) == expected_integer(reduction, srcs, i))
                << describe(reduction, n);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace byteps::kernels
