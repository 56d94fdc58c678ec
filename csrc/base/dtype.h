// Element types and reductions that a summation service knows. Values travel on the wire: append only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace byteps {

enum class DType : uint8_t {
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kInt8 = 5,
  kUInt8 = 6,
  kInt32 = 7,
  kInt64 = 8,
};

// Element size in bytes.
size_t size_of(DType dtype);
constexpr bool is_float(DType dtype) { return dtype <= DType::kFloat64; }
// numpy's name: "float16", "bfloat16", "float32", …
std::string_view to_string(DType dtype);
// kDataLoss when `value` names no dtype (it came from the wire or from a caller).
Result<DType> dtype_from(uint8_t value);

enum class ReduceOp : uint8_t {
  kSum = 1,
  kAverage = 2,  // floats: the mean; integers: sum divided by size, rounded towards minus infinity
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBroadcast = 6,  // every rank gets the root's values
  // Of a tensor whose value a service keeps from one push_pull to the next. Every rank gets that value.
  kSeed = 7,        // the root's values become it, unless there is one
  kAccumulate = 8,  // each rank's values are added to it
};

// Whether it is of a value that a service keeps.
constexpr bool is_stored(ReduceOp op) { return op == ReduceOp::kSeed || op == ReduceOp::kAccumulate; }

std::string_view to_string(ReduceOp op);
Result<ReduceOp> reduce_op_from(uint8_t value);

}  // namespace byteps
