// Attributes of operators.
#pragma once

#include <string>

#include "tensorflow/tf_api.h"

namespace byteps::tensorflow {

// Returns "" and sets `status` if there is no attribute of this name.
inline std::string string_attr(TF_OpKernelConstruction* construction, const char* attr, TF_Status* status) {
  int32_t unused = 0;
  int32_t length = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, attr, &unused, &length, status);
  if (TF_GetCode(status) != TF_OK) return {};
  std::string value(static_cast<size_t>(length), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, attr, value.data(), value.size(), status);
  return value;
}

}  // namespace byteps::tensorflow
