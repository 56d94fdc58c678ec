#include "base/dtype.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kBFloat16), 2u);
  EXPECT_EQ(size_of(DType::kInt64), 8u);
  EXPECT_EQ(to_string(DType::kFloat16), "float16");
  EXPECT_TRUE(is_float(DType::kBFloat16));
  EXPECT_FALSE(is_float(DType::kInt8));
}

TEST(DTypeTest, CodesFromTheWireAreChecked) {
  int known = 0;
  for (int code = 0; code < 256; ++code) {
    const auto dtype = dtype_from(static_cast<uint8_t>(code));
    if (!dtype) {
      EXPECT_EQ(dtype.status().code(), StatusCode::kDataLoss);
      continue;
    }
    ++known;
    EXPECT_EQ(static_cast<int>(*dtype), code);
    EXPECT_NE(to_string(*dtype), "unknown");
    EXPECT_GE(size_of(*dtype), 1u);
  }
  EXPECT_EQ(known, 8);
}

TEST(ReduceOpTest, CodesFromTheWireAreChecked) {
  int known = 0;
  for (int code = 0; code < 256; ++code) {
    const auto op = reduce_op_from(static_cast<uint8_t>(code));
    if (!op) continue;
    ++known;
    EXPECT_NE(to_string(*op), "unknown");
  }
  EXPECT_EQ(known, 8);
}

}  // namespace
}  // namespace byteps
