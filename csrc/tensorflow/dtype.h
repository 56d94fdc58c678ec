// TensorFlow's types and their names in definitions of operators, for the core's dtypes.
#pragma once

#include <iterator>

#include "c_api/c_api.h"
#include "tensorflow/tf_api.h"

namespace byteps::tensorflow {

struct TypeRow {
  DType dtype;
  TF_DataType type;
  const char* name;
};
inline constexpr TypeRow kTypes[] = {
    {DType::kFloat16, TF_HALF, "half"},   {DType::kBFloat16, TF_BFLOAT16, "bfloat16"},
    {DType::kFloat32, TF_FLOAT, "float"}, {DType::kFloat64, TF_DOUBLE, "double"},
    {DType::kInt8, TF_INT8, "int8"},      {DType::kUInt8, TF_UINT8, "uint8"},
    {DType::kInt32, TF_INT32, "int32"},   {DType::kInt64, TF_INT64, "int64"},
};
static_assert(std::size(kTypes) == std::size(kDTypes));

}  // namespace byteps::tensorflow
