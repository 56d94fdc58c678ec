#include "base/dtype.h"

#include <string>

namespace byteps {
namespace {

template <typename Code, typename Row, size_t kRows>
const Row& row_of(const Row (&rows)[kRows], Code code) {
  const size_t index = static_cast<size_t>(code) - 1;
  BPS_CHECK(index < kRows) << "code " << static_cast<int>(code);
  return rows[index];
}

template <typename Code, typename Row, size_t kRows>
Result<Code> code_from(const char* what, const Row (&)[kRows], uint8_t value) {
  if (value >= 1 && value <= kRows) return static_cast<Code>(value);
  return data_loss(std::string(what) + ": expected a code from 1 to " + std::to_string(kRows) + ", got " +
                   std::to_string(value));
}

}  // namespace

size_t size_of(DType dtype) { return row_of(kDTypes, dtype).bytes; }
bool is_float(DType dtype) { return row_of(kDTypes, dtype).is_float; }
std::string_view to_string(DType dtype) { return row_of(kDTypes, dtype).name; }
Result<DType> dtype_from(uint8_t value) { return code_from<DType>("dtype", kDTypes, value); }

std::string_view to_string(ReduceOp op) { return row_of(kReduceOps, op).name; }
Result<ReduceOp> reduce_op_from(uint8_t value) { return code_from<ReduceOp>("reduction", kReduceOps, value); }

}  // namespace byteps
