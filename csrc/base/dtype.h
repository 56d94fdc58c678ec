// Element types and reductions that the summation service supports. The values are sent on the
// wire: append only.
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

size_t size_of(DType dtype);
constexpr bool is_float(DType dtype) { return dtype <= DType::kFloat64; }
// NumPy's name: "float16", "bfloat16", "float32", …
std::string_view to_string(DType dtype);
// Returns kDataLoss if `value` (from the wire or a caller) is not a dtype.
Result<DType> dtype_from(uint8_t value);

enum class ReduceOp : uint8_t {
  kSum = 1,
  // floats: the mean; integers: sum / number of ranks, rounded towards minus infinity
  kAverage = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBroadcast = 6,  // every rank gets the root's values
  // For a tensor whose value a service stores from one push_pull to the next. Every rank gets the
  // stored value.
  kSeed = 7,        // the root's values initialise the stored value unless it exists
  kAccumulate = 8,  // each rank's values are added to the stored value
};

// Whether `op` works on a stored value.
constexpr bool is_stored(ReduceOp op) { return op == ReduceOp::kSeed || op == ReduceOp::kAccumulate; }

std::string_view to_string(ReduceOp op);
Result<ReduceOp> reduce_op_from(uint8_t value);

}  // namespace byteps
