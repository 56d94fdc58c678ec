// Element types and reductions of the summation service, whose tables are in base/codes.h.
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

// Whether `op` works on a stored value.
constexpr bool is_stored(ReduceOp op) { return op == ReduceOp::kSeed || op == ReduceOp::kAccumulate; }

std::string_view to_string(ReduceOp op);
Result<ReduceOp> reduce_op_from(uint8_t value);

}  // namespace byteps
