#include "base/dtype.h"

namespace byteps {

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8: return 1;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
  }
  BPS_CHECK(false) << "dtype " << static_cast<int>(dtype);
  return 0;
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kInt8: return "int8";
    case DType::kUInt8: return "uint8";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
  }
  return "unknown";
}

Result<DType> dtype_from(uint8_t value) {
  if (value < 1 || value > 8) {
    return data_loss("dtype: expected a code from 1 to 8, got " + std::to_string(value));
  }
  return static_cast<DType>(value);
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
