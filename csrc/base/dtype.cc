#include "base/dtype.h"

#include <iterator>
#include <string>

namespace byteps {
namespace {

const DTypeRow& row_of(DType dtype) {
  const size_t index = static_cast<size_t>(dtype) - 1;
  BPS_CHECK(index < std::size(kDTypes)) << "dtype " << static_cast<int>(dtype);
  return kDTypes[index];
}

}  // namespace

size_t size_of(DType dtype) { return row_of(dtype).bytes; }
bool is_float(DType dtype) { return row_of(dtype).is_float; }
std::string_view to_string(DType dtype) { return row_of(dtype).name; }

Result<DType> dtype_from(uint8_t value) {
  if (value >= 1 && value <= std::size(kDTypes)) return static_cast<DType>(value);
  return data_loss("dtype: expected a code from 1 to " + std::to_string(std::size(kDTypes)) + ", got " +
                   std::to_string(value));
}

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kBroadcast: return "broadcast";
    case ReduceOp::kSeed: return "seed";
    case ReduceOp::kAccumulate: return "accumulate";
  }
  return "unknown";
}

Result<ReduceOp> reduce_op_from(uint8_t value) {
  if (value < 1 || value > 8) {
    return data_loss("reduction: expected a code from 1 to 8, got " + std::to_string(value));
  }
  return static_cast<ReduceOp>(value);
}

}  // namespace byteps
