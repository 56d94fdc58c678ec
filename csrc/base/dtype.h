// Element types and reductions that the summation service supports. The values are sent on the
// wire: append only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/codes.h"
#include "base/status.h"

namespace byteps {

size_t size_of(DType dtype);
bool is_float(DType dtype);
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
